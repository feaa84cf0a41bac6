"""The block `reward`: what scores the responses."""

from pydantic import ConfigDict, Field

from rl_assets.spec.common import SpecModel
from rl_assets.spec.limits import Column, PathText, Plain, Score, Seconds, Workers
from rl_assets.spec.verl_keys import schema_extra


class CustomRewardFunctionSpec(SpecModel):
    """verl's `custom_reward_function`: a scorer of the user's own, in place of the built-in ones."""

    path: PathText | None = None
    """Python file (relative to the project's top folder), or `pkg://` and a module's name; null takes the
    built-in scorers. The code is run, in processes of its own, as Python runs a file: helpers beside it can
    be imported, and a change of one makes the scores stale. What a call starts ends with its process."""

    name: Column = "compute_score"
    """The function there. It is called with `data_source`, `solution_str`, `ground_truth` and `extra_info`
    and returns a number, or a dict with `score`."""

    reward_kwargs: dict[str, Plain] = Field({})
    """Further keyword arguments of every call. Their texts, at any depth, are replaced by the argument's name
    wherever a result, an error or a printed line of the function holds them."""


class RewardSpec(SpecModel):
    """verl's `reward:` block: how responses are scored."""

    model_config = ConfigDict(json_schema_extra=schema_extra("reward"))

    custom_reward_function: CustomRewardFunctionSpec = Field(default_factory=CustomRewardFunctionSpec)
    """A scorer of the user's own. Without one, the built-in scorers read the data_sources of verl's table,
    except those whose scorer runs the response as code."""

    compute_score_timeout: Seconds = 10.0
    """Seconds that one response may take; after that it has no score, and the others go on."""

    num_workers: Workers | None = None
    """Worker processes; null takes one per core, at most 8."""

    pass_score: Score = 0.5
    """A response passes when its score is at least this."""
