"""The blocks `schedule`, `sensor` and `partition_by`: when a dataset is rebuilt."""

from datetime import date
from typing import Annotated, Literal
from zoneinfo import available_timezones

from pydantic import Field, field_validator, model_validator

from rl_assets.spec.common import PartitionKey, SpecModel
from rl_assets.spec.cron import never_runs
from rl_assets.spec.limits import Hours


class ScheduleSpec(SpecModel):
    """When the dataset is rebuilt."""

    cron: str = Field("0 2 * * *", pattern=r"^\s*(\S+\s+){4}\S+\s*$")
    """Cron expression of five fields."""

    timezone: str = "UTC"
    """IANA name of the time zone in which `cron` is read."""

    enabled: bool = True
    """True runs the schedule as soon as a daemon serves the project; false waits to be switched on."""

    max_age_hours: Hours | None = None
    """Age at which `reward_inputs`, `reward_scores` and `verl_dataset` fail their freshness policy; null is
    one and a half times the longest time between two runs of `cron`, and no age where `enabled` is false."""

    @field_validator("cron")
    @classmethod
    def _runs(cls, value: str) -> str:
        if problem := never_runs(value):
            raise ValueError(problem)
        return value

    @field_validator("timezone")
    @classmethod
    def _is_timezone(cls, value: str) -> str:
        if value not in available_timezones():
            raise ValueError(f"{value!r} is not an IANA time zone, such as UTC or Europe/Berlin")
        return value


class SensorSpec(SpecModel):
    """Whether raw files are watched between two runs of the schedule."""

    enabled: bool = False
    """True rebuilds the dataset when a raw file is new, changed or gone; false waits to be switched on."""

    minimum_interval_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    """Seconds between two looks. A change is acted on when two looks in a row see the same files, so that
    no half-written file is read. A look reads sizes and times, and the bytes of what changed."""


class PartitionSpec(SpecModel):
    """An axis along which the whole dataset is cut. Each part is a dataset of its own, with its own raw files
    or its own policy: in `data.train_files`, `data.val_files` and `policy.path`, `{partition}` is replaced by
    its key."""

    kind: Literal["date", "static", "checkpoint"]
    """`date`: one partition per day, its key like 2026-01-31; a day is built once it is over. `static`: the
    `values`. `checkpoint`: the `values` too, which `policy.path` must name."""

    start: date | None = None
    """First day, where `kind` is `date`. Days begin and end in `schedule.timezone`."""

    values: list[PartitionKey] = Field([])
    """Keys of the partitions, where `kind` is `static` or `checkpoint`."""

    @model_validator(mode="after")
    def _is_axis(self) -> "PartitionSpec":
        if (self.kind == "date") != (self.start is not None) or (self.kind == "date") == bool(self.values):
            raise ValueError("partition_by takes `start` where kind is date, and `values` otherwise")
        if twice := sorted({value for value in self.values if self.values.count(value) > 1}):
            raise ValueError(f"partition_by.values has {', '.join(twice)} more than once")
        return self
