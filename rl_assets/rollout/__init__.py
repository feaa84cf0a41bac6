"""Prompts to responses with plain Hugging Face models: keyed sampling, a decoding loop of its own, a journal.

Importing this package is light; a name is fetched from its module, and torch with it, on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_assets.rollout.devices import device_lock
    from rl_assets.rollout.engine import RolloutStats, generate_rollouts
    from rl_assets.rollout.fingerprint import policy_fingerprint
    from rl_assets.rollout.journal import Journal
    from rl_assets.rollout.params import SamplingParams
    from rl_assets.rollout.policy import Policy, load_policy

_HOMES = {
    "Journal": "journal",
    "Policy": "policy",
    "RolloutStats": "engine",
    "SamplingParams": "params",
    "device_lock": "devices",
    "generate_rollouts": "engine",
    "load_policy": "policy",
    "policy_fingerprint": "fingerprint",
}

__all__ = [
    "Journal",
    "Policy",
    "RolloutStats",
    "SamplingParams",
    "device_lock",
    "generate_rollouts",
    "load_policy",
    "policy_fingerprint",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
