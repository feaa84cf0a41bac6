"""RL post-training prompts from raw files to rollouts and reward inputs, as a checked Dagster asset graph.

`DataToRollout` is the component that a `defs.yaml` names; it is loaded on first use, so that importing the
inner packages (`contract`, `prompts`, `protocol`, `rollout`, `rewards`) does not import Dagster.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
