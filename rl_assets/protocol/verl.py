"""Our batches as verl's and back. The only module that imports verl, and only when it is used."""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from rl_assets.base.modalities import MODALITIES
from rl_assets.errors import InputError
from rl_assets.media.store import MediaReference, MediaStore, by_reference
from rl_assets.prompts.messages import media_of
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.fields import column
from rl_assets.protocol.values import fresh

if TYPE_CHECKING:
    from PIL.Image import Image


_MESSAGE_COLUMNS = ("raw_prompt", "prompt")


def to_verl(data: DataProto, media: MediaStore | None = None) -> Any:
    """A real `verl.DataProto` of a batch, as verl's own dataset and collate function would have made it.

    What verl writes into a row (its reward managers write into `extra_info`) reaches no other row and not
    `data`, so that a batch converted later still joins with its prompts (`union`).

    Media are what verl makes of them: the bytes stand in their part again, and an image is opened (lazily)
    beside them. `multi_modal_data` is left out: verl reads media from the messages.

    Args:
        data: a batch whose rows were made by `to_item`, or one made of such rows.
        media: where the bytes of the media are; needed when a message refers to any.

    Raises:
        InputError: verl is not installed, or a medium is missing, damaged, or no image.
    """
    verl = _verl()
    columns = {
        key: values.copy() if key in _MESSAGE_COLUMNS else _unshared(values)
        for key, values in data.non_tensor_batch.items()
        if key != "multi_modal_data"
    }
    _rebuild(columns, lambda part: _filled(part, media))
    return verl.DataProto(batch=data.batch, non_tensor_batch=columns, meta_info=dict(data.meta_info))


def from_verl(data: Any, media: MediaStore | None = None) -> DataProto:
    """A batch of a `verl.DataProto`, fit to be stored as a shard.

    Bytes of media go to the store and references take their place. An image that has no bytes beside it is
    stored as PNG. A column of more than one dimension becomes a column of lists.

    Args:
        data: the `verl.DataProto`.
        media: where bytes of media go; needed when a message holds any.

    Raises:
        InputError: a message holds a medium, and there is no store for it.
    """
    columns = {key: column(key, values).copy() for key, values in data.non_tensor_batch.items()}
    _rebuild(columns, lambda part: _emptied(part, media))
    if "raw_prompt" in columns:
        columns["multi_modal_data"] = column("multi_modal_data", map(media_of, columns["raw_prompt"]))
    return DataProto(data.batch, columns, dict(data.meta_info))


def _verl() -> Any:
    try:
        import verl  # type: ignore[import-not-found]
    except ImportError as error:
        raise InputError(
            field="verl",
            found=f"no verl that can be imported ({error})",
            remedy="In an environment of its own (its omegaconf and Dagster want different antlr4 runtimes): "
            "pip install --no-deps verl==0.9.1; pip install torch tensordict transformers datasets ray "
            "omegaconf hydra-core codetiming dill torchdata. There `rl_assets.protocol` and "
            "`rl_assets.protocol.verl` work without Dagster.",
        ) from error
    return verl


def _unshared(values: np.ndarray) -> np.ndarray:
    """A column whose dicts and lists are new."""
    copies = values.copy()
    if copies.dtype == object:
        for row, value in enumerate(values):
            copies[row] = fresh(value)
    return copies


def _rebuild(columns: dict[str, np.ndarray], change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Put `change(part)` in place of every media part; messages that two columns share stay shared."""
    done: dict[int, list[dict[str, Any]]] = {}
    for values in (columns[key] for key in _MESSAGE_COLUMNS if key in columns):
        for row, messages in enumerate(values):
            if isinstance(messages, list) and id(messages) not in done:
                done[id(messages)] = [_with_parts(message, change) for message in messages]
            values[row] = done.get(id(messages), messages)


def _with_parts(message: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    return {**message, "content": [change(part) if _is_media(part) else part for part in content]}


def _is_media(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in MODALITIES


def _filled(part: dict[str, Any], media: MediaStore | None) -> dict[str, Any]:
    """A part with bytes (and an opened image) in place of references, as verl's dataset makes it."""
    modality = part["type"]
    inner: Any = part.get(modality)
    if _is_reference(inner):
        return {**part, modality: _image(_bytes(inner, media), part)}
    if isinstance(inner, dict) and _is_reference(inner.get("bytes")):
        return {**part, modality: {**inner, "bytes": _bytes(inner["bytes"], media)}}
    if not _is_reference(part.get("bytes")):
        return part
    data = _bytes(part["bytes"], media)
    return {**part, "bytes": data, **({"image": _image(data, part)} if modality == "image" else {})}


def _emptied(part: dict[str, Any], media: MediaStore | None) -> dict[str, Any]:
    """The reverse of `_filled`."""
    modality = part["type"]
    inner: Any = part.get(modality)
    if isinstance(part.get("bytes"), bytes):
        kept = {key: value for key, value in part.items() if modality != "image" or key != "image"}
        return by_reference(kept, media)
    if modality == "image" and hasattr(inner, "save"):
        png = io.BytesIO()
        inner.save(png, format="PNG")
        return {**part, "image": by_reference({"bytes": png.getvalue()}, media)["bytes"]}
    return {**part, modality: by_reference(inner, media)} if isinstance(inner, dict) else part


def _is_reference(value: Any) -> TypeGuard[MediaReference]:
    return isinstance(value, dict) and value.keys() == {"digest"}


def _bytes(reference: MediaReference, media: MediaStore | None) -> bytes:
    if media is None:
        raise InputError(
            field="media",
            found=f"a reference to the medium {reference['digest']} and no store to take it from",
            remedy="Give the MediaStore that the shard was made with.",
        )
    return media.get(reference["digest"])


def _image(data: bytes, part: dict[str, Any]) -> "Image":
    """The image of a part, opened; decoded as well where verl would see another picture than the policy."""
    from PIL import Image, UnidentifiedImageError

    from rl_assets.media.decode import looks_other_elsewhere, read_image

    try:
        medium = io.BytesIO(data)
        return read_image(medium) if looks_other_elsewhere(medium) else Image.open(io.BytesIO(data))
    except UnidentifiedImageError as error:
        raise InputError(
            field="raw_prompt",
            found=f"{len(data):,} bytes that are no image ({part.get('path')})",
            remedy="The field contract refuses such rows: take the shard from its assets.",
        ) from error
