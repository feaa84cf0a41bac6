"""A whole defs.yaml: one dataset."""

from pydantic import ConfigDict, Field, model_validator

from rl_assets.spec.checks import ChecksSpec
from rl_assets.spec.common import PARTITION, SpecModel
from rl_assets.spec.contract import ContractSpec
from rl_assets.spec.credentials import REMEDY, find_credentials
from rl_assets.spec.curation import CurationSpec
from rl_assets.spec.data import DataSpec
from rl_assets.spec.limits import Column, Name
from rl_assets.spec.reward import RewardSpec
from rl_assets.spec.rollout import PolicySpec, RolloutSpec, ShardSpec
from rl_assets.spec.schedule import PartitionSpec, ScheduleSpec, SensorSpec
from rl_assets.spec.verl_keys import schema_extra


class DataToRolloutSpec(SpecModel):
    """One dataset: its raw files, its policy, and how its prompts are rolled out."""

    model_config = ConfigDict(json_schema_extra=schema_extra(""))

    dataset: Name
    """Name of the dataset: the first part of its asset keys and the name of its asset group."""

    data: DataSpec
    """verl's `data:` block."""

    contract: ContractSpec = Field(default_factory=ContractSpec)
    """What the field contract accepts, refuses and repairs."""

    policy: PolicySpec
    """The checkpoint that answers the prompts."""

    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    """verl's `actor_rollout_ref.rollout` block."""

    reward: RewardSpec = Field(default_factory=RewardSpec)
    """verl's `reward:` block."""

    curation: CurationSpec = Field(default_factory=CurationSpec)
    """Which prompts the training set takes."""

    shards: ShardSpec = Field(default_factory=ShardSpec)
    """How rows are spread over shards."""

    checks: ChecksSpec = Field(default_factory=ChecksSpec)
    """What the asset checks let pass."""

    partition_by: PartitionSpec | None = None
    """An axis along which the whole dataset is cut, such as a date or a checkpoint; null has none."""

    schedule: ScheduleSpec = Field(default_factory=ScheduleSpec)
    """The nightly rebuild."""

    sensor: SensorSpec = Field(default_factory=SensorSpec)
    """The watch over raw files."""

    previews: bool = True
    """False hides the text of prompts, responses and answers in the UI; its event log is kept and shared."""

    owners: list[Column] = Field([])
    """Owners of the assets: e-mail addresses, or teams as `team:NAME`."""

    description: str | None = None
    """What the dataset is, for the people who see it in the UI."""

    @model_validator(mode="after")
    def _has_no_credentials(self) -> "DataToRolloutSpec":
        hidden = {"reward": {"custom_reward_function": {"reward_kwargs"}}}
        for place in find_credentials(self.model_dump(exclude=hidden)):
            raise ValueError(f"{place} has credentials in its address, and addresses are shown. {REMEDY}")
        return self

    @model_validator(mode="after")
    def _names_its_partition(self) -> "DataToRolloutSpec":
        in_policy = PARTITION in self.policy.path
        named = in_policy or any(PARTITION in path for path in [*self.data.train_paths, *self.data.val_paths])
        if self.partition_by is None:
            if named:
                raise ValueError(f"a path has {PARTITION}, and there is no partition_by to take it from")
        elif self.partition_by.kind == "checkpoint" and not in_policy:
            raise ValueError(f"partition_by is checkpoint, and policy.path has no {PARTITION}")
        elif not named:
            raise ValueError(
                f"partition_by needs {PARTITION} in data.train_files, data.val_files or policy.path: its "
                "partitions would all be the same"
            )
        return self

    def at(self, partition: str) -> "DataToRolloutSpec":
        """What the YAML says of one partition: its key in place of `{partition}`."""

        def fill(path: str) -> str:
            return path.replace(PARTITION, partition)

        data = {
            "train_files": [fill(path) for path in self.data.train_paths],
            "val_files": [fill(path) for path in self.data.val_paths],
        }
        return self.model_copy(
            update={
                "data": self.data.model_copy(update=data),
                "policy": self.policy.model_copy(update={"path": fill(self.policy.path)}),
            }
        )
