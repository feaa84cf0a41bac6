"""What a check found, and how the UI shows it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.display import one_line, table

if TYPE_CHECKING:
    from rl_assets.protocol.dataproto import DataProto

PLACE = ("uid", "source_file", "source_row")
"""Columns of every table and shard after the contract, by which a failing row is named."""
SHOWN_ROWS = 20
"""A check shows at most this many failing rows: the event log is kept and shared."""
QUOTED_ROWS = 3
"""In words, such as a line of the log, it quotes as many."""
SHOWN_SHARDS = 100
"""And as many shards, those with failures first."""
_QUOTE = 600
_HEAD = 400


@dataclass
class Findings:
    """What a check found: numbers, numbers per shard, and the rows that fail, each with what is wrong.

    A check passes when nothing was added with `fail`.

    Attributes:
        fatal: what failed leaves nothing to go on with, so that the failure is an ERROR also of a check that
            warns, unless the YAML gives that check's severity.
    """

    numbers: dict[str, int | float | str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: int = 0
    shards: list[dict[str, Any]] = field(default_factory=list)
    fatal: bool = False

    def fail(self, problem: str, row: Mapping[str, Any] | None = None) -> None:
        """Count a failure; `row` gives its `PLACE` where there is one, whatever else it holds."""
        self.failures += 1
        if len(self.rows) < SHOWN_ROWS:
            place = {key: (row or {}).get(key) for key in PLACE}
            self.rows.append({**place, "problem": problem})

    def unlisted(self, failures: int) -> None:
        """Count failures of which no more is said."""
        self.failures += failures

    def count(self, name: str, more: int) -> None:
        """Add to one of the numbers."""
        self.numbers[name] = int(self.numbers.get(name, 0)) + more

    @contextmanager
    def shard(self, name: str, rows: int) -> Iterator[dict[str, Any]]:
        """Look at one shard: its line of numbers, to which more may be added; failures are counted in it."""
        line, before = {"shard": name, "rows": rows}, self.failures
        yield line
        self.shards.append({**line, "failures": self.failures - before})

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return self.failures == 0

    @property
    def many(self) -> str:
        """How many problems there are, in words."""
        return "1 problem" if self.failures == 1 else f"{self.failures:,} problems"

    def words(self) -> str:
        """The first failures in full, a line each, and how many more there are."""
        lines = [_quoted(row) for row in self.rows[:QUOTED_ROWS]]
        if more := self.failures - len(lines):
            lines.append(f"and {more:,} more: the check's table in the UI")
        return "\n".join(f"  {line}" for line in lines)

    def metadata(self) -> dict[str, Any]:
        """What the UI shows: the numbers, failing rows, and the shards."""
        metadata: dict[str, Any] = {**self.numbers, "failures": self.failures}
        if self.rows:
            metadata["failing_rows"] = table(self.rows, [*PLACE, "problem"])
        if self.shards:
            lines = sorted(self.shards, key=lambda line: -line["failures"])[:SHOWN_SHARDS]
            metadata["shards"] = table(lines, list(dict.fromkeys(name for line in lines for name in line)))
        return metadata


def _quoted(row: Mapping[str, Any]) -> str:
    """A failure with its file and row; where it is long, without its middle, since it ends in the remedy."""
    file, number, problem = row["source_file"], row["source_row"], row["problem"]
    if file and not problem.startswith(file):
        problem = f"{file}{'' if number is None else f', row {number}'}: {problem}"
    text = one_line(problem)
    return text if len(text) <= _QUOTE else f"{text[:_HEAD]} … {text[_HEAD - _QUOTE :]}"


def place(data: "DataProto", index: int) -> dict[str, Any]:
    """The `PLACE` of a row of a shard."""
    return {key: data.non_tensor_batch[key][index] for key in PLACE}


def shown(dataset: GraphDataset, problem: str) -> str:
    """A problem as the UI may show it: where `previews` is false, without the values after its colon."""
    return problem if dataset.spec.previews else problem.partition(":")[0]
