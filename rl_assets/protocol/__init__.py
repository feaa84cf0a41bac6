"""The batch type, collating rows into it, and the store that keeps it as shards.

torch and tensordict are imported when a name that needs them is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rl_assets.protocol.manifest import ShardManifest, ShardRef, shard_count, shard_name, shard_of
from rl_assets.protocol.media import MediaReference, MediaStore

if TYPE_CHECKING:
    from rl_assets.protocol.collate import collate_fn
    from rl_assets.protocol.dataproto import (
        DataProto,
        DataProtoItem,
        pad_dataproto_to_divisor,
        unpad_dataproto,
    )
    from rl_assets.protocol.fields import MismatchError
    from rl_assets.protocol.item import to_item
    from rl_assets.protocol.shards import find_shard, is_intact, read_shard, write_shard

_HOMES = {
    "DataProto": "dataproto",
    "DataProtoItem": "dataproto",
    "MismatchError": "fields",
    "collate_fn": "collate",
    "find_shard": "shards",
    "is_intact": "shards",
    "pad_dataproto_to_divisor": "dataproto",
    "read_shard": "shards",
    "to_item": "item",
    "unpad_dataproto": "dataproto",
    "write_shard": "shards",
}

__all__ = [
    "DataProto",
    "DataProtoItem",
    "MediaReference",
    "MediaStore",
    "MismatchError",
    "ShardManifest",
    "ShardRef",
    "collate_fn",
    "find_shard",
    "is_intact",
    "pad_dataproto_to_divisor",
    "read_shard",
    "shard_count",
    "shard_name",
    "shard_of",
    "to_item",
    "unpad_dataproto",
    "write_shard",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"rl_assets.protocol.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
