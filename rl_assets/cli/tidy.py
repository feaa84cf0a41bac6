"""What a dataset's store holds and nothing needs any more."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
from upath import UPath

from rl_assets.base.files import DAMAGED, is_abandoned, is_local, is_locked, storage_root
from rl_assets.dataset.records import forget
from rl_assets.errors import InputError
from rl_assets.graph.dataset import GraphDataset
from rl_assets.protocol.manifest import ShardManifest

SHARDED = ("proto_shards", "rollouts")
MEDIUM = "medium"
_IN_PROGRESS = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


@dataclass(frozen=True)
class Garbage:
    """A folder or file that can go.

    Attributes:
        kind: what it is, in a word or two.
        path: where it lies.
        bytes: of all files in it.
    """

    kind: str
    path: UPath
    bytes: int


def find_garbage(dataset: GraphDataset) -> list[Garbage]:
    """What no asset of the dataset refers to, as its store is now (of one partition, where it has any).

    Kept is everything that the manifests of `proto_shards` and `rollouts` list, and the media in it. Kept is
    also what is younger than the manifest: a run that was killed goes on from there. Without a manifest, or
    where the clock was set back since it was written, nothing of an asset is garbage.

    Raises:
        InputError: a shard that is listed is missing or damaged.
    """
    storage = dataset.storage
    manifests = {
        name: dataset.shard_manifest(name) for name in SHARDED if (storage / f"{name}.json").exists()
    }
    found = [Garbage("unfinished file", path, _size(path)) for path in _leftovers(storage)]
    found += [Garbage("damaged file", path, _size(path)) for path in _damaged(storage)]
    for name, manifest in manifests.items():
        written = _written(storage / f"{name}.json")
        live = {ref.path for ref in manifest.shards}
        kind = "rollout shard" if name == "rollouts" else "prompt shard"
        found += [
            Garbage(kind, path, _size(path))
            for path in _entries(storage / name)
            if path.name not in live and not path.name.startswith(".") and _modified(path) < written
        ]
    if "rollouts" in manifests:
        written = _written(storage / "rollouts.json")
        policy = manifests["rollouts"].stamps["policy"]
        found += [
            Garbage("journal of another policy", path, _size(path))
            for path in _entries(storage / "rollouts/.journal")
            if path.name != policy and _modified(path) < written and not _is_held(path)
        ]
    if "proto_shards" in manifests and (storage / "media").exists():
        written = _written(storage / "proto_shards.json")
        live = _media(dataset, manifests)
        found += [
            Garbage(MEDIUM, path, _size(path))
            for folder in _entries(storage / "media")
            for path in _entries(folder)
            if path.name not in live and _modified(path) < written
        ]
    return found


def delete(dataset: GraphDataset, garbage: Iterable[Garbage]) -> None:
    """Delete what was found in the dataset's store."""
    media = []
    for item in garbage:
        item.path.fs.rm(item.path.path, recursive=True)
        if item.kind == MEDIUM:
            media.append(item.path.relative_to(dataset.storage).as_posix())
    forget(dataset, "proto_shards", media)


def unknown_folders(datasets: Iterable[GraphDataset]) -> list[UPath]:
    """Folders of the store that belong to no dataset of the project; nothing of them is garbage."""
    datasets = list(datasets)
    names = {dataset.name for dataset in datasets}
    roots = {str(storage_root(dataset.root)): storage_root(dataset.root) for dataset in datasets}
    return [
        path
        for root in roots.values()
        for path in _entries(root)
        if path.is_dir() and path.name not in names and not path.name.startswith(".")
    ]


def require_no_run(dataset: GraphDataset, history: dg.DagsterInstance) -> None:
    """Refuse while a run of the dataset is queued or in progress.

    Raises:
        InputError: there is one.
    """
    for record in history.get_run_records(dg.RunsFilter(statuses=_IN_PROGRESS)):
        run = record.dagster_run
        keys = run.asset_selection
        theirs = any(key.path[0] == dataset.name for key in keys) if keys else _may_run(dataset, run.job_name)
        if theirs:
            raise InputError(
                field=dataset.name,
                found=f"run {run.run_id[:8]} of {run.job_name}, {run.status.value.lower()}",
                expected="no run of the dataset in progress",
                remedy="Wait for its end. One that was killed is shown as started until the UI's daemon sees "
                "that its process is gone, or until you terminate it in the UI.",
            )


def _may_run(dataset: GraphDataset, job: str) -> bool:
    """Whether a run of a whole job touches the dataset: of every dataset only its own job does not."""
    return not job.endswith("_rebuild") or job == f"{dataset.name}_rebuild"


def _leftovers(storage: UPath) -> Iterator[UPath]:
    """Staging folders and half-published files of runs that were killed; nothing of a living process."""
    for folder in (storage, *(storage / name for name in SHARDED)):
        yield from (path for path in _entries(folder / ".staging") if _is_abandoned(path))
        yield from (
            path
            for path in _entries(folder)
            if path.name.startswith(".") and path.name.endswith(".tmp") and _is_old(path)
        )


def _damaged(storage: UPath) -> Iterator[UPath]:
    """What was put aside beside the assets; a damaged shard goes as one that is not used."""
    return (path for path in _entries(storage) if path.name.endswith(DAMAGED))


def _is_abandoned(folder: UPath) -> bool:
    return is_local(folder) and is_abandoned(Path(str(folder)))


def _is_held(journal: UPath) -> bool:
    """Whether a living process writes one of the journal's files."""
    return is_local(journal) and any(is_locked(file) for file in Path(str(journal)).glob("*.lock"))


def _is_old(path: UPath) -> bool:
    """Whether a half-published file is an hour old: a copy that goes on writes to it."""
    return _modified(path) < time.time() - 3600


def _media(dataset: GraphDataset, manifests: dict[str, ShardManifest]) -> set[str]:
    """Digests of the media that rows of live shards refer to."""
    return {
        digest
        for name in manifests
        for _, data in dataset.shards(name)
        for values in data.non_tensor_batch.values()
        for value in values
        for digest in _references(value)
    }


def _references(value: Any) -> Iterator[str]:
    """Every digest in a value: a medium's bytes are kept as `{"digest": …}` in a shard."""
    if isinstance(value, dict):
        if isinstance(value.get("digest"), str):
            yield value["digest"]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _references(inner)


def _entries(folder: UPath) -> list[UPath]:
    return sorted(folder.iterdir(), key=str) if folder.exists() else []


def _files(path: UPath) -> Iterator[UPath]:
    if path.is_dir():
        yield from (file for file in path.rglob("*") if not file.is_dir())
    else:
        yield path


def _size(path: UPath) -> int:
    return sum(file.stat().st_size for file in _files(path))


def _written(manifest: UPath) -> float:
    """When a manifest was written, in seconds; 0 where that is to come: then no time tells what is older."""
    written = _modified(manifest)
    return written if written <= time.time() else 0.0


def _modified(path: UPath) -> float:
    """When the newest file in it was written, in seconds."""
    times = (
        file.stat().st_mtime if is_local(file) else file.fs.modified(file.path).timestamp()
        for file in _files(path)
    )
    return max(times, default=0.0)
