"""What the assets of a dataset stored, written by hand, so that a check meets what no run would leave."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from rl_assets.base.tables import Table, TableWriter
from rl_assets.contract.schema import ROW_SCHEMA
from rl_assets.graph.checks import CHECKS
from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import Findings
from rl_assets.graph.dataset import GraphDataset
from rl_assets.spec.dataset import DataToRolloutSpec
from tests.rewards.builders import uid


def bare_dataset(root: Path, **attributes: Any) -> GraphDataset:
    """A dataset `toy` whose files and policy nobody reads."""
    spec = {
        "dataset": "toy",
        "data": {"train_files": "t.jsonl"},
        "policy": {"path": "p"},
        "rollout": {"n": 2},
    }
    return GraphDataset(DataToRolloutSpec.model_validate({**spec, **attributes}), root)


def put(dataset: GraphDataset, asset: str, schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> Table:
    """Store `rows` as the asset's table."""
    folder = Path(str(dataset.storage))
    folder.mkdir(parents=True, exist_ok=True)
    with TableWriter(folder / f"{asset}.parquet", schema) as writer:
        writer.write_rows(rows)
    return writer.table


def contract_row(number: int = 0, truth: Any = "72", **changes: Any) -> dict[str, Any]:
    """An accepted row."""
    return {
        "uid": uid(number),
        "split": "train",
        "source_file": "data/toy/train.jsonl",
        "source_row": number,
        "data_source": "openai/gsm8k",
        "ability": "math",
        "prompt": json.dumps([{"role": "user", "content": f"What is {number} + {number}?"}]),
        "reward_model": json.dumps({"style": "rule", "ground_truth": truth}),
        "extra_info": json.dumps({"index": number}),
        "extra_columns": "{}",
        **changes,
    }


def put_contract(dataset: GraphDataset, *rows: dict[str, Any]) -> Table:
    """Store the rows as `field_contract`."""
    return put(dataset, "field_contract", ROW_SCHEMA, rows)


def the_check(asset: str, name: str) -> Check:
    """The check of that name."""
    (check,) = [check for check in CHECKS if (check.asset, check.name) == (asset, name)]
    return check


def the_others_warn(name: str) -> dict[str, dict[str, str]]:
    """A YAML's `checks` in which no check but those of that name blocks."""
    return {"severities": {check.name: "warn" for check in CHECKS if check.name != name}}


def evaluate(dataset: GraphDataset, asset: str, name: str) -> Findings:
    """What the check finds in the dataset's store."""
    return the_check(asset, name).evaluate(dataset)


def problems(findings: Findings) -> list[str]:
    """What is wrong, in words."""
    return [row["problem"] for row in findings.rows]
