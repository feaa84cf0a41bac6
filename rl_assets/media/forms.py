"""The forms in which people write a medium, and the one into which the contract brings them.

verl 0.9.1 opens ``{"image": path or data URI, …settings}`` and, in a media column, ``{"bytes": …}``; a row
with an item that has `path` or `url` in place of `image` it drops.
"""

from typing import Any
from urllib.parse import unquote

PART_MODALITY = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
}
_INNER_KEYS = ("bytes", "path", "url")


def payload_keys(modality: str) -> tuple[str, ...]:
    """Keys under which an object may hold a medium, the first that is filled counts."""
    return ("bytes", "path", modality, f"{modality}_url", f"input_{modality}", "url", "base64")


def in_verls_form(item: Any, modality: str) -> Any:
    """A medium as verl opens it: an object holds it under its modality, or bytes under `bytes`.

    What else an object says, such as `max_pixels`, stays in it. An item that has this form, or in which no
    medium is found, is returned as it is.
    """
    if type(item) is list and modality == "video":
        frames = [_frame(frame) for frame in item]
        return item if all(one is other for one, other in zip(frames, item, strict=True)) else frames
    if type(item) is not dict:
        return item
    key = next((key for key in payload_keys(modality) if item.get(key) is not None), None)
    if key is None or (key == "bytes" and type(item[key]) is bytes):
        return item
    payload, beside = item[key], {}
    if type(payload) is dict:
        inner = next((key for key in _INNER_KEYS if payload.get(key) is not None), None)
        if inner is None or type(payload[inner]) is dict:
            return item
        beside = {name: value for name, value in payload.items() if name not in _INNER_KEYS}
        payload = payload[inner]
    payload = in_verls_form(payload, modality)
    name = "bytes" if type(payload) is bytes else modality
    if name == key and payload is item[key]:
        return item
    # `path` comes before the modality where a medium is looked for.
    rest = {other: value for other, value in item.items() if other not in (key, name, "bytes", "path")}
    return {name: payload, **beside, **rest}


def _frame(frame: Any) -> Any:
    """A frame of a list: text, where it is an object that says nothing but where the frame is."""
    plain = in_verls_form(frame, "image")
    return plain["image"] if type(plain) is dict and plain.keys() == {"image"} else frame


def path_of(url: str) -> str:
    """The path in a ``file://`` URL; one without a third slash is relative, as trainers take it."""
    return unquote(url[len("file://") :].removeprefix("localhost"))
