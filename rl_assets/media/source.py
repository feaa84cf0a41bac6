"""Where the media of a prompt lie: in the row, in files below the dataset's folder, or in the media store."""

import base64
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rl_assets.base.digests import digest_bytes, digest_file, digest_json
from rl_assets.base.modalities import MEDIA_COLUMNS, MODALITIES
from rl_assets.media.files import MediaReader, MediaRules
from rl_assets.media.forms import path_of, payload_keys
from rl_assets.media.store import MediaStore

Medium = Path | io.BytesIO | list["Medium"]
"""A medium that can be opened: a file, bytes, or (a video) one of these per frame."""


@dataclass(frozen=True)
class MediaSource:
    """Opens what the parts of a prompt refer to. Nothing is fetched from a network.

    Attributes:
        root: the project's top folder, which `source_file` of a row is relative to.
        media_root: folder that media paths are relative to and may not leave; None is the raw file's.
        store: holds the bytes that the rows of a shard refer to by digest; None where rows hold their own.
    """

    root: Path
    media_root: str | None = None
    store: MediaStore | None = None

    def open(self, part: Mapping[str, Any], source_file: str | None) -> Medium:
        """What a media part of a message refers to.

        Raises:
            ValueError: it names nothing that can be opened here.
            InputError: the store lacks it.
        """
        modality = part["type"]
        filled = (part[key] for key in payload_keys(modality) if part.get(key) is not None)
        return self._open(next(filled, None), source_file)

    def _open(self, payload: Any, source_file: str | None) -> Medium:
        if isinstance(payload, bytes):
            return io.BytesIO(payload)
        if isinstance(payload, list):
            return [self._open(frame, source_file) for frame in payload]
        if isinstance(payload, dict):
            if payload.keys() == {"digest"} and self.store is not None:
                return io.BytesIO(self.store.get(payload["digest"]))
            inner = (payload[key] for key in ("bytes", "path", "url") if payload.get(key) is not None)
            payload = next(inner, None)
            if payload is not None:
                return self._open(payload, source_file)
        if not isinstance(payload, str):
            raise ValueError("nothing that can be opened")
        if payload.startswith("data:"):
            return io.BytesIO(base64.b64decode(payload.partition(",")[2], validate=True))
        if payload.startswith("file://"):
            return self._file(path_of(payload), source_file)
        if "://" in payload[:20]:
            scheme = urlsplit(payload).scheme
            raise ValueError(f"a medium under {scheme}, and none is fetched: keep it in a file")
        return self._file(payload, source_file)

    def _file(self, name: str, source_file: str | None) -> Path:
        folder: Path | None = self.root
        if source_file is not None:
            rules = MediaRules(media_root=self.media_root)
            folder = MediaReader.for_file(source_file, rules, self.root).folder
        if folder is None:
            raise ValueError("a path in a remote raw file; set contract.media_root")
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise ValueError("a path that leads out of the media folder")
        if not path.is_file():
            raise FileNotFoundError(f"no file {name}")
        return path


def media_parts(messages: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The media parts of a prompt in order, each with its path in the row (``prompt[0].content[1]``)."""
    for number, message in enumerate(messages):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and part.get("type") in MODALITIES:
                yield f"prompt[{number}].content[{index}]", part


def has_media(row: Mapping[str, Any]) -> bool:
    """Whether a row in verl's schema has media, in its media columns or in the parts of its messages."""
    columns = any(row.get(name) for name in MEDIA_COLUMNS)
    return columns or any(True for _ in media_parts(row["prompt"]))


def media_digest(medium: Medium) -> str:
    """Digest of a medium's bytes, wherever they lie; of a list of frames, a digest of theirs."""
    if isinstance(medium, list):
        return digest_json([media_digest(frame) for frame in medium])
    return digest_file(medium) if isinstance(medium, Path) else digest_bytes(medium.getbuffer())
