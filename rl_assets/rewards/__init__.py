"""From rollouts to what a reward function is called with."""

from rl_assets.rewards.inputs import REWARD_INPUT_SCHEMA, build_reward_inputs

__all__ = ["REWARD_INPUT_SCHEMA", "build_reward_inputs"]
