"""What verl 0.9.1 makes of a row of a training set: its messages, how it opens media, and its length filter.

verl drops a row without a word where its filter fails (`RLHFDataset.maybe_filter_out_long_prompts`): where
placeholders and media do not match, a medium cannot be opened, or the template or the processor raises. The
same steps are done here, so that such a row is known before a trainer meets it.
"""

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_assets.base.modalities import COLUMN_OF
from rl_assets.media.decode import FRAMES_PER_SECOND
from rl_assets.media.settings import FRAME_SETTINGS, is_read_by_verl
from rl_assets.media.source import MediaSource, Medium
from rl_assets.prompts.rendered import Rendered

if TYPE_CHECKING:
    from rl_assets.prompts.render import PromptRenderer

Messages = list[dict[str, Any]]

_PLACEHOLDER = re.compile("(<image>|<video>|<audio>)")
_VISION_KEYS = frozenset({"image", "image_url", "video"})
_VISION_TYPES = frozenset({"image", "image_url", "video"})


class DroppedError(ValueError):
    """A row that verl's filter drops, or at which verl stops, and why."""


class VerlReader:
    """Measures rows of a training set as verl's filter does.

    Attributes:
        renderer: of the policy, with the tools and template arguments that verl is given too.
    """

    def __init__(self, renderer: "PromptRenderer") -> None:
        self.renderer = renderer
        self._media, self._without = None, "the policy has no processor"
        if renderer.media:
            if is_read_by_verl(processor := renderer.media.processor):
                self._media = renderer.media.opening(VerlSource(Path()))
            else:
                self._without = f"verl does not load the policy's {type(processor).__name__}"

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> list[int | DroppedError]:
        """The length of every row's prompt in tokens, or why verl drops the row whatever its length.

        Args:
            rows: as `datasets` gives them: `prompt`, `images`, `videos`, `audios`; verl looks at no more.
        """
        found: list[int | DroppedError] = [0] * len(rows)
        texts: dict[int, Messages] = {}
        media: dict[int, Messages] = {}
        for index, row in enumerate(rows):
            try:
                messages = self._messages(row)
                (media if has_media_parts(messages) else texts)[index] = messages
            except DroppedError as error:
                found[index] = error
        rendered = dict(zip(texts, self.renderer.render(list(texts.values())), strict=True))
        if self._media:
            opened = self._media.render([{"raw_prompt": messages} for messages in media.values()])
            rendered |= zip(media, opened, strict=True)
        for index, one in rendered.items():
            found[index] = _length(one)
        return found

    def _messages(self, row: Mapping[str, Any]) -> Messages:
        """The row's messages with media in place of placeholders, as verl's `_build_messages` makes them."""
        media = {modality: row.get(name) or [] for modality, name in COLUMN_OF.items()}
        messages = row["prompt"]
        if self._media is None and (any(media.values()) or has_media_parts(messages)):
            raise DroppedError(f"media, and {self._without}")
        if any(media.values()):
            left = {modality: iter(items) for modality, items in media.items()}
            messages = [_placed(message, left) for message in messages]
            for modality, items in left.items():
                if more := sum(1 for _ in items):
                    raise DroppedError(f"{more} more {modality}s than placeholders in texts of the prompt")
        if has_media_parts(messages):
            if any("content" not in message for message in messages):
                raise DroppedError("media, and a message without `content`")
            for part in _parts(messages):
                _require_openable(part)
            messages = [_with_rates(message) for message in messages]
        return messages


@dataclass(frozen=True)
class VerlSource(MediaSource):
    """Opens media as verl and qwen-vl-utils do: no folder but the one that verl is started in, no network."""

    def open(self, part: Mapping[str, Any], source_file: str | None) -> Medium:
        """What a media part holds; an image is decoded to its last pixel.

        Raises:
            ValueError: verl cannot open it, or opens it only in one folder.
            OSError: there is no such file, or it is no image.
        """
        kind = part["type"]
        if kind == "image":
            return _image(part["image"] if "image" in part else part["image_url"])
        payload = part.get(kind)
        if kind == "video" and isinstance(payload, list):
            return [_image(frame) for frame in payload]
        if not isinstance(payload, str):
            raise ValueError(f"a {kind} that is no path")
        return _file(payload)


