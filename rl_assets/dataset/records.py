"""What is noted of every asset once it is built: of what it was made, and a mark of each of its files."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from pydantic import BaseModel, ConfigDict
from upath import UPath

from rl_assets.base import manifests
from rl_assets.base.files import is_local
from rl_assets.base.manifests import write_record
from rl_assets.dataset.dataset import Dataset
from rl_assets.protocol.manifest import ShardManifest

RECORD = ".build.json"
"""Ending of the name of an asset's record."""
_OWN = (".parquet", ".json", ".md")
ADDRESSED = ("proto_shards/", "rollouts/", "media/")
"""Below these, a name or a meta.json says the digest of every file."""
_BESIDE = {"proto_shards": ("media",), "rejected_rows": ("media_files.json",)}


class Record(BaseModel):
    """What is noted of an asset once it is built.

    Attributes:
        recipe: digest of what it was made from; None where that was not known, and never equal then.
        data_version: of what it holds.
        run_id: the run that made it.
        built: when that was, in UTC.
        metadata: of its materialisation, as Dagster writes it.
        files: a mark of every file that it stands for, by path within the dataset's folder.
        digests: of the files among them that no name, and no shard's meta.json, has the digest of.
    """

    model_config = ConfigDict(frozen=True)

    recipe: str | None
    data_version: str
    run_id: str
    built: datetime
    metadata: str
    files: dict[str, str]
    digests: dict[str, str]

    def is_whole(self, dataset: Dataset) -> bool:
        """Whether every file is there, as it was when the record was written."""
        return all(_mark(dataset.storage / name) == mark for name, mark in self.files.items())


def read_record(dataset: Dataset, asset: str) -> Record | None:
    """The record of an asset, or None where there is none or where it does not fit its files any more."""
    record = manifests.read_record(Record, dataset.storage / f"{asset}{RECORD}")
    return record if record and record.is_whole(dataset) else None


def forget(dataset: Dataset, asset: str, files: Iterable[str]) -> None:
    """Take files that were deleted, and that the asset did not need, out of its record.

    Args:
        files: paths within the dataset's folder.
    """
    path, gone = dataset.storage / f"{asset}{RECORD}", set(files)
    if gone and (record := manifests.read_record(Record, path)):
        kept = {name: mark for name, mark in record.files.items() if name not in gone}
        write_record(path, record.model_copy(update={"files": kept}))


def versions(dataset: Dataset, assets: Iterable[str]) -> dict[str, str] | None:
    """Data version of each asset as it lies in the store; None where one is not known."""
    records = {asset: read_record(dataset, asset) for asset in sorted(assets)}
    return None if None in records.values() else {name: r.data_version for name, r in records.items() if r}


def marks(dataset: Dataset, asset: str, value: object) -> Iterator[tuple[str, str]]:
    """The files that an asset stands for, the one of its own name first, each with its mark."""
    storage = dataset.storage
    places = [storage / f"{asset}{suffix}" for suffix in _OWN]
    if isinstance(value, ShardManifest):  # shards of earlier builds lie in its folder as well
        places += [storage / asset / ref.path for ref in value.shards]
    else:
        places.append(storage / asset)
    places += [storage / name for name in _BESIDE.get(asset, ())]
    for place in places:
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if (mark := None if file.is_dir() else _mark(file)) is not None:
                yield file.relative_to(storage).as_posix(), mark


def _mark(file: UPath) -> str | None:
    """What changes when the store writes a file of this name again; None where there is none."""
    try:
        if not is_local(file):
            return file.fs.ukey(file.path)
        found = file.stat()
    except FileNotFoundError:
        return None
    return f"{found.st_size}-{found.st_mtime_ns}"
