"""The media of prompts at rollout: made of what the shard refers to, one prompt at a time, and not kept."""

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from rl_assets.errors import InputError
from rl_assets.prompts.media_source import has_media
from rl_assets.prompts.multimodal import MediaRenderer
from rl_assets.protocol import DataProto
from rl_assets.protocol.fields import column

COLUMN = "multi_modal_inputs"
# Tensors of at most this many elements are remembered: grids, not pixels.
_SMALL = 4096

Inputs = dict[str, torch.Tensor]


class MediaInputs(Mapping[str, torch.Tensor]):
    """`multi_modal_inputs` of one prompt, made when they are asked for.

    `items` hands all tensors over and lets go of the large ones (pixels, audio features), which are made
    again the next time; small ones (grids) stay.

    Attributes:
        digest: stands for the media and all settings that make tensors of them.
    """

    def __init__(self, digest: str, make: Callable[[], Inputs]) -> None:
        self.digest = digest
        self._make = make
        self._made: Inputs | None = None
        self._small: dict[str, torch.Tensor | None] = {}

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, name: str) -> torch.Tensor:
        small = self._known()[name]
        return self._all()[name] if small is None else small

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def items(self) -> ItemsView[str, torch.Tensor]:
        made, self._made = self._all(), None
        return made.items()

    def _known(self) -> dict[str, torch.Tensor | None]:
        if not self._small:
            self._all()
        return self._small

    def _all(self) -> Inputs:
        if self._made is None:
            self._made = self._make()
            self._small = {
                name: value if value.numel() <= _SMALL else None for name, value in self._made.items()
            }
        return self._made


def with_media(prompts: DataProto, renderer: MediaRenderer | None, name: str) -> DataProto:
    """The rows of a prompt shard with `multi_modal_inputs`: a `MediaInputs` each, ``{}`` for text.

    Args:
        prompts: rows of a shard: `uid`, `prompt_ids`, `raw_prompt`, `source_file`.
        renderer: makes the tensors; not needed where no row has media.
        name: the shard, for messages.

    Raises:
        InputError: a row has media, and there is no renderer for them or one cannot be opened. When the
            tensors are made: the prompt that the media give is not the one that was measured.
    """
    columns = prompts.non_tensor_batch
    rows = [{key: values[index] for key, values in columns.items()} for index in range(len(prompts))]
    with_some = [row for row in rows if "raw_prompt" in row and has_media({"prompt": row["raw_prompt"]})]
    if not with_some:
        return prompts
    if renderer is None:
        raise InputError(
            file=name,
            field="multi_modal_data",
            found=f"media in the prompt of uid {with_some[0]['uid']!r}, and a policy without a processor",
            remedy="Materialise length_filtered again: it sets such rows aside.",
        )
    with ThreadPoolExecutor() as threads:
        digests = list(threads.map(renderer.digest, with_some))
    made = {
        row["uid"]: MediaInputs(digest, partial(measured_inputs, renderer, row))
        for row, digest in zip(with_some, digests, strict=True)
    }
    inputs: list[Mapping[str, torch.Tensor]] = [made.get(row["uid"], {}) for row in rows]
    columns = {**columns, COLUMN: column(COLUMN, inputs)}
    return DataProto(prompts.batch, columns, prompts.meta_info)


def without_media(rollouts: DataProto) -> DataProto:
    """The rows without their tensors, as a shard keeps them; `images_seqlens` in `meta_info` where a row has
    images in a grid."""
    columns = dict(rollouts.non_tensor_batch)
    found = columns.pop(COLUMN, None)
    if found is None:
        return rollouts
    lengths = images_seqlens(found)
    meta = {**rollouts.meta_info, **({"images_seqlens": lengths} if lengths else {})}
    return DataProto(rollouts.batch, columns, meta)


def images_seqlens(inputs: Iterable[Mapping[str, torch.Tensor]]) -> list[int]:
    """verl's entry of `meta_info`: of all images of all rows h·w patches, once per layer of the image."""
    return [length for row in inputs if "images_seqlens" in row for length in row["images_seqlens"].tolist()]


def measured_inputs(renderer: MediaRenderer, row: Mapping[str, Any]) -> Inputs:
    """The tensors of the media of a shard's row.

    Raises:
        InputError: they give another prompt than the one that was measured; the message says from where on.
    """
    now, inputs = renderer.inputs(row)
    measured = list(row["prompt_ids"])
    if measured == now:
        return inputs
    pairs = enumerate(zip(measured, now, strict=False))
    at = next((place for place, (one, other) in pairs if one != other), min(len(measured), len(now)))
    raise InputError(
        file=row.get("source_file"),
        row=row.get("source_row"),
        field="prompt_ids",
        found=f"a prompt of {len(now)} tokens for uid {row['uid']!r}, {_told(now, at)} at position {at}",
        expected=f"the {len(measured)} tokens that were measured, {_told(measured, at)} there",
        remedy="Its media, the processor or its settings have changed: materialise the dataset again.",
    )


def _told(ids: list[int], at: int) -> str:
    return f"token {ids[at]}" if at < len(ids) else "no token"