def has_media_parts(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a message has a part of an image, a video or an audio clip."""
    return any(part.get("type") in COLUMN_OF for part in _parts(messages))


def _parts(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for message in messages:
        content = message.get("content")
        yield from (part for part in (content if isinstance(content, list) else ()) if isinstance(part, dict))


def _placed(message: Mapping[str, Any], left: Mapping[str, Iterator[Any]]) -> dict[str, Any]:
    """The message with the next media in place of the placeholders of a content that is text."""
    if "content" not in message:
        raise DroppedError("media, and a message without `content`")
    content = message["content"]
    if not isinstance(content, str):
        return dict(message)
    return {
        **message,
        "content": [
            _medium(segment[1:-1], left)
            if _PLACEHOLDER.fullmatch(segment)
            else {"type": "text", "text": segment}
            for segment in _PLACEHOLDER.split(content)
            if segment
        ],
    }


def _medium(modality: str, left: Mapping[str, Iterator[Any]]) -> dict[str, Any]:
    item = next(left[modality], None)
    if item is None:
        raise DroppedError(f"more placeholders of {modality}s than {modality}s")
    if isinstance(item, dict):
        if modality == "audio" and not {"audio", "audio_url"} & item.keys():
            return {"type": "audio", "audio": item}
        part = {"type": modality, **item}
        if modality == "image" and "bytes" in item:
            part["image"] = item["bytes"] or b""
        return part
    if isinstance(item, str) or (isinstance(item, list) and modality != "image"):
        return {"type": modality, modality: item}
    raise DroppedError(f"a {modality} that is {type(item).__name__}")


def _require_openable(part: Mapping[str, Any]) -> None:
    """Refuse what qwen-vl-utils raises on before it opens anything."""
    kind = part.get("type", "text")
    if kind not in _VISION_TYPES and not _VISION_KEYS & part.keys():
        return
    if {"image", "image_url"} & part.keys():
        payload = part["image"] if "image" in part else part["image_url"]
        if not isinstance(payload, str | bytes):
            raise DroppedError(f"an image that is {type(payload).__name__}")
    elif "video" not in part:
        raise DroppedError(f"a part of type {kind} without `image` or `video`")
    elif not isinstance(part["video"], str | list):
        raise DroppedError(f"a video that is {type(part['video']).__name__}")
    size = [part[name] for name in ("resized_height", "resized_width") if name in part]
    if len(size) == 2 and None in size:
        raise DroppedError("a size that is null")


def _with_rates(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the frame rate of qwen-vl-utils on each video that names none, whatever
    `data.mm_processor_kwargs` says; a list of frames is taken whole."""
    content = message.get("content")
    return (
        message | {"content": [_with_rate(part) for part in content]}
        if isinstance(content, list)
        else message
    )


def _with_rate(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "video":
        return part
    if isinstance(part.get("video"), list):
        return {name: value for name, value in part.items() if name not in FRAME_SETTINGS}
    named = {name: value for name, value in part.items() if value is not None}
    return named if "nframes" in named else {"fps": FRAMES_PER_SECOND, **named}


def _image(payload: Any) -> Medium:
    from PIL import Image

    if isinstance(payload, bytes):
        medium: Path | io.BytesIO = io.BytesIO(payload)
    elif not isinstance(payload, str):
        raise ValueError(f"an image that is {type(payload).__name__}")
    elif payload.startswith("data:image"):
        head, found, text = payload.partition("base64,")
        if not found:
            raise ValueError(f"a data URI that is not base64 ({head[:40]})")
        medium = io.BytesIO(base64.b64decode(text))
    else:
        medium = _file(payload)
    with Image.open(medium) as image:
        image.load()
    return medium


def _file(text: str) -> Path:
    if text.startswith(("http://", "https://")):
        raise ValueError("a medium on another host")
    path = Path(text[7:] if text.startswith("file://") else text)
    if not path.is_absolute():
        raise ValueError("a path that is not absolute: verl looks for it in the folder that it is started in")
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    return path


def _length(rendered: Rendered) -> int | DroppedError:
    if rendered.ids is not None:
        return len(rendered.ids)
    return DroppedError(rendered.error or "")
