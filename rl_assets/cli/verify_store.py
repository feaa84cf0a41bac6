"""Whether a store still holds, byte for byte, what was written there."""

from collections.abc import Iterator
from typing import NamedTuple

from upath import UPath

from rl_assets.base import manifests
from rl_assets.base.digests import digest_file
from rl_assets.base.formats import UnreadableError
from rl_assets.dataset.records import RECORD, Record
from rl_assets.graph.dataset import GraphDataset
from rl_assets.media.store import MediaStore
from rl_assets.protocol.shards import verify_shard

_SHARDED = ("proto_shards/", "rollouts/")


class Damage(NamedTuple):
    """A file or a shard that is not what was written.

    Attributes:
        path: where it is.
        found: what is wrong with it.
    """

    path: UPath
    found: str


class Verified(NamedTuple):
    """What came out for one asset.

    Attributes:
        asset: its name.
        files: how many files it was written as.
        bytes: their size now.
        damaged: those that are not what was written.
    """

    asset: str
    files: int
    bytes: int
    damaged: list[Damage]


def verify(dataset: GraphDataset) -> Iterator[Verified]:
    """Read every file of every asset that was built, and hold it against the digest that was noted.

    The digest of a table or manifest is in the asset's record, that of a medium is its name, and a shard has
    those of its files in its meta.json. Read are the assets of the dataset's partition, where it has any.
    """
    for path in sorted(dataset.storage.glob(f"*{RECORD}"), key=str):
        asset = path.name.removesuffix(RECORD)
        record = manifests.read_record(Record, path)
        if record is None:
            yield Verified(asset, 0, 0, [Damage(path, "no record that this release reads")])
            continue
        files = [dataset.storage / name for name in record.files]
        there = [file for file in files if file.is_file()]
        size = sum(file.stat().st_size for file in there)
        yield Verified(asset, len(files), size, list(_damaged(dataset, record)))


def _damaged(dataset: GraphDataset, record: Record) -> Iterator[Damage]:
    shards = {tuple(name.split("/")[:2]) for name in record.files if name.startswith(_SHARDED)}
    for asset, shard in sorted(shards):
        try:
            verify_shard(dataset.storage / asset, shard)
        except UnreadableError as error:
            yield Damage(dataset.storage / asset / shard, error.found)
    media = MediaStore(dataset.storage / "media")
    for name in record.files:
        path = dataset.storage / name
        try:
            if name.startswith("media/"):
                media.get(path.name)
            elif (digest := record.digests.get(name)) and digest_file(path) != digest:
                yield Damage(path, "other bytes than were written")
        except UnreadableError as error:
            yield Damage(path, error.found)
        except OSError as error:
            yield Damage(path, "nothing" if isinstance(error, FileNotFoundError) else str(error))
