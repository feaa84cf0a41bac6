"""Rollouts shard by shard: what is there already is kept, the rest is generated, on one device or several."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upath import UPath

from rl_assets.base.digests import digest_json
from rl_assets.base.files import is_local
from rl_assets.base.progress import Log
from rl_assets.base.workers.spread import spread
from rl_assets.policy.fingerprint import other_policy, policy_fingerprint
from rl_assets.policy.vocabulary import Vocabulary
from rl_assets.prompts.multimodal import MediaRenderer
from rl_assets.protocol.manifest import ShardManifest, ShardRef
from rl_assets.protocol.shards import find_shard, read_shard, write_shard
from rl_assets.rollout.devices import device_names
from rl_assets.rollout.engine import RolloutStats, generate_rollouts
from rl_assets.rollout.journal import Journal
from rl_assets.rollout.media import with_media, without_media
from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.policy import load_policy


@dataclass(frozen=True)
class RolloutResult:
    """The rollout shards, and what it took to make them.

    Attributes:
        manifest: one rollout shard per prompt shard, in their order; its stamp `policy` is the policy's
            fingerprint.
        stats: of the shards that were not there already, over all devices.
    """

    manifest: ShardManifest
    stats: RolloutStats


@dataclass(frozen=True)
class _Task:
    """A prompt shard to be answered, and the name of the rollout shard that comes of it."""

    shard: ShardRef
    name: str
    place: str
    sampling: SamplingParams


@dataclass(frozen=True)
class _Setup:
    """Loads the policy on a device, and answers shards with it."""

    prompts_root: Path | UPath
    root: Path | UPath
    journal: Path | None
    policy_path: Path | str
    policy_options: Mapping[str, Any]
    fingerprint: str
    vocabulary: Vocabulary
    prompt_length: int
    response_length: int
    max_batch_size: int | None
    media: MediaRenderer | None

    @contextlib.contextmanager
    def __call__(self, device: str, log: Log) -> Iterator[Callable[[_Task], tuple[ShardRef, RolloutStats]]]:
        log(f"rollouts: loading {self.policy_path}")
        with contextlib.ExitStack() as held:
            options = {
                **self.policy_options,
                "device": device,
                "fingerprint": self.fingerprint,
                "vocabulary": self.vocabulary,
            }
            policy = held.enter_context(load_policy(self.policy_path, **options, log=log))
            journal = held.enter_context(Journal(self.journal)) if self.journal else None

            def answer(task: _Task) -> tuple[ShardRef, RolloutStats]:
                log(f"rollouts: {task.place}, {task.shard.rows} prompts × {task.sampling.n}")
                stats = RolloutStats()
                data = generate_rollouts(
                    policy,
                    with_media(read_shard(self.prompts_root, task.shard), self.media, task.shard.name),
                    task.sampling,
                    prompt_length=self.prompt_length,
                    response_length=self.response_length,
                    max_batch_size=self.max_batch_size,
                    log=log,
                    journal=journal,
                    stats=stats,
                )
                return write_shard(self.root, task.name, without_media(data)), stats

            yield answer


def roll_out_shards(
    prompts: ShardManifest,
    prompts_root: Path | UPath,
    root: Path | UPath,
    *,
    policy_path: Path | str,
    policy_options: Mapping[str, Any],
    vocabulary: Vocabulary,
    sampling: Mapping[str, SamplingParams],
    prompt_length: int,
    response_length: int,
    max_batch_size: int | None,
    log: Log,
    media: MediaRenderer | None = None,
    devices: Sequence[str] | None = None,
    fingerprint: str | None = None,
) -> RolloutResult:
    """Answer every prompt of every shard.

    A rollout shard is named after everything that its responses depend on: the digest of its prompt shard,
    the policy's fingerprint, its vocabulary, the sampling parameters, the two lengths and, where the policy
    reads media, how they are processed. One of that name that is there and whole is taken as it is, so a
    rebuild without a change generates nothing and does not load the policy. Where `root` is local, finished
    responses are journalled in its folder ``.journal``, by policy: a run that was killed goes on where it
    stopped, and of a shard that changed only new rows are generated.

    Args:
        prompts: manifest of the prompt shards; their names begin with their split.
        prompts_root: the folder in which they lie.
        root: the folder that receives the rollout shards.
        policy_path: folder or hub id of the policy.
        policy_options: keyword arguments of `load_policy`.
        vocabulary: which tokens end a response, and which are never sampled.
        sampling: how the prompts of each split are answered.
        prompt_length: width of the `prompts` tensor in tokens.
        response_length: width of the `responses` tensor in tokens.
        max_batch_size: most sequences decoded at once; None lets the engine choose.
        log: receives progress lines.
        media: renders prompts with media; None where the policy reads none.
        devices: work on each of them in a process of its own; None takes every CUDA device where the
            policy's device is ``auto``, and else the policy's device.
        fingerprint: the policy that is wanted; None takes the one that is there.

    Raises:
        InputError: the policy does not load, is not the one that is wanted or changes meanwhile, a shard is
            damaged, or media are not what they were when the prompts were measured.
    """
    found = policy_fingerprint(policy_path)
    if fingerprint not in (None, found):
        raise other_policy(policy_path, found, fingerprint)
    fingerprint = found
    processed = {} if media is None else {"media": media.stamp_parts}
    refs: dict[str, ShardRef] = {}
    tasks: list[_Task] = []
    for number, shard in enumerate(prompts.shards, start=1):
        how = sampling[shard.split]
        made_of = {
            "prompts": shard.digest,
            "policy": fingerprint,
            **vocabulary.key,
            "sampling": how.digest,
            "lengths": [prompt_length, response_length],
            **processed,
        }
        name = f"{shard.name}-{digest_json(made_of)[:12]}"
        place = f"shard {number} of {len(prompts.shards)} ({shard.name})"
        if there := find_shard(root, name):
            log(f"rollouts: {place} is up to date")
            refs[shard.name] = there
        else:
            tasks.append(_Task(shard, name, place, how))
    setup = _Setup(
        prompts_root=prompts_root,
        root=root,
        journal=Path(str(root)) / ".journal" / fingerprint if is_local(root) else None,
        policy_path=policy_path,
        policy_options=policy_options,
        fingerprint=fingerprint,
        vocabulary=vocabulary,
        prompt_length=prompt_length,
        response_length=response_length,
        max_batch_size=max_batch_size,
        media=media,
    )
    stats = RolloutStats()
    devices = devices or (device_names(policy_options.get("device", "auto")) if tasks else ())
    for task, (ref, more) in zip(tasks, spread(setup, tasks, devices, log), strict=True):
        refs[task.shard.name] = ref
        stats += more
    manifest = ShardManifest(
        shards=[refs[shard.name] for shard in prompts.shards],
        stamps={**prompts.stamps, "policy": fingerprint},
    )
    return RolloutResult(manifest, stats)
