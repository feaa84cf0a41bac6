"""Where the steps of a run are executed."""

import os

import dagster as dg

from rl_assets.base.workers.pool import CLUSTER

EXECUTOR = "RL_ASSETS_EXECUTOR"
"""Environment variable; `ray` makes every step a job of the Ray cluster with the job server `RAY_ADDRESS`."""

_HANDED_ON = ("RL_ASSETS_STORAGE", CLUSTER, "PYTHONPATH", "HF_HOME", "HF_HUB_OFFLINE", "RAY_AUTH_MODE")


def step_executor() -> dg.ExecutorDefinition:
    """One process for all steps of a run, or a Ray job for each (`pip install -e '.[ray]'`).

    The graph of a dataset is a line, so on one machine a process for every step would only add start-ups.
    """
    if os.environ.get(EXECUTOR) != "ray":
        return dg.in_process_executor
    from dagster_ray import ray_executor

    names = [name for name in _HANDED_ON if name in os.environ]
    return ray_executor.configured({"ray": {"num_cpus": 1, "env_vars": names}}, name="ray")
