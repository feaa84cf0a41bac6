"""Ten thousand mutated rows: each is accepted or rejected with a reason; the accepted ones have a length."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.memory import peak_bytes
from rl_assets.base.tables import Table
from rl_assets.contract.gate import ContractResult
from rl_assets.contract.rules.codes import CODES
from rl_assets.prompts.length import filter_by_length
from rl_assets.prompts.render import PromptRenderer
from tests.contract.rows import run
from tests.fuzz.rows import mutated_lines, strange_table

LINES, TABLES, TABLE_ROWS = 8000, 200, 10
SECONDS, MEMORY = 300, 1 << 30
LENIENT = {"custom_scorer": True, "wrap_scalars": True, "parse_json": True, "reserved_columns": "prefix"}


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A test that hangs is stopped, and one that lets memory grow fails."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"a row takes more than the {SECONDS} seconds that all have together")

    before, peak = signal.signal(signal.SIGALRM, stop), peak_bytes()
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert peak_bytes() - peak < MEMORY


def require_a_reason_for_every_row(result: ContractResult, rows: Counter[str]) -> None:
    """Every position of every file is in one of the two tables, once; a rejected one has a known code."""
    places = [
        (place["source_file"], place["source_row"])
        for table in (result.accepted, result.rejected)
        for place in table.rows(("source_file", "source_row"))
    ]
    assert Counter(file for file, _ in places) == rows
    assert len(set(places)) == len(places)
    for reject in result.rejected.rows(("code", "message", "errors")):
        assert reject["code"] in CODES
        assert reject["message"]
        assert all(error["code"] in CODES for error in reject["errors"])


@pytest.fixture(scope="module")
def renderer(policy: Path) -> PromptRenderer:
    return PromptRenderer.load(policy)


def require_a_length_for_every_accepted_row(accepted: Table, renderer: PromptRenderer, folder: Path) -> None:
    result = filter_by_length(accepted, renderer, max_prompt_length=512, folder=folder, log=lambda line: None)
    tables = (result.kept, result.overlong, result.refused)
    uids = [record["uid"] for table in tables for record in table.rows(("uid",))]
    assert sorted(uids) == sorted(record["uid"] for record in accepted.rows(("uid",)))
    assert result.kept.num_rows > 0


@pytest.mark.parametrize("options", [{}, LENIENT], ids=["strict", "lenient"])
def test_mutated_lines(tmp_path: Path, renderer: PromptRenderer, options: dict[str, object]) -> None:
    lines = list(mutated_lines(len(options), LINES // 2))
    (tmp_path / "train.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    result = run(tmp_path, **options)
    require_a_reason_for_every_row(result, Counter({"train.jsonl": LINES // 2}))
    assert min(result.accepted_rows, result.rejected_rows) > LINES // 2 // 10
    assert sum(rows > 0 for rows in result.by_code.values()) > 30
    require_a_length_for_every_accepted_row(result.accepted, renderer, tmp_path)


def test_tables_of_strange_types(tmp_path: Path, renderer: PromptRenderer) -> None:
    rows = Counter({f"{seed:03}.parquet": TABLE_ROWS for seed in range(TABLES)})
    for seed, name in enumerate(sorted(rows)):
        pq.write_table(strange_table(seed, TABLE_ROWS), tmp_path / name)
    result = run(tmp_path, "*.parquet", **LENIENT)
    require_a_reason_for_every_row(result, rows)
    assert min(result.accepted_rows, result.rejected_rows) > 200
    require_a_length_for_every_accepted_row(result.accepted, renderer, tmp_path)


def test_the_corpus_is_the_same_every_time() -> None:
    assert list(mutated_lines(7, 200)) == list(mutated_lines(7, 200))
    one, other = strange_table(7, 10), strange_table(7, 10)
    assert one.schema == other.schema
    sinks = [pa.BufferOutputStream() for _ in range(2)]
    for sink, table in zip(sinks, (one, other), strict=True):
        pq.write_table(table, sink)
    assert sinks[0].getvalue() == sinks[1].getvalue()
