"""How hard each prompt is for the policy that answered it."""

import math
import statistics
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from rl_assets.base.tables import Table, TableWriter
from rl_assets.rewards.groups import groups

_BATCH_ROWS = 1024


def pass_counts(most: int) -> list[int]:
    """The k for which pass@k is given: the powers of two from 2 to `most`, the responses per prompt."""
    return [1 << power for power in range(1, most.bit_length())]


def difficulty_schema(most: int) -> pa.Schema:
    """The table of difficulties, for at most `most` responses per prompt.

    `n` counts responses, `scored` those with a score, `passed` those whose score is high enough; what
    follows from scores is null where none is scored. `pass_rate_low` and `pass_rate_high` are the Wilson
    interval at 95 %. `score_std` is the sample's, null for fewer than two. `distinct_answers` counts
    different values of `pred` where the scorer gives it (no answer is not one), else different responses.
    """
    ratio = pa.float64()
    return pa.schema(
        [
            pa.field("uid", pa.string(), nullable=False),
            pa.field("policy", pa.string(), nullable=False),
            pa.field("split", pa.string(), nullable=False),
            pa.field("data_source", pa.string(), nullable=False),
            pa.field("n", pa.int32(), nullable=False),
            pa.field("scored", pa.int32(), nullable=False),
            pa.field("passed", pa.int32(), nullable=False),
            *(pa.field(name, ratio) for name in ("pass_rate", "pass_rate_low", "pass_rate_high")),
            *(pa.field(f"pass_at_{k}", ratio) for k in pass_counts(most)),
            *(pa.field(name, ratio) for name in ("score_mean", "score_std", "score_min", "score_max")),
            pa.field("truncated_share", ratio, nullable=False),
            pa.field("distinct_answers", pa.int32(), nullable=False),
            pa.field("mean_response_length", ratio, nullable=False),
            pa.field("source_file", pa.string(), nullable=False),
            pa.field("source_row", pa.int64(), nullable=False),
        ]
    )


def measure_difficulty(scores: Table, *, policy: str, pass_score: float, most: int, folder: Path) -> Table:
    """One row per prompt: how its responses did (`difficulty_schema`).

    Args:
        scores: the scored responses (`SCORE_SCHEMA` and columns of the scorer's own).
        policy: fingerprint of the policy that gave the responses.
        pass_score: a response passes when its score is at least this.
        most: responses per prompt, of the split that has more.
        folder: where the table is written.

    Raises:
        InputError: the responses to a prompt do not lie together.
    """
    answer = "pred" if "pred" in scores.schema.names else "solution_str"
    columns = [
        "split",
        "data_source",
        "score",
        "finish_reason",
        "response_length",
        "source_file",
        "source_row",
    ]
    with TableWriter(folder / "prompt_difficulty.parquet", difficulty_schema(most)) as writer:
        rows: list[dict[str, Any]] = []
        for responses in groups(scores, [*columns, answer]):
            rows.append(
                {
                    **{
                        key: responses[0][key]
                        for key in ("uid", "split", "data_source", "source_file", "source_row")
                    },
                    "policy": policy,
                    **_scores([row["score"] for row in responses if row["score"] is not None], pass_score),
                    **_responses(responses, answer),
                }
            )
            if len(rows) == _BATCH_ROWS:
                writer.write_rows(rows)
                rows = []
        writer.write_rows(rows)
    return writer.table


def _scores(scores: Sequence[float], pass_score: float) -> dict[str, Any]:
    scored = len(scores)
    passed = sum(score >= pass_score for score in scores)
    if not scores:
        return {"scored": 0, "passed": 0}
    low, high = wilson_interval(passed, scored)
    return {
        "scored": scored,
        "passed": passed,
        "pass_rate": passed / scored,
        "pass_rate_low": low,
        "pass_rate_high": high,
        **{f"pass_at_{k}": pass_at_k(scored, passed, k) for k in pass_counts(scored)},
        "score_mean": statistics.fmean(scores),
        "score_std": statistics.stdev(scores) if scored > 1 else None,
        "score_min": min(scores),
        "score_max": max(scores),
    }


def _responses(responses: Sequence[Mapping[str, Any]], answer: str) -> dict[str, Any]:
    n = len(responses)
    return {
        "n": n,
        "truncated_share": sum(row["finish_reason"] == "length" for row in responses) / n,
        "distinct_answers": len({row[answer] for row in responses} - {None}),
        "mean_response_length": statistics.fmean(row["response_length"] for row in responses),
    }


def wilson_interval(passed: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's score interval of a rate (E. B. Wilson, 1927), by default at 95 %."""
    rate, square = passed / n, z * z / n
    centre = (rate + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(rate * (1 - rate) / n + square / (4 * n))
    # At a rate of 0 or 1 the interval ends there, up to rounding.
    return min(max(centre - half, 0.0), rate), max(min(centre + half, 1.0), rate)


def pass_at_k(n: int, passed: int, k: int) -> float:
    """Unbiased pass@k, `1 - C(n - passed, k) / C(n, k)` (M. Chen et al., 2021, arXiv:2107.03374); k ≤ n."""
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


class SourceDifficulty(NamedTuple):
    """How hard the prompts of one data_source are, taken together; those without a score are left out."""

    split: str
    data_source: str
    prompts: int
    all_failed: int
    mixed: int
    all_solved: int
    mean_pass_rate: float | None


def difficulty_by_source(difficulty: Table) -> list[SourceDifficulty]:
    """One line per split and data_source."""
    rates = pass_rates(difficulty)
    return [_by_source(*key, values) for key, values in sorted(rates.items())]


def pass_rates(difficulty: Table) -> "dict[tuple[str, str], array[float]]":
    """The pass rates of the prompts that have one, by split and data_source."""
    rates: dict[tuple[str, str], array[float]] = {}
    for row in difficulty.rows(["split", "data_source", "pass_rate"]):
        found = rates.setdefault((row["split"], row["data_source"]), array("d"))
        if row["pass_rate"] is not None:
            found.append(row["pass_rate"])
    return rates


def _by_source(split: str, source: str, rates: Sequence[float]) -> SourceDifficulty:
    failed, solved = sum(rate == 0 for rate in rates), sum(rate == 1 for rate in rates)
    mean = round(statistics.fmean(rates), 4) if rates else None
    return SourceDifficulty(split, source, len(rates), failed, len(rates) - failed - solved, solved, mean)
