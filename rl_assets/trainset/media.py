"""The media of a training set, written so that a trainer opens them from any folder.

verl 0.9.1 takes an image as bytes (in a media column), as a data URI or as a path; a video as a path, or as a
list of frames, each a data URI or a path; an audio clip as a path. It resolves a relative path against the
folder that it was started in. So images and frames are written with their bytes, or everything by absolute
paths.
"""

import base64
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from upath import UPath

from rl_assets.base.digests import digest_bytes
from rl_assets.base.files import is_local
from rl_assets.base.jsontext import decode
from rl_assets.base.modalities import COLUMN_OF, MEDIA_COLUMNS, PLACEHOLDERS
from rl_assets.base.tables import Table
from rl_assets.errors import InputError
from rl_assets.media.forms import payload_keys
from rl_assets.media.source import MediaSource, Medium
from rl_assets.prompts.messages import build_messages

MediaForm = Literal["bytes", "paths"]
Row = dict[str, Any]

COPIES = "media"
"""Folder beside the files, for media that have bytes and no path, where media are written as paths."""


@dataclass
class MediaWriter:
    """Puts the media of rows into the form in which they are written.

    Attributes:
        source: opens the media of a row.
        form: `bytes` or `paths`.
        uniform: whether all images of media columns have settings of the same names and types, so that the
            column is one of bytes; where they have not it is one of data URIs, which fit any column.
        target: the folder of the training set, in which `paths` names copies of media that have bytes alone.
        folder: where these are written; None writes none.
        dry: media are looked for and not read: what is written is empty.
        num_bytes: bytes of the media that were read.
    """

    source: MediaSource
    form: MediaForm = "bytes"
    uniform: bool = True
    target: Path | UPath = Path()
    folder: Path | None = None
    dry: bool = False
    num_bytes: int = field(default=0, init=False)

    @classmethod
    def of(
        cls,
        rows: Table,
        source: MediaSource,
        form: MediaForm,
        target: Path | UPath,
        folder: Path | None = None,
    ) -> Self:
        """The writer for the media of `rows`.

        Raises:
            InputError: absolute paths are asked for in a store that has none.
        """
        if form == "paths" and not is_local(target):
            raise InputError(
                field="curation.media",
                found=f"`paths`, and the training set is published at {target}",
                expected="a store on a local disk",
                remedy="Write `curation.media: bytes`, or set RL_ASSETS_STORAGE to a folder.",
            )
        shapes = {
            tuple(sorted((name, type(value).__name__) for name, value in settings(item, "image").items()))
            for batch in rows.batches(["images.list.element.item"])
            for item in map(decode, batch.column(0).flatten().field("item").unique().to_pylist())
        }
        return cls(source, form, len(shapes) <= 1, target, folder)

    def dried(self) -> "MediaWriter":
        """The same, which writes nothing but the shape of a row."""
        return replace(self, dry=True)

    def row(self, row: Row, source_file: str) -> Row:
        """A row in verl's schema with media that can be opened from anywhere; one without media as it is.

        In a message whose content is a list of parts verl replaces no placeholder, and it takes every
        `<image>`, `<video>` and `<audio>` of a row with media for one. Where that would break the row, the
        media are written in parts of the messages.

        Args:
            row: as `decode_row` gives it.
            source_file: that it is from, which its paths are relative to.

        Raises:
            InputError: a medium is not there any more, or has no form that can be written.
        """
        if is_text(row):
            return row
        media = {modality: items for modality, name in COLUMN_OF.items() if (items := row.get(name))}
        listed = any(type(message.get("content")) is list for message in row["prompt"])
        try:
            if not listed and not _has_other_marks(row["prompt"], media):
                return row | {
                    COLUMN_OF[modality]: [self._item(modality, item, source_file) for item in items]
                    for modality, items in media.items()
                }
            made = {key: value for key, value in row.items() if key not in MEDIA_COLUMNS}
            messages = build_messages(row, row["prompt"], media)
            return made | {"prompt": [self._message(message, source_file) for message in messages]}
        except (OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                file=source_file,
                field="media",
                found=f"{error} (uid {row['uid']})",
                expected="the medium that the length gate opened",
                remedy="Put it back, or materialise the dataset again from field_contract on.",
            ) from error

    def _message(self, message: dict[str, Any], source_file: str) -> dict[str, Any]:
        content = message.get("content")
        if type(content) is not list:
            return message
        return message | {"content": [self._part(part, source_file) for part in content]}

    def _part(self, part: dict[str, Any], source_file: str) -> dict[str, Any]:
        modality = part.get("type")
        if modality not in COLUMN_OF:
            return part
        made = self._by_text(modality, part, source_file)
        return {"type": modality, modality: made, **settings(part, modality)}

    def _item(self, modality: str, item: Any, source_file: str) -> dict[str, Any]:
        part = {"type": modality, **item} if isinstance(item, dict) else {"type": modality, modality: item}
        own = settings(part, modality)
        if modality == "image" and self.form == "bytes" and self.uniform:
            return {"bytes": self._bytes(self._open(part, source_file)), **own}
        return {modality: self._by_text(modality, part, source_file), **own}

    def _by_text(self, modality: str, part: Mapping[str, Any], source_file: str) -> str | list[str]:
        """A medium as a path or a data URI; a list of frames as a list of these."""
        medium = self._open(part, source_file)
        if self.form == "paths":
            return self._path(medium, modality)
        if modality == "image" and not isinstance(medium, list):
            return self._uri(medium)
        if modality == "video" and isinstance(medium, list):
            return [self._uri(frame) for frame in medium]
        raise InputError(
            file=source_file,
            field=COLUMN_OF[modality],
            found=f"{'a clip' if modality == 'audio' else 'a video'}, which verl opens by its path alone",
            expected="images, lists of frames, or media as paths",
            remedy="Write `curation.media: paths`.",
        )

    def _open(self, part: Mapping[str, Any], source_file: str) -> Medium:
        return self.source.open(part, source_file)

    def _path(self, medium: Medium, modality: str) -> Any:
        if isinstance(medium, list):
            return [self._path(frame, "image") for frame in medium]
        from rl_assets.media.decode import looks_other_elsewhere

        if isinstance(medium, Path) and (modality != "image" or not looks_other_elsewhere(medium)):
            return str(medium)
        data = self._bytes(medium) if modality == "image" else _read(medium)
        name = digest_bytes(data)
        if self.folder and not self.dry and not (copy := self.folder / COPIES / name).exists():
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(data)
        return str(Path(str(self.target)).absolute() / COPIES / name)

    def _uri(self, medium: Medium) -> str:
        if self.dry:
            return ""
        data = self._bytes(medium)
        return f"data:{_mime(data)};base64,{base64.b64encode(data).decode()}"

    def _bytes(self, medium: Medium) -> bytes:
        if self.dry:
            return b""
        data = as_seen(_read(medium))
        self.num_bytes += len(data)
        return data


