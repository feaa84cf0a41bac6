"""From rollouts to scores: reward inputs, reward functions, scoring."""

from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.inputs import REWARD_INPUT_SCHEMA, build_reward_inputs, reward_batch
from rl_assets.rewards.scoring import SCORE_SCHEMA, ScorePool, score_table

__all__ = [
    "REWARD_INPUT_SCHEMA",
    "SCORE_SCHEMA",
    "RewardFunction",
    "ScorePool",
    "build_reward_inputs",
    "reward_batch",
    "score_table",
]
