"""Report the runs that died with the code server as failed, before it starts again.

Runs are processes of the code server. When the machine goes down under them, nobody is left to say so:
Dagster shows them as started, and they keep their place in the queue and the pool until
`max_runtime_seconds`. Once they are reported, `run_retries` in dagster.yaml starts them again.
"""

import logging

import dagster as dg


def fail_lost_runs(instance: dg.DagsterInstance) -> list[str]:
    """Fail every run that is under way, and return their ids. No code server may be running."""
    status = dg.DagsterRunStatus
    under_way = dg.RunsFilter(statuses=[status.STARTING, status.STARTED, status.CANCELING])
    lost = instance.get_runs(under_way)
    for run in lost:
        instance.report_run_failed(run, "The code server, which ran this, was stopped.")
    return [run.run_id for run in lost]


if __name__ == "__main__":
    with dg.DagsterInstance.get() as instance:
        for run_id in fail_lost_runs(instance):
            logging.warning("run %s was lost with the code server", run_id)
