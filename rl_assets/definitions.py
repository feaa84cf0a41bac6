"""The door: what `workspace.yaml` and `[tool.dg]` load."""

import warnings
from pathlib import Path

import dagster as dg

# Dagster says at every load and in every run which of its own functions and arguments may still change.
warnings.filterwarnings("ignore", r".* is currently in preview,", dg.PreviewWarning)
warnings.filterwarnings("ignore", r".* is currently in beta,", dg.BetaWarning)

_PACKAGE = Path(__file__).parent


@dg.definitions
def defs() -> dg.Definitions:
    """Every dataset under `rl_assets/defs`, and the executor."""
    from rl_assets.graph.executor import step_executor
    from rl_assets.graph.loading import load_project

    return dg.Definitions.merge(
        load_project(_PACKAGE),
        dg.Definitions(executor=step_executor()),
    )
