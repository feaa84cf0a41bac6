"""Manifests and records: pydantic models as JSON files that carry the version of their layout."""

import json
import logging
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel
from upath import UPath

from rl_assets.base import formats
from rl_assets.base.files import put_aside, write_file
from rl_assets.base.jsontext import to_json
from rl_assets.errors import InputError, first_line

_log = logging.getLogger(__name__)
Model = TypeVar("Model", bound=BaseModel)
# What reading JSON into a model raises for any content at all; a folder may be where a file should be.
_UNREADABLE = (ValueError, TypeError, AttributeError, KeyError, RecursionError, IsADirectoryError)


def write_manifest(target: Path | UPath, manifest: BaseModel) -> None:
    """Write a manifest as JSON, with the version of the layout, in one step."""
    content = {formats.KEY: formats.MANIFEST, **json.loads(manifest.model_dump_json())}
    write_file(target, json.dumps(content, ensure_ascii=False, indent=2).encode())


def read_manifest(kind: type[Model], path: Path | UPath) -> Model:
    """The manifest of a kind that `write_manifest` wrote.

    Raises:
        UnreadableError: it is no such manifest.
        InputError: a newer release wrote it.
        FileNotFoundError: there is none.
    """
    try:
        text = path.read_bytes()
        formats.refuse_newer(str(path), formats.version(json.loads(text)), formats.MANIFEST)
        return kind.model_validate_json(text)
    except InputError:
        raise
    except _UNREADABLE as error:
        raise formats.UnreadableError(
            file=str(path),
            found=f"no manifest that this release reads ({first_line(error)})",
            expected=f"a {kind.__name__} of version {formats.MANIFEST}",
            remedy="Materialise the asset again: it is damaged, or an early release wrote it.",
        ) from error


def require_stored(path: UPath, asset: str) -> UPath:
    """`path`, where the asset `asset` is stored.

    Raises:
        InputError: nothing is there.
    """
    if not path.exists():
        raise InputError(
            file=str(path),
            found="nothing",
            expected=f"the asset {asset}",
            remedy="Materialise it first (Materialize all does it in order).",
        )
    return path


def last_manifest(kind: type[Model], path: Path | UPath) -> Model | None:
    """The manifest of the last build; None where there is none. One that cannot be read is put aside.

    Raises:
        InputError: a newer release wrote it.
    """
    try:
        return read_manifest(kind, path)
    except FileNotFoundError:
        return None
    except formats.UnreadableError as error:
        put_aside(path, error.found)
        return None


def write_record(target: Path | UPath, record: BaseModel) -> None:
    """Write what only saves work, as JSON with the version of the layout, in one step."""
    content = {formats.KEY: formats.RECORD, **json.loads(record.model_dump_json())}
    write_file(target, to_json(content).encode())


def read_record(kind: type[Model], path: Path | UPath) -> Model | None:
    """What `write_record` wrote; None where there is nothing, or nothing that this release reads.

    A damaged one is named in the log and written anew by whoever made it.
    """
    try:
        text = path.read_bytes()
        readable = formats.version(json.loads(text)) == formats.RECORD
        return kind.model_validate_json(text) if readable else None
    except FileNotFoundError:
        return None
    except _UNREADABLE as error:
        _log.warning("%s cannot be read (%s): it is made again", path, first_line(error))
        return None
