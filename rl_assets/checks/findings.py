"""What a check found, and how the UI shows it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rl_assets.assets.dataset import Dataset
from rl_assets.assets.display import table

SHOWN_ROWS = 20
"""A check shows at most this many failing rows: the event log is kept and shared."""
SHOWN_SHARDS = 100
"""And as many shards, those with failures first."""


@dataclass
class Findings:
    """What a check found: numbers, numbers per shard, and the rows that fail, each with what is wrong.

    A check passes when nothing was added with `fail`.
    """

    numbers: dict[str, int | float | str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: int = 0
    shards: list[dict[str, Any]] = field(default_factory=list)

    def fail(self, problem: str, row: Mapping[str, Any] | None = None, *, times: int = 1) -> None:
        """Count a failure; `row` gives its uid, source file and source row where there is one."""
        self.failures += times
        if len(self.rows) < SHOWN_ROWS:
            place = {key: (row or {}).get(key) for key in ("uid", "source_file", "source_row")}
            self.rows.append({**place, "problem": problem})

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

    def metadata(self) -> dict[str, Any]:
        """What the UI shows: the numbers, failing rows, and the shards."""
        metadata: dict[str, Any] = {**self.numbers, "failures": self.failures}
        if self.rows:
            metadata["failing_rows"] = table(self.rows, ["uid", "source_file", "source_row", "problem"])
        if self.shards:
            lines = sorted(self.shards, key=lambda line: -line["failures"])[:SHOWN_SHARDS]
            metadata["shards"] = table(lines, list(dict.fromkeys(name for line in lines for name in line)))
        return metadata


def shown(dataset: Dataset, problem: str) -> str:
    """A problem as the UI may show it: where `previews` is false, without the values after its colon."""
    return problem if dataset.spec.previews else problem.partition(":")[0]
