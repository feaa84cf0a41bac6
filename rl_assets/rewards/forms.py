"""The rows of a training set in the forms that trainers other than verl read."""

from collections.abc import Callable, Mapping
from typing import Any

from rl_assets.store import to_json

Row = dict[str, Any]


def trl_row(row: Mapping[str, Any]) -> Row:
    """A row as TRL's GRPOTrainer takes it: a conversational `prompt`, and columns for its reward functions.

    TRL hands every column but `prompt` to the reward functions by name, one value per completion.
    """
    return {
        "prompt": row["prompt"],
        "data_source": row["data_source"],
        "ground_truth": row["reward_model"]["ground_truth"],
        "extra_info": row["extra_info"],
        "uid": row["uid"],
    }


def openrlhf_row(row: Mapping[str, Any]) -> Row:
    """A row as OpenRLHF's PromptDataset takes it, with `--input_key prompt --label_key label
    --apply_chat_template`.

    A label is text there: a ground truth that is not, is its JSON.
    """
    truth = row["reward_model"]["ground_truth"]
    return {
        "prompt": row["prompt"],
        "label": truth if isinstance(truth, str) else to_json(truth),
        "datasource": row["data_source"],
        "uid": row["uid"],
    }


FORMS: dict[str, Callable[[Mapping[str, Any]], Row]] = {"trl": trl_row, "openrlhf": openrlhf_row}
"""What makes a row of each form, by the name of its folder."""
