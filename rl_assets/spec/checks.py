"""The block `checks`: which findings stop a run."""

from typing import Literal

from pydantic import Field

from rl_assets.spec.common import SpecModel
from rl_assets.spec.limits import Share

# A test holds these names and the checks together; they stand here so that the schema of a YAML lists them.
CheckName = Literal[
    "ability_rules",
    "agent_name_rules",
    "data_source_rules",
    "every_response_scored",
    "extra_info_rules",
    "few_are_left_out",
    "few_are_truncated",
    "few_are_unrenderable",
    "file_rules",
    "fills_a_batch",
    "ground_truths_agree",
    "groups",
    "learning_signal",
    "loads_whole",
    "media_rules",
    "no_file_is_empty",
    "none_is_cut",
    "perfect_answers_score",
    "placeholder_media",
    "prompt_rules",
    "prompts_are_whole",
    "reward_fields_unchanged",
    "reward_model_rules",
    "row_rules",
    "rows_conserved",
    "scorer_known",
    "scorer_works",
    "shard_rules",
    "splits_apart",
    "tensor_rules",
    "text_rules",
    "trainers_read_rows",
    "uid_rules",
    "uids",
    "value_rules",
    "values_exact",
]


class RejectRateSpec(SpecModel):
    """When rejected rows stop the run."""

    max: Share = 0.0
    """Largest share of rejected rows that passes."""

    severity: Literal["error", "warn"] = "error"
    """`error` stops the run before the contract is replaced; `warn` shows the failed check and goes on."""


class ChecksSpec(SpecModel):
    """Thresholds of the asset checks."""

    reject_rate: RejectRateSpec = Field(default_factory=RejectRateSpec)
    """Share of raw rows that the contract may refuse."""

    truncated_share: Share = 0.5
    """Largest share of responses cut at `data.max_response_length` that passes without a warning."""

    left_out_share: float = Field(0.5, ge=0, le=1)
    """Largest share of prompts left out of the training set, by `curation` and as copies, that passes without
    a warning."""

    severities: dict[CheckName, Literal["error", "warn"]] = Field({})
    """By the name of a check: `error` stops the run before the next asset, and the next asset refuses what
    the check does not pass; `warn` shows the failure and goes on. `reject_rate` has a severity of its own,
    and `few_are_unrenderable` takes that one unless it is named here."""
