"""When a dataset is rebuilt, and when what it holds is too old: schedule, sensor and freshness."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import islice, pairwise

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition as Job
from dagster._utils.schedules import cron_string_iterator
from pydantic import BaseModel, TypeAdapter

from rl_assets.contract.files.watch import Sighting, look
from rl_assets.errors import InputError
from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.history import last_materialization
from rl_assets.spec.schedule import ScheduleSpec

DELIVERED = frozenset({"reward_inputs", "reward_scores", "verl_dataset"})
"""The assets that are read outside the graph: the ones that must not be old."""

_TICKS = 400
_NEW_YEAR = 1704067200.0  # 2024-01-01: the same cron gives the same policy on every load


def automate(dataset: GraphDataset, job: Job, defs: dg.Definitions) -> dg.Definitions:
    """The dataset's definitions with its freshness policy, its schedule and its sensor.

    Args:
        dataset: the dataset.
        job: the job that rebuilds it.
        defs: its assets and checks.
    """
    return dg.Definitions.merge(
        _with_freshness(dataset, defs),
        dg.Definitions(jobs=[job], schedules=[_nightly(dataset, job)], sensors=[_new_files(dataset, job)]),
    )


def max_age(schedule: ScheduleSpec) -> timedelta | None:
    """The age at which what a rebuild delivers is too old, or None where it never is.

    Where the YAML does not say, this is one and a half times the longest time between two ticks of `cron`:
    a rebuild may take until halfway to the next one. A schedule that is switched off promises nothing.
    """
    if schedule.max_age_hours is not None:
        return timedelta(hours=schedule.max_age_hours)
    if not schedule.enabled:
        return None
    ticks = islice(cron_string_iterator(_NEW_YEAR, schedule.cron, schedule.timezone), _TICKS)
    return 1.5 * max(after - before for before, after in pairwise(ticks))


def _with_freshness(dataset: GraphDataset, defs: dg.Definitions) -> dg.Definitions:
    age = max_age(dataset.spec.schedule)
    if age is None:
        return defs
    policy = dg.FreshnessPolicy.time_window(fail_window=age)
    return defs.map_asset_specs(
        func=lambda spec: (
            spec.replace_attributes(freshness_policy=policy) if spec.key.path[-1] in DELIVERED else spec
        )
    )


def _nightly(dataset: GraphDataset, job: Job) -> dg.ScheduleDefinition:
    schedule = dataset.spec.schedule
    status = dg.DefaultScheduleStatus

    @dg.schedule(
        name=f"{dataset.name}_nightly",
        job=job,
        cron_schedule=schedule.cron,
        execution_timezone=schedule.timezone,
        default_status=status.RUNNING if schedule.enabled else status.STOPPED,
        description=f"Runs {job.name} at {schedule.cron} ({schedule.timezone}).",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        partitions = dataset.partitions
        if partitions is None:
            return [dg.RunRequest()]
        keys = list(partitions.get_partition_keys(context.scheduled_execution_time))
        if isinstance(partitions, dg.TimeWindowPartitionsDefinition):
            keys = keys[-1:]  # the days before have been built, or are built again by hand
        if not keys:
            return dg.SkipReason("no day is over yet")
        return [dg.RunRequest(key, partition_key=key) for key in keys]

    return nightly


class _Memory(BaseModel):
    """The last look at a partition's files, and the contents that were built or asked for last."""

    seen: Sighting = Sighting()
    settled: str = ""


_CURSOR = TypeAdapter(dict[str, _Memory])  # by partition; "" where there are none


def _new_files(dataset: GraphDataset, job: Job) -> dg.SensorDefinition:
    settings = dataset.spec.sensor
    status = dg.DefaultSensorStatus

    @dg.sensor(
        name=f"{dataset.name}_new_files",
        job=job,
        minimum_interval_seconds=settings.minimum_interval_seconds,
        default_status=status.RUNNING if settings.enabled else status.STOPPED,
        description=f"Runs {job.name} when a raw file is new, changed or gone.",
    )
    def new_files(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        memories = _CURSOR.validate_json(context.cursor or "{}")
        requests, reasons = [], []
        partitions = dataset.partitions
        keys = partitions.get_partition_keys() if partitions else [None]
        for part in [dataset if key is None else dataset.at(key) for key in keys]:
            name = part.partition or ""
            try:
                memories[name], decision = _decide(part, context.instance, memories.get(name, _Memory()))
            except InputError as error:
                decision = str(error)
            if isinstance(decision, str):
                reasons.append(f"{name}: {decision}" if name else decision)
            else:
                requests.append(decision)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else _some(reasons, "; "),
            cursor=_CURSOR.dump_json(memories).decode(),
        )

    return new_files


def _decide(
    dataset: GraphDataset, instance: dg.DagsterInstance, memory: _Memory
) -> tuple[_Memory, dg.RunRequest | str]:
    """What the next look must know, and the run that this one asks for, or why it asks for none."""
    data = dataset.spec.data
    now = look(
        data.train_paths,
        data.val_paths,
        root=dataset.root,
        before=memory.seen,
        follow_links=data.follow_links,
    )
    if now.unsettled:
        changed = _some(now.unsettled, ", ")
        return _Memory(seen=now, settled=memory.settled), f"{now}; the next look decides on {changed}"
    run_id, version = _last_read(dataset, instance)
    if now.digest in (memory.settled, version):
        return _Memory(seen=now, settled=now.digest), f"{now}, as before"
    # The run that read the files last is part of the key: contents that come back are a change again.
    run_key = "-".join(filter(None, [dataset.partition, now.digest, "after", run_id or "nothing"]))
    request = dg.RunRequest(run_key, partition_key=dataset.partition)
    return _Memory(seen=now, settled=now.digest), request


def _last_read(dataset: GraphDataset, instance: dg.DagsterInstance) -> tuple[str | None, str | None]:
    """The run that materialised `raw_files` last, and the digest of what it found."""
    record = last_materialization(dataset, "raw_files", instance)
    if record is None:
        return None, None
    materialization = record.asset_materialization
    tags = (materialization.tags if materialization else None) or {}
    return record.run_id, tags.get("dagster/data_version")


def _some(parts: Sequence[str], separator: str) -> str:
    return separator.join([*parts[:5], *(["…"] if len(parts) > 5 else [])])
