"""Reward inputs written by hand."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl_assets.base.tables import Table, TableWriter
from rl_assets.rewards.inputs import REWARD_INPUT_SCHEMA
from rl_assets.rewards.scoring import SCORE_SCHEMA


def uid(number: int) -> str:
    """A uid as the contract makes them."""
    return f"{number:032x}"


def reward_input(
    prompt: int = 0, sample: int = 0, solution: str = "#### 72", **changes: Any
) -> dict[str, Any]:
    """One row; `ground_truth` and `extra_info` in `changes` are values, not JSON text."""
    row = {
        "uid": uid(prompt),
        "sample_index": sample,
        "split": "train",
        "data_source": "openai/gsm8k",
        "solution_str": solution,
        "ground_truth": "72",
        "extra_info": {"index": prompt},
        "finish_reason": "stop",
        "response_length": 5,
        "source_file": "data/toy/train.jsonl",
        "source_row": prompt,
        **changes,
    }
    return {**row, **{key: json.dumps(row[key]) for key in ("ground_truth", "extra_info")}}


def input_table(folder: Path, rows: Iterable[dict[str, Any]]) -> Table:
    """A stored table of reward inputs."""
    with TableWriter(folder / "reward_inputs.parquet", REWARD_INPUT_SCHEMA) as writer:
        writer.write_rows(rows)
    return writer.table


def score_table(folder: Path, scores: dict[int, list[float | None]], **changes: Any) -> Table:
    """Scores by prompt, as `reward_scores` keeps them."""
    with TableWriter(folder / "reward_scores.parquet", SCORE_SCHEMA) as writer:
        for prompt, values in scores.items():
            writer.write_rows(
                {
                    **reward_input(prompt, sample, **changes),
                    "score": value,
                    "error": None if value is not None else "x",
                }
                for sample, value in enumerate(values)
            )
    return writer.table