def is_text(row: Row) -> bool:
    """Whether a row has no media, and no content that is a list of parts.

    It is asked of every row, so it is quick.
    """
    for name in MEDIA_COLUMNS:
        if row.get(name):
            return False
    for message in row["prompt"]:  # noqa: SIM110 (a generator takes most of the time)
        if type(message.get("content")) is list:
            return False
    return True


def _has_other_marks(messages: Sequence[Mapping[str, Any]], media: Collection[str]) -> bool:
    """Whether a text has a mark, such as the tag `<video>`, that is none of the row's media."""
    marks = [mark for modality, mark in PLACEHOLDERS.items() if modality not in media]
    return any(mark in (message.get("content") or "") for message in messages for mark in marks)


def settings(part: Any, modality: str) -> dict[str, Any]:
    """What a media item or part says besides its medium, such as `max_pixels`."""
    if not isinstance(part, dict):
        return {}
    keys = payload_keys(modality)
    inner: dict[str, Any] = next((part[key] for key in keys if isinstance(part.get(key), dict)), {})
    return {
        key: value
        for key, value in {**inner, **part}.items()
        if key not in keys and key != "type" and value is not None
    }


def as_seen(data: bytes) -> bytes:
    """The bytes of an image that every trainer sees as the policy here does: those given, unless a trainer
    would see another picture (it ignores the EXIF orientation, and cuts 16 bits to 8), else a PNG of it."""
    from rl_assets.media.decode import looks_other_elsewhere, read_image

    if not looks_other_elsewhere(io.BytesIO(data)):
        return data
    sink = io.BytesIO()
    read_image(io.BytesIO(data)).save(sink, "PNG")
    return sink.getvalue()


def _mime(data: bytes) -> str:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return Image.MIME.get(image.format or "", "image/png")


def _read(medium: Medium) -> bytes:
    if isinstance(medium, list):
        raise ValueError("a list where one medium is expected")
    return medium.read_bytes() if isinstance(medium, Path) else medium.getvalue()
