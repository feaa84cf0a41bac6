"""The shard store: a `DataProto` as a folder of three files, named by its content.

meta.json is written last and is the commit mark: it holds the digests of the other two, and its own digest
is the shard's.
"""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from upath import UPath

from rl_assets.base.digests import digest_bytes
from rl_assets.base.files import is_local, named_errors, staging
from rl_assets.base.formats import UnreadableError
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.format import META, ROWS, TENSORS, Rows, pack, parse_meta, unpack
from rl_assets.protocol.manifest import ShardRef
from rl_assets.protocol.verified import DamagedError, FileRecord, VerifiedFile, read_verified

_NAME_DIGITS = 12
_REMEDY = "Materialise the asset that wrote it again; what depends on it does not change."


def write_shard(root: Path | UPath, name: str, data: DataProto) -> ShardRef:
    """Store a batch as `root/<name>-<first digits of its digest>/`.

    A reader sees the whole shard or none: locally the finished folder is renamed into place; on an object
    store meta.json is uploaded last. A shard that is there already and intact is not written again.

    Args:
        root: the store's folder, local or any fsspec URL.
        name: the shard's name, without "/".
        data: rows in the order in which they are to be kept; equal rows in equal order give equal bytes.

    Raises:
        InputError: a value cannot be stored without pickle; the message names its key and row.
        OSError: the disk is full or refuses; what was there before is untouched.
    """
    files = pack(data)
    digest = digest_bytes(files[META])
    path = f"{name}-{digest[:_NAME_DIGITS]}"
    there = _look(root, name, path)
    if there is None:
        _publish(root, path, files)
    size = sum(len(content) for content in files.values())
    return there or ShardRef(name=name, path=path, digest=digest, rows=len(data), bytes=size)


def read_shard(
    root: Path | UPath,
    ref: ShardRef | str,
    *,
    columns: Collection[str] | None = None,
    rows: Rows | None = None,
) -> DataProto:
    """Read a shard, or some of its fields or rows, verifying the digest of every block that is read.

    Args:
        root: the store's folder.
        ref: the shard as its manifest lists it, or its path relative to `root`.
        columns: names of the tensors and columns to read; the others are not touched.
        rows: a slice, or positions in the order wanted; only the parts that hold them are read.

    Raises:
        UnreadableError: the shard is missing, incomplete, or not what was written; the message names it.
        InputError: `columns` names a field that it lacks.
        IndexError: a position that no row has.
    """
    path = ref if isinstance(ref, str) else ref.path
    folder = root / path
    digest = path.rsplit("-", 1)[-1] if isinstance(ref, str) else ref.digest
    whole = columns is None and rows is None

    def open_file(name: str, record: FileRecord) -> BinaryIO:
        if whole:
            return pa.BufferReader(read_verified(folder / name, record))
        return VerifiedFile(folder / name, record)  # type: ignore[return-value]

    try:
        text = (folder / META).read_bytes()
        if not digest_bytes(text).startswith(digest):
            raise DamagedError("a meta.json other than the one that was written")
        meta = parse_meta(text, str(folder))
        return unpack(meta, open_file, columns, rows, place=str(folder))
    except FileNotFoundError as error:
        missing = [name for name in (META, TENSORS, ROWS) if not (folder / name).exists()]
        raise _refusal(folder, f"no {', no '.join(missing)}") from error
    except (DamagedError, OSError) as error:
        raise _refusal(folder, str(error)) from error


def find_shard(root: Path | UPath, name: str) -> ShardRef | None:
    """The shard that was written under `name`, or None where there is none that is whole and intact.

    For names that say already what their content depends on. Locally every byte is verified; on an object
    store meta.json is, and the sizes of the other files.
    """
    pattern = re.compile(re.escape(name) + f"-[0-9a-f]{{{_NAME_DIGITS}}}")
    paths = sorted(folder.name for folder in root.iterdir()) if root.exists() else []
    found = (_look(root, name, path) for path in paths if pattern.fullmatch(path))
    return next(filter(None, found), None)


def verify_shard(root: Path | UPath, path: str) -> None:
    """Read every byte of a shard and hold it against the digests in its name and its meta.json.

    Raises:
        UnreadableError: the shard is missing, incomplete, or not what was written.
    """
    folder = root / path
    try:
        text = (folder / META).read_bytes()
        if not digest_bytes(text).startswith(path.rsplit("-", 1)[-1]):
            raise DamagedError("a meta.json other than the one that was written")
        for file, record in parse_meta(text, str(folder)).files.items():
            read_verified(folder / file, record)
    except (DamagedError, OSError) as error:
        raise _refusal(folder, str(error)) from error


def is_intact(root: Path | UPath, ref: ShardRef) -> bool:
    """Whether the shard is there as it was written; as far as `find_shard` looks."""
    return _look(root, ref.name, ref.path) == ref


def _look(root: Path | UPath, name: str, path: str) -> ShardRef | None:
    """The shard in the folder `path`, unless it is missing, incomplete or damaged."""
    folder = root / path
    try:
        text = (folder / META).read_bytes()
        digest = digest_bytes(text)
        if not path.endswith(digest[:_NAME_DIGITS]):
            return None
        meta = parse_meta(text, str(folder))
        for file, record in meta.files.items():
            if is_local(root):
                read_verified(folder / file, record)
            elif (folder / file).stat().st_size != record.size:
                return None
    except (OSError, DamagedError):
        return None
    size = len(text) + sum(record.size for record in meta.files.values())
    return ShardRef(name=name, path=path, digest=digest, rows=meta.rows, bytes=size)


def _refusal(folder: Path | UPath, found: str) -> UnreadableError:
    return UnreadableError(
        file=str(folder), found=found, expected="the shard that was written there", remedy=_REMEDY
    )


def _publish(root: Path | UPath, path: str, files: Mapping[str, bytes]) -> None:
    if not is_local(root):
        (root / path).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (root / path / name).write_bytes(content)
        return
    target = Path(str(root)) / path
    with staging(root) as stage:
        fresh = stage / "shard"
        fresh.mkdir()
        for name, content in files.items():
            with named_errors(fresh / name):
                (fresh / name).write_bytes(content)
        if target.exists():  # damaged, or it would not be written
            os.rename(target, stage / "damaged")
        try:
            os.rename(fresh, target)
        except OSError:
            if _look(root, "", path) is None:  # else another writer of the same content was faster
                raise
