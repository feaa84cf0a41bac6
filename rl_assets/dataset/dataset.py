"""One dataset: where its assets are stored, and the pieces that its YAML describes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from upath import UPath

from rl_assets.base.files import storage_root
from rl_assets.base.manifests import Model, read_manifest, require_stored
from rl_assets.base.tables import Table
from rl_assets.contract.files.manifest import RawManifest
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.protocol.manifest import ShardManifest, ShardRef
from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.pool import ScorePool
from rl_assets.spec.dataset import DataToRolloutSpec
from rl_assets.trainset.export import Export

if TYPE_CHECKING:
    from rl_assets.prompts.render import PromptRenderer
    from rl_assets.protocol.dataproto import DataProto
    from rl_assets.rollout.params import SamplingParams
    from rl_assets.trainset.media import MediaWriter
    from rl_assets.trainset.unread import Trainers

ASSETS = (
    "raw_files",
    "rejected_rows",
    "field_contract",
    "unrenderable_rows",
    "overlong_rows",
    "length_filtered",
    "proto_shards",
    "rollouts",
    "reward_inputs",
    "reward_scores",
    "prompt_difficulty",
    "verl_dataset",
    "build_report",
)
"""What becomes of a dataset's raw files, in the order in which a run makes it. A step stores its rejects
before its result, so that they are there where a check on them stops the run."""


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

    def at(self, partition: str) -> Self:
        """The dataset bound to one of its partitions."""
        return replace(self, spec=self.spec.at(partition), partition=partition)

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
        assert self.partition is not None, f"{self.name} has partitions: bind it with `at` first"
        return folder / self.partition

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

    @property
    def trainers(self) -> "Trainers":
        """Who reads the training files."""
        from rl_assets.trainset.unread import Trainers

        data, curation = self.spec.data, self.spec.curation
        settings = {
            "tools": data.tool_config_path,
            "chat_template_kwargs": data.apply_chat_template_kwargs or None,
        }
        stops = self.spec.checks.severities.get("trainers_read_rows") != "warn"
        return Trainers(curation.forms, curation.media, settings, stops)

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
        from rl_assets.protocol.shards import read_shard

        for ref in self.shard_manifest(asset).shards:
            yield ref, read_shard(self.storage / asset, ref)

    def renderer(self) -> "PromptRenderer":
        """The renderer with the policy's tokenizer, the YAML's tools and template arguments."""
        from rl_assets.media.settings import require_patch_size
        from rl_assets.prompts.render import PromptRenderer
        from rl_assets.prompts.tools import load_tool_schemas

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
        from rl_assets.rollout.params import SamplingParams

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

    def media_writer(self, rows: Table, folder: Path | None = None) -> "MediaWriter":
        """What writes the media of `rows` as the YAML asks for; copies go to `folder`."""
        from rl_assets.media.source import MediaSource
        from rl_assets.trainset.media import MediaWriter

        source = MediaSource(self.root, self.spec.contract.media_root)
        return MediaWriter.of(rows, source, self.spec.curation.media, self.storage / "verl_dataset", folder)

    def responses_per_prompt(self, split: str) -> int:
        """How many responses each prompt of `split` gets."""
        return self.spec.rollout.n if split == "train" else self.spec.rollout.val_kwargs.n


def _is_path(text: str) -> bool:
    """Whether `text` reads as a path rather than as a hub id (`name` or `owner/name`)."""
    return text.startswith((".", "/", "~")) or text.count("/") > 1
