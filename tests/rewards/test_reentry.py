"""A training set that comes back in as a raw file keeps its rows, uids, values and types."""

import json
from pathlib import Path
from typing import Any

from rl_assets.base.tables import TableWriter
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.contract.schema import ROW_SCHEMA, decode_row
from tests.rewards.test_export import export, fitting

INFOS: list[dict[str, Any]] = [
    {"index": 0, "rate": 0.7379569346398113, "tools_kwargs": {"search": {"create_kwargs": {"k": 3}}}},
    {"index": 1, "seed": 2**64 - 1, "note": None},
    {"index": 2, "when": "2024-01-01"},
    {"index": 3, "deep": [1, 1.0, True, {"a": []}]},
]
TOOL = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}
OWN: list[dict[str, Any]] = [{"level": 3}, {}, {"tools": [TOOL], "agent_name": "tool_agent"}, {"level": "x"}]


def test_a_training_set_comes_back_in(tmp_path: Path) -> None:
    rows = [
        fitting(n, extra_info=json.dumps(info), extra_columns=json.dumps(own))
        for n, (info, own) in enumerate(zip(INFOS, OWN, strict=True))
    ]
    export(tmp_path, *rows)
    manifest = scan_files("verl_dataset/train.parquet", root=tmp_path)
    assert manifest.rows == len(rows)
    out = tmp_path / "out"
    out.mkdir()
    result = apply_contract(manifest, ContractOptions(), root=tmp_path, folder=out)
    assert [row["errors"] for row in result.rejected.rows()] == []
    with TableWriter(out / "before.parquet", ROW_SCHEMA) as writer:
        writer.write_rows({key: row.get(key) for key in ROW_SCHEMA.names} for row in rows)
    before = {row["uid"]: decode_row(row) for row in writer.table.rows()}
    after = {row["uid"]: decode_row(row) for row in result.accepted.rows()}
    for uid, row in before.items():
        # A column that a row has not is null in Parquet, and a null says nothing.
        again = {name: value for name, value in after[uid].items() if value is not None}
        assert json.dumps(again, sort_keys=True) == json.dumps(row, sort_keys=True)
    assert after.keys() == before.keys()
