"""From rollouts to scores: reward inputs, reward functions, scoring.

The names are loaded when they are used: a scoring process takes only what it needs, and starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_assets.rewards.function import RewardFunction
    from rl_assets.rewards.inputs import REWARD_INPUT_SCHEMA, build_reward_inputs, reward_batch
    from rl_assets.rewards.pool import ScorePool
    from rl_assets.rewards.scoring import SCORE_SCHEMA, score_table

__all__ = [
    "REWARD_INPUT_SCHEMA",
    "SCORE_SCHEMA",
    "RewardFunction",
    "ScorePool",
    "build_reward_inputs",
    "reward_batch",
    "score_table",
]

_HOMES = {
    "REWARD_INPUT_SCHEMA": "inputs",
    "SCORE_SCHEMA": "scoring",
    "RewardFunction": "function",
    "ScorePool": "pool",
    "build_reward_inputs": "inputs",
    "reward_batch": "inputs",
    "score_table": "scoring",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
