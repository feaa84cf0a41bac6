"""What a stage of shards is on paper: references to shards, the manifest that lists them, who goes where.

Light to import: no torch, no Arrow.
"""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rl_assets.base.digests import digest_bytes, digest_json
from rl_assets.errors import InputError

_HEX = re.compile(r"[0-9a-fA-F]+")
_SPREAD = 16

# Shards are read and written under these names, and a manifest is a file like any other: none leads away.
_Name = Annotated[str, Field(pattern=r"^[^./\\][^/\\]*$")]


class ShardRef(BaseModel):
    """A shard as a manifest lists it.

    Attributes:
        name: what the shard is called ("train-0003"); stays the same when its content changes.
        path: name of its folder in the store's.
        digest: digest of its meta.json, which holds the digests of the other two files.
        rows: number of rows.
        bytes: size of its three files.
    """

    model_config = ConfigDict(frozen=True)

    name: _Name
    path: _Name
    digest: str
    rows: int
    bytes: int

    @property
    def split(self) -> str:
        """The split whose rows it holds: the first part of its name, as `shard_name` writes it."""
        return self.name.split("-")[0]


class ShardManifest(BaseModel):
    """The shards of one stage, and what was stamped on them.

    Attributes:
        shards: references, in the order in which the rows are to be read.
        stamps: fingerprints of what the rows were made with, by name.
        recipes: by the shard's name, a digest of what it was collated from, where that is known.
    """

    model_config = ConfigDict(frozen=True)

    shards: list[ShardRef]
    stamps: dict[str, str] = Field(default_factory=dict)
    recipes: dict[str, str] = Field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def digest(self) -> str:
        """Digest of what the shards hold and of their stamps; where they lie does not count."""
        return digest_json({"shards": [[s.name, s.digest] for s in self.shards], "stamps": self.stamps})


def shard_of(uid: str, count: int) -> int:
    """The shard, from 0 to count - 1, of a row: its uid modulo the number of shards.

    A uid of hexadecimal digits is taken as the number it writes; any other is digested first.
    """
    number = uid if _HEX.fullmatch(uid) else digest_bytes(uid.encode())
    return int(number, 16) % count


def shard_name(split: str, uid: str, count: int) -> str:
    """Name of the shard of a split in which a row lies: ``train-00003-of-00008``."""
    return f"{split}-{shard_of(uid, count):05}-of-{count:05}"


def shard_count(uids: Sequence[str], sizes: Sequence[int], *, max_rows: int, max_bytes: int) -> int:
    """The smallest power of two for which no shard exceeds its budget.

    A power of two, because it changes seldom while a dataset grows, and because the shards of half as
    many are then the unions of two.

    Args:
        uids: one per row; equal uids share a shard.
        sizes: bytes per row, as they come.
        max_rows: most rows in a shard.
        max_bytes: most bytes in a shard.

    Raises:
        InputError: the rows of one uid alone exceed the budget, or the uids do not spread (a uid column
            of the user's own whose last digits are all alike).
    """
    rows: dict[str, int] = {}
    weight: dict[str, int] = {}
    for uid, size in zip(uids, sizes, strict=True):
        rows[uid] = rows.get(uid, 0) + 1
        weight[uid] = weight.get(uid, 0) + size
    for uid in rows:
        if rows[uid] > max_rows or weight[uid] > max_bytes:
            raise InputError(
                field="shards",
                found=f"{rows[uid]} rows of {weight[uid]:,} bytes under the uid {uid}",
                expected=f"at most {max_rows:,} rows and {max_bytes:,} bytes in a shard",
                remedy="Raise the shard's budget.",
            )
    least = max(-(-sum(rows.values()) // max_rows), -(-sum(weight.values()) // max_bytes), 1)
    count = 1 << (least - 1).bit_length()
    while count <= least * _SPREAD:
        totals = [[0, 0] for _ in range(count)]
        for uid in rows:
            total = totals[shard_of(uid, count)]
            total[0] += rows[uid]
            total[1] += weight[uid]
        if all(total[0] <= max_rows and total[1] <= max_bytes for total in totals):
            return count
        count *= 2
    raise InputError(
        field="uid",
        found=f"{len(rows):,} uids that fill a few of {count // 2:,} shards and leave the others empty",
        expected="uids that are spread evenly modulo the number of shards",
        remedy="Leave the uid column out, so that uids are made from the rows, or raise the shard's budget.",
    )
