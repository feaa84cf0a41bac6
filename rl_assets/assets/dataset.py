"""One dataset as its assets see it: keys, places, and the pieces that its YAML describes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from upath import UPath

from rl_assets.assets.display import wide_table
from rl_assets.contract import ContractOptions, RawManifest
from rl_assets.errors import InputError
from rl_assets.protocol.manifest import ShardManifest, ShardRef
from rl_assets.rewards import RewardFunction, ScorePool
from rl_assets.rewards.export import Export
from rl_assets.spec import DataToRolloutSpec
from rl_assets.store import (
    Model,
    Table,
    damage_put_aside,
    digest_json,
    read_manifest,
    require_stored,
    storage_root,
)

if TYPE_CHECKING:
    from rl_assets.prompts import PromptRenderer
    from rl_assets.protocol import DataProto
    from rl_assets.rollout import SamplingParams

PRIVATE = frozenset({"prompt", "response", "solution_str", "ground_truth", "error", "message"})
HIDDEN = "(hidden: previews is false)"


@dataclass(frozen=True)
class Dataset:
    """A dataset's YAML and the project's top folder, against which its relative paths are read.

    Attributes:
        spec: what the YAML says; of a partition, with its key in place of `{partition}`.
        root: the project's top folder.
        partition: key of the partition that it is bound to. A dataset with `partition_by` has a store only
            where it is bound to one.
    """

    spec: DataToRolloutSpec
    root: Path
    partition: str | None = None

    def at(self, partition: str) -> "Dataset":
        """The dataset bound to one of its partitions."""
        return Dataset(self.spec.at(partition), self.root, partition)

    def of(self, context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> "Dataset":
        """The dataset bound to the partition that a step runs for; itself where it has no partitions.

        Raises:
            dagster.Failure: it has partitions, and the run is for none, or for a range of them.
        """
        if self.spec.partition_by is None:
            return self
        if not context.has_partition_key:
            raise dg.Failure(
                description=f"{self.name} has partitions, and this run is not for one of them: launch it for "
                "one (`dg launch --partition KEY`), or as a backfill for several, a run each.",
                allow_retries=False,
            )
        return self.at(context.partition_key)

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.spec.dataset

    @property
    def storage(self) -> UPath:
        """Folder that holds what this dataset's assets wrote, for its partition where it has partitions."""
        folder = storage_root(self.root) / self.name
        if self.spec.partition_by is None:
            return folder
        assert self.partition is not None, f"{self.name} has partitions: bind it with `at` or `of` first"
        return folder / self.partition

    @property
    def partitions(self) -> dg.PartitionsDefinition | None:
        """The partitions that all assets of the dataset share, where it has any."""
        axis = self.spec.partition_by
        if axis is None:
            return None
        if axis.start is not None:
            return dg.DailyPartitionsDefinition(axis.start.isoformat(), timezone=self.spec.schedule.timezone)
        return dg.StaticPartitionsDefinition(axis.values)

    @property
    def policy(self) -> Path | str:
        """The policy's folder where it is one, else the hub id as it stands."""
        folder = self.root / self.spec.policy.path
        return folder if folder.is_dir() or _is_path(self.spec.policy.path) else self.spec.policy.path

    @property
    def contract_options(self) -> ContractOptions:
        """What the field contract needs to know."""
        data, contract = self.spec.data, self.spec.contract.model_dump()
        for name in ("known_data_sources", "known_agent_names"):
            contract[name] = tuple(contract[name])
        return ContractOptions(
            **contract,
            prompt_key=data.prompt_key,
            reward_fn_key=data.reward_fn_key,
            image_key=data.image_key,
            video_key=data.video_key,
            audio_key=data.audio_key,
            custom_scorer=self.reward_function.path is not None,
        )

    @property
    def reward_function(self) -> RewardFunction:
        """The YAML's reward function, or the built-in one; its file is found from the top folder."""
        custom = self.spec.reward.custom_reward_function
        path = custom.path
        if path is not None and "://" not in path:
            path = str(self.root / path)
        return RewardFunction(path, custom.name, custom.reward_kwargs)

    @property
    def score_pool(self) -> ScorePool:
        """How responses are scored."""
        reward = self.spec.reward
        return ScorePool(self.reward_function, reward.compute_score_timeout, reward.num_workers)

    def preview(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> dg.MarkdownMetadataValue:
        """Rows as a table for the UI, without private text where the YAML says `previews: false`."""
        if self.spec.previews:
            return wide_table(rows, columns)
        return wide_table(({**row, **dict.fromkeys(PRIVATE & row.keys(), HIDDEN)} for row in rows), columns)

    def key(self, asset: str) -> dg.AssetKey:
        """Asset key `<dataset>/<asset>`."""
        return dg.AssetKey([self.name, asset])

    def table(self, asset: str) -> Table:
        """The table that the asset stored."""
        return Table(self.storage / f"{asset}.parquet")

    def manifest(self, kind: type[Model], asset: str) -> Model:
        """The manifest that the asset stored.

        Raises:
            InputError: it was never materialised, or is damaged.
        """
        path = self.storage / f"{asset}.json"
        return read_manifest(kind, require_stored(path, f"{self.name}/{asset}"))

    def raw_manifest(self) -> RawManifest:
        """The manifest that `raw_files` stored."""
        return self.manifest(RawManifest, "raw_files")

    def shard_manifest(self, asset: str) -> ShardManifest:
        """The manifest that `proto_shards` or `rollouts` stored."""
        return self.manifest(ShardManifest, asset)

    def export(self) -> Export:
        """The manifest that `verl_dataset` stored."""
        return self.manifest(Export, "verl_dataset")

    def shards(self, asset: str) -> Iterator[tuple[ShardRef, "DataProto"]]:
        """Each shard of `proto_shards` or `rollouts`, its digests verified, one at a time."""
        from rl_assets.protocol import read_shard

        for ref in self.shard_manifest(asset).shards:
            yield ref, read_shard(self.storage / asset, ref)

    def renderer(self) -> "PromptRenderer":
        """The renderer with the policy's tokenizer, the YAML's tools and template arguments."""
        from rl_assets.prompts import PromptRenderer, load_tool_schemas
        from rl_assets.prompts.media_settings import require_patch_size

        data = self.spec.data
        renderer = PromptRenderer.load(
            self.policy,
            tools=load_tool_schemas(self.root / data.tool_config_path) if data.tool_config_path else None,
            template_kwargs=data.apply_chat_template_kwargs,
            mm_processor_kwargs=data.mm_processor_kwargs,
            trust_remote_code=data.trust_remote_code,
            root=self.root,
            media_root=self.spec.contract.media_root,
        )
        if renderer.media:
            require_patch_size(data.image_patch_size, renderer.media.processor)
        return renderer

    def sampling(self, split: str) -> "SamplingParams":
        """How the prompts of `split` are answered: `rollout`, or its `val_kwargs` for validation."""
        from rl_assets.rollout import SamplingParams

        rollout = self.spec.rollout
        how = rollout if split == "train" else rollout.val_kwargs
        return SamplingParams(
            n=how.n,
            do_sample=how.do_sample,
            temperature=how.temperature,
            top_p=how.top_p,
            top_k=how.top_k,
            max_new_tokens=self.spec.data.max_response_length,
            seed=rollout.seed,
            stop=tuple(rollout.stop),
        )

    def responses_per_prompt(self, split: str) -> int:
        """How many responses each prompt of `split` gets."""
        return self.spec.rollout.n if split == "train" else self.spec.rollout.val_kwargs.n

    def describe(self, asset: str, description: str, *kinds: str, reads: Any = None) -> dict[str, Any]:
        """Arguments that every asset definition of this dataset shares.

        Args:
            asset: the asset's name.
            description: what it holds, in Markdown.
            kinds: at most three labels for the graph.
            reads: the part of the YAML that the asset depends on; a change of it changes the code version.
        """
        version = digest_json({"layout": 1, "reads": reads})[:8]
        return {
            "key": self.key(asset),
            "group_name": self.name,
            "description": description,
            "kinds": set(kinds),
            "owners": list(self.spec.owners),
            "code_version": version,
        }

    def depends(self, *assets: str) -> list[dg.AssetKey]:
        """Keys of assets of this dataset, for `deps` of a step that reads them without loading them."""
        return [self.key(asset) for asset in assets]


@contextmanager
def refusals() -> Iterator[None]:
    """Show a user's error as the step's failure: its message, without retries and without our traceback.

    What it finds damaged in the store is put aside.
    """
    try:
        with damage_put_aside():
            yield
    except InputError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None


@contextmanager
def device_retries() -> Iterator[None]:
    """Ask for another try after an error of the accelerator; finished responses are in the journal."""
    import torch

    try:
        yield
    except torch.AcceleratorError as error:
        raise dg.RetryRequested(max_retries=2, seconds_to_wait=30) from error


def _is_path(text: str) -> bool:
    """Whether `text` reads as a path rather than as a hub id (`name` or `owner/name`)."""
    return text.startswith((".", "/", "~")) or text.count("/") > 1
