"""Responses by prompt: the groups that a group-relative trainer compares."""

import statistics
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rl_assets.base.tables import Table
from rl_assets.errors import InputError

_BATCH_ROWS = 8192

REWARD_FIELDS = ("split", "data_source", "ground_truth", "extra_info", "source_file", "source_row")
"""Columns in which the responses of a group agree."""


class SourceSummary(NamedTuple):
    """How the responses to the prompts of one data_source did."""

    split: str
    data_source: str
    responses: int
    scored: int
    mean_score: float | None
    pass_rate: float | None


def groups(table: Table, columns: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """The rows of one uid after the other, with `uid` and `columns`.

    Raises:
        InputError: the rows of a uid do not lie together.
    """
    seen: set[str] = set()
    for uid, rows in groupby(table.rows(["uid", *columns]), key=lambda row: row["uid"]):
        if uid in seen:
            raise InputError(
                file=str(table.path),
                field="uid",
                found=f"responses to {uid} in more than one place",
                expected="the responses to a prompt one after the other",
                remedy="Materialise reward_inputs again.",
            )
        seen.add(uid)
        yield list(rows)


def group_faults(rows: Sequence[Mapping[str, Any]], n: int) -> Iterator[str]:
    """What keeps the responses to one prompt from being a group.

    Args:
        rows: each with `sample_index` and `REWARD_FIELDS`.
        n: how many responses there are to be.
    """
    samples = sorted(row["sample_index"] for row in rows)
    if samples != list(range(n)):
        yield f"the sample indices are {samples}, expected 0 … {n - 1} once each"
    for field in REWARD_FIELDS:
        # Compared by text, since 1 == 1.0 == True.
        values = {repr(row[field]) for row in rows}
        if len(values) > 1:
            yield f"`{field}` differs within the group: {' and '.join(sorted(values)[:2])}"


def grpo_advantages(scores: Sequence[float], epsilon: float = 1e-6) -> list[float]:
    """Group-relative advantages, as GRPO has them in verl: `(score - mean) / (std + epsilon)`.

    `std` is the sample's (n - 1). A group of one has mean 0 and std 1, so that its advantage is its score.
    """
    if len(scores) == 1:
        return [scores[0] / (1.0 + epsilon)]
    mean, std = statistics.fmean(scores), statistics.stdev(scores)
    return [(score - mean) / (std + epsilon) for score in scores]


def preview_advantages(scores: Table, limit: int) -> list[dict[str, Any]]:
    """The first `limit` groups in which every response is scored: scores, mean, spread and advantages."""
    whole = (rows for rows in groups(scores, ["score"]) if all(row["score"] is not None for row in rows))
    preview = []
    for rows in islice(whole, limit):
        values = [row["score"] for row in rows]
        preview.append(
            {
                "uid": rows[0]["uid"],
                "scores": _listed(values),
                "mean": round(statistics.fmean(values), 4),
                "std": round(statistics.stdev(values), 4) if len(values) > 1 else 0.0,
                "advantages": _listed(grpo_advantages(values)),
            }
        )
    return preview


def summarise(scores: Table, pass_score: float) -> list[SourceSummary]:
    """One line per split and data_source; `mean_score` and `pass_rate` are over the scored responses."""
    responses: Counter[tuple[str, str]] = Counter()
    scored: dict[tuple[str, str], array[float]] = {}
    for row in scores.rows(["split", "data_source", "score"]):
        key = row["split"], row["data_source"]
        responses[key] += 1
        values = scored.setdefault(key, array("d"))
        if row["score"] is not None:
            values.append(row["score"])
    return [_summary(*key, responses[key], values, pass_score) for key, values in sorted(scored.items())]


def near_misses(scores: Table) -> int | None:
    """How many responses a kinder reading finds right and the scorer does not; None where the scorer does not
    say so (in the booleans `acc` and `lenient_acc`, as the built-in scorers do)."""
    columns, schema = ["acc", "lenient_acc"], scores.schema
    if any(name not in schema.names or schema.field(name).type != pa.bool_() for name in columns):
        return None
    batches = scores.batches(columns, size=_BATCH_ROWS)
    missed = (pc.and_(pc.invert(batch["acc"]), batch["lenient_acc"]) for batch in batches)
    return sum(pc.sum(mask).as_py() or 0 for mask in missed)


def _summary(
    split: str, source: str, responses: int, scored: Sequence[float], pass_score: float
) -> SourceSummary:
    mean = round(statistics.fmean(scored), 4) if scored else None
    passed = round(statistics.fmean(value >= pass_score for value in scored), 4) if scored else None
    return SourceSummary(split, source, responses, len(scored), mean, passed)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
