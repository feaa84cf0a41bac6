"""The media of prompts at rollout: made of what a shard refers to, shortly before its turn, and not kept."""

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import torch

from rl_assets.base.workers.pool import threads_of_own
from rl_assets.errors import InputError
from rl_assets.media.source import has_media
from rl_assets.prompts.multimodal import MOST_THREADS, MediaRenderer
from rl_assets.protocol.dataproto import DataProto
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

    def __init__(self, digest: str, make: Callable[[], Inputs], threads: Executor | None = None) -> None:
        self.digest = digest
        self._make = make
        self._threads = threads
        self._coming: Future[Inputs] | None = None
        self._made: Inputs | None = None
        self._small: dict[str, torch.Tensor | None] = {}

    def begin(self) -> None:
        """Have them made in another thread, where there is one and they were not made before."""
        if self._threads is not None and self._coming is None and not self._small:
            self._coming = self._threads.submit(self._make)

    def let_go(self) -> None:
        """Forget the large ones."""
        self._made = None

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
        made = self._all()
        self.let_go()
        return made.items()

    def _known(self) -> dict[str, torch.Tensor | None]:
        if not self._small:
            self._all()
        return self._small

    def _all(self) -> Inputs:
        if self._made is None:
            coming, self._coming = self._coming, None
            self._made = coming.result() if coming else self._make()
            self._small = {
                name: value if value.numel() <= _SMALL else None for name, value in self._made.items()
            }
        return self._made


def begin(media: Iterable[Mapping[str, Any]]) -> None:
    """Have the tensors of those made that are a `MediaInputs`, of the first `MOST_THREADS` at most."""
    for one in islice(media, MOST_THREADS):
        if isinstance(one, MediaInputs):
            one.begin()


def in_turn(media: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Each in its turn, while the next are made; the large tensors of one are let go after its turn."""
    for index, one in enumerate(media):
        begin(islice(media, index, None))
        yield one
        if isinstance(one, MediaInputs):
            one.let_go()


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
    renderer.settle()
    # Ends when the last of the rows is let go.
    threads = ThreadPoolExecutor(min(threads_of_own(), MOST_THREADS))
    digests = list(threads.map(renderer.digest, with_some))
    made = {
        row["uid"]: MediaInputs(digest, partial(measured_inputs, renderer, row), threads)
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


def with_multi_modal_inputs(data: DataProto, renderer: MediaRenderer) -> DataProto:
    """The batch with the tensors of its media, which shards do not store, as verl's agent loop adds them.

    Args:
        data: rows of a prompt shard or a rollout shard.
        renderer: of the policy, from `load_media_renderer`, `reading` the store of the dataset's media.

    Returns:
        The same rows with the column `multi_modal_inputs` (a dict of tensors per row, ``{}`` for text; the
        responses to one prompt share theirs) and `images_seqlens` in `meta_info`.

    Raises:
        InputError: a medium is missing, or gives another prompt than the one that was measured.
    """

    columns = data.non_tensor_batch
    first = {uid: index for index, uid in reversed(list(enumerate(columns["uid"])))}

    def inputs_of(index: int) -> dict[str, Any]:
        row = {key: values[index] for key, values in columns.items()}
        return measured_inputs(renderer, row) if has_media({"prompt": row["raw_prompt"]}) else {}

    renderer.settle()
    with ThreadPoolExecutor(min(threads_of_own(), MOST_THREADS)) as threads:
        made = dict(zip(first, threads.map(inputs_of, first.values()), strict=True))
    inputs = column(COLUMN, [made[uid] for uid in columns["uid"]])
    meta = {**data.meta_info, "images_seqlens": images_seqlens(inputs)}
    return DataProto(data.batch, {**columns, COLUMN: inputs}, meta)


def images_seqlens(inputs: Iterable[Mapping[str, torch.Tensor]]) -> list[int]:
    """verl's entry of `meta_info`: of all images of all rows h·w patches, once per layer of the image."""
    rows = in_turn(list(inputs))
    return [length for row in rows if "images_seqlens" in row for length in row["images_seqlens"].tolist()]


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
