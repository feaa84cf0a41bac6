"""RL post-training prompts from raw files to rollouts and reward inputs, as a checked Dagster asset graph.

`DataToRollout` is the component that a `defs.yaml` names; it is loaded on first use, so that importing the
inner packages (`contract`, `prompts`, `protocol`, `rollout`, `rewards`) does not import Dagster.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_assets.graph.component import DataToRollout

__all__ = ["DataToRollout"]


def __getattr__(name: str) -> Any:
    if name == "DataToRollout":
        from rl_assets.graph.component import DataToRollout

        return DataToRollout
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "DataToRollout"]
