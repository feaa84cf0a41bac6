"""The self-test of scoring before anything is generated: which rows are tried, and what comes of it."""

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from rl_assets.base.progress import Log, Progress
from rl_assets.base.tables import Table
from rl_assets.rewards.pool import ScorePool
from rl_assets.rewards.selftest import Failing, failing_answers
from rl_assets.rewards.solution import Writer

SAMPLE, CUSTOM_SAMPLE = 1000, 5
"""Rows of every data_source that are tried with the built-in scorers, and with a function of the user's."""
SECONDS = 60.0
"""No row is begun after so long: a scorer may be slow."""
_PLACE = ("uid", "source_file", "source_row")
_COLUMNS = [*_PLACE, "data_source", "reward_model", "extra_info"]
_KINDS = {
    str: "text",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


class Odd(NamedTuple):
    """A kind of ground truth that is not that of most rows of its data_source.

    Attributes:
        source: the data_source.
        kind: the kind, in words.
        problem: what is said of its rows.
        first: uid, file and row of the first of them.
    """

    source: str
    kind: str
    problem: str
    first: dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """What comes of trying right answers.

    Attributes:
        tried: tried rows by data_source.
        not_tried: rows that were chosen and not begun within the time.
        tags: tags that are special tokens of the policy, which verl's reward managers do not see.
        failing: the tried rows whose right answer does not score.
        odd: ground truths of another kind than most; only with a function of the user's own.
    """

    tried: Counter[str]
    not_tried: int
    tags: tuple[str, ...]
    failing: list[Failing]
    odd: list[Odd]

    def never_scored(self) -> Iterator[Failing]:
        """Of every data_source of which no tried row has a score, the first row: the run stops there."""
        without = [one for one in self.failing if one.error is not None]
        counts = Counter(one.row["data_source"] for one in without)
        for source in sorted(counts):
            if counts[source] == self.tried[source]:
                yield next(one for one in without if one.row["data_source"] == source)


def try_answers(
    rows: Table, pool: ScorePool, elsewhere: Collection[str], writer: Writer | None, log: Log
) -> Trial:
    """Write the ground truth of rows as a right answer, and score it; no row is begun after `SECONDS`.

    Args:
        rows: `field_contract`.
        pool: how responses are scored.
        elsewhere: sources whose responses are scored elsewhere; their rows are not tried.
        writer: writes an answer as the policy would; None takes it as it is.
        log: told every few seconds how many were tried.

    Raises:
        InputError: the reward function cannot be loaded.
    """
    kinds = _Kinds() if pool.function.path is not None else None
    chosen, tried = list(_chosen(rows, elsewhere, kinds)), Counter[str]()
    failing = list(failing_answers(_in_time(chosen, tried, log), pool, writer))
    return Trial(
        tried=tried,
        not_tried=len(chosen) - tried.total(),
        tags=writer.tags if writer is not None else (),
        failing=failing,
        odd=list(kinds.odd()) if kinds is not None else [],
    )


def odd_rows(rows: Table, odd: Collection[Odd]) -> Iterator[tuple[dict[str, Any], str]]:
    """Every row of these kinds, and what is said of it: the first of each kind, then the others."""
    yield from ((one.first, one.problem) for one in odd)
    problems = {(one.source, one.kind): one.problem for one in odd}
    first = {one.first["uid"] for one in odd}
    for row in rows.rows(_COLUMNS) if odd else ():
        kind = _kind(json.loads(row["reward_model"]).get("ground_truth"))
        problem = problems.get((row["data_source"], kind))
        if problem is not None and row["uid"] not in first:
            yield row, problem


def tags_problem(tags: Collection[str]) -> str:
    """What is said of tags that are special tokens of the policy."""
    return (
        f"{', '.join(tags)} are special tokens of the policy: verl's reward managers decode a response with "
        "skip_special_tokens=True, so that its `solution_str` lacks them and a scorer that reads them scores "
        "0 there. Here they are kept. For training, use a tokenizer in which they are not special (`special: "
        "false` in tokenizer.json), or a scorer that does not need them"
    )


def _in_time(rows: list[dict[str, Any]], tried: Counter[str], log: Log) -> Iterator[dict[str, Any]]:
    """The rows that are begun within the time, counted by source; the first one of every source comes first,
    then the second ones."""
    progress = Progress(log, "perfect answers", len(rows), "rows")
    end = time.monotonic() + SECONDS
    for row in _in_turn(rows):
        if tried and time.monotonic() >= end:
            return
        tried[row["data_source"]] += 1
        yield row
        progress.add(1)


def _in_turn(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    seen, turns = Counter[str](), list[tuple[int, dict[str, Any]]]()
    for row in rows:
        turns.append((seen[row["data_source"]], row))
        seen[row["data_source"]] += 1
    return [row for _, row in sorted(turns, key=lambda turn: turn[0])]


def never_scored_problem(pool: ScorePool, source: str, tried: int, error: str) -> str:
    """What is said of a data_source of which no tried row has a score.

    Args:
        tried: how many rows were tried.
        error: why the first has none, as it may be shown.
    """
    function = pool.function
    scorer = "the built-in scorer" if function.path is None else f"{function.name} of {function.path}"
    return (
        f"field `reward.custom_reward_function`: found no score for any of the {tried} tried rows of "
        f"{source!r} ({error}), expected a finite number, or a dict with `score`, within {pool.timeout:g} s. "
        f"Correct {scorer}, or list the source in contract.known_data_sources where its responses are scored "
        "elsewhere"
    )


def _chosen(rows: Table, elsewhere: Collection[str], kinds: "_Kinds | None") -> Iterator[dict[str, Any]]:
    """The first rows of every data_source that is scored here, their JSON decoded; with `kinds` also the
    first of each kind of ground truth, and the first empty one."""
    limit = SAMPLE if kinds is None else CUSTOM_SAMPLE
    taken: Counter[str] = Counter()
    for row in rows.rows(_COLUMNS):
        source = row["data_source"]
        if source in elsewhere or (kinds is None and taken[source] >= limit):
            continue
        truth = json.loads(row["reward_model"]).get("ground_truth")
        new = kinds is not None and kinds.add(row, truth)
        if taken[source] < limit or new:
            taken[source] += 1
            yield {**row, "ground_truth": truth, "extra_info": json.loads(row["extra_info"])}


class _Kinds:
    """Which kinds of ground truth each data_source has, and where."""

    def __init__(self) -> None:
        self._rows: dict[str, Counter[str]] = {}
        self._first: dict[tuple[str, str], dict[str, Any]] = {}
        self._empty: set[str] = set()

    def add(self, row: dict[str, Any], truth: Any) -> bool:
        """Count a row; whether it is the first of its source and kind, or the first empty one."""
        source, kind = row["data_source"], _kind(truth)
        self._rows.setdefault(source, Counter())[kind] += 1
        self._first.setdefault((source, kind), row)
        empty = truth in (None, "", [], {}) and source not in self._empty
        if empty:
            self._empty.add(source)
        return empty or self._rows[source][kind] == 1

    def odd(self) -> Iterator[Odd]:
        """The kinds of each source that are not that of most of its rows."""
        for source, rows in sorted(self._rows.items()):
            (usual, most), *others = rows.most_common()
            for kind, _ in others:
                problem = (
                    f"field `reward_model.ground_truth`: found {kind}, expected {usual}, as {most:,} of "
                    f"{rows.total():,} rows of {source!r} have. Store them all alike, or see that the "
                    "reward function reads both"
                )
                yield Odd(source, kind, problem, self._first[source, kind])


def _kind(truth: Any) -> str:
    return _KINDS.get(type(truth), "null")
