"""Prompts with media: the policy's own processor expands placeholders and makes the model's tensors."""

import copy
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_assets.errors import InputError, first_line
from rl_assets.prompts.expansion import Expansion, expand, learn_expansion
from rl_assets.prompts.media_decode import image_size, read_audio, read_image, read_video
from rl_assets.prompts.media_source import MediaSource, Medium, media_digest, media_parts
from rl_assets.prompts.refused import Refused, reasons, require_whole
from rl_assets.prompts.render import Rendered
from rl_assets.protocol.item import MODALITIES, build_messages
from rl_assets.protocol.media import MediaStore
from rl_assets.store import digest_bytes, digest_json

if TYPE_CHECKING:
    import torch

Messages = list[dict[str, Any]]

_log = logging.getLogger(__name__)
_PROCESSORS = {
    "image": ("image_processor",),
    "video": ("video_processor",),
    "audio": ("feature_extractor", "audio_processor"),
}
_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
# Of a processor's output these are the prompt's, and not its media's.
_TEXT_OUTPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"})
_SAMPLING = ("fps", "num_frames", "min_frames", "max_frames")
_COMPARED_ROWS = 4
_ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class _Opened:
    """A prompt as the template wrote it, and its media.

    Attributes:
        text: the rendered template, one placeholder token per medium.
        media: by modality, what each of its placeholders stands for, in order.
        sizes: of its images, where only these are needed to expand the text; then no medium is decoded.
    """

    text: str
    media: Mapping[str, list[Any]]
    sizes: list[tuple[int, int]] | None = None


class MediaRenderer:
    """Renders prompts with media with the policy's processor.

    The ids equal those that the processor makes of the rendered template and the media: its image size,
    patch size, frame rate and sampling rate are the processor's, unless `mm_processor_kwargs` says
    otherwise. Special tokens come from the template alone.

    Attributes:
        processor: a `ProcessorMixin` of transformers.
        source: opens media.
        tools: schemas that the template is given for a row that brings none of its own in `tools`.
        template_kwargs: further arguments of the template.
        mm_processor_kwargs: further arguments of the processor's call, as in verl.
    """

    def __init__(
        self,
        processor: Any,
        source: MediaSource,
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.processor, self.source = processor, source
        self.tools = tools
        self.template_kwargs = dict(template_kwargs or {})
        self.mm_processor_kwargs = dict(mm_processor_kwargs or {})
        self._to_compare = _COMPARED_ROWS

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_expansion"}

    @cached_property
    def stamp_parts(self) -> dict[str, str]:
        """Digests of what ids and tensors depend on besides text: settings, template, call arguments."""
        settings = f"{type(self.processor).__name__}\n{self.processor.to_json_string()}"
        return {
            "processor": digest_bytes(settings.encode()),
            "processor_template": digest_json(self.processor.chat_template),
            "mm_processor_kwargs": digest_json(self.mm_processor_kwargs),
        }

    def reading(self, store: MediaStore) -> "MediaRenderer":
        """The same for the rows of shards, whose media bytes are in `store`."""
        other = copy.copy(self)
        other.source = replace(self.source, store=store)
        return other

    def render(self, rows: Sequence[Mapping[str, Any]]) -> list[Rendered]:
        """Render rows with media; one that is refused does not harm the others.

        Where the processor tells from an image's size how many tokens it becomes, no pixel is decoded. The
        first rows are rendered in full as well; when they differ, all are rendered in full.

        Args:
            rows: as `decode_row` gives them (`prompt`, `images`, `videos`, `audios`), with the
                `source_file` that relative paths of media are read from.

        Returns:
            One result per row, in order.
        """
        workers = min(_ROWS_AT_ONCE, 2 * (os.cpu_count() or 1))
        rendered: list[Rendered] = []
        _ = self._expansion  # learnt before threads ask for it
        with ThreadPoolExecutor(workers) as threads:
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                chunk = rows[start : start + _ROWS_AT_ONCE]
                rendered.extend(self._render(chunk, list(threads.map(self._try_open, chunk))))
        return rendered

    def inputs(self, row: Mapping[str, Any]) -> tuple[list[int], dict[str, "torch.Tensor"]]:
        """A prompt's ids, and the tensors that show its media to the model.

        Args:
            row: `raw_prompt`, as the rows of a shard have it, or else as for `render`; and `source_file`.

        Returns:
            The ids, and `multi_modal_inputs` as verl has them: what the processor made besides the ids (such
            as `pixel_values` and `image_grid_thw`), and `images_seqlens` where there is an image grid (int64:
            h·w of each image, t times).

        Raises:
            InputError: the prompt cannot be rendered.
        """
        try:
            return self._process(self._open(row, in_full=True))
        except Refused as refused:
            raise InputError(
                file=row.get("source_file"),
                row=row.get("source_row"),
                field=refused.path,
                found=f"[{refused.code}] {refused.reason}"
                + (f" (uid {row['uid']})" if row.get("uid") else ""),
                remedy="Put the media back as they were, or materialise the dataset again.",
            ) from refused

    def digest(self, row: Mapping[str, Any]) -> str:
        """Digest (32 hex digits) of a row's media and of all settings that make tensors of them.

        Raises:
            InputError: a medium cannot be opened.
        """
        try:
            found = [media_digest(medium) for _, _, medium in self._media(self._messages(row), row)]
        except Refused as refused:
            raise InputError(
                file=row.get("source_file"),
                row=row.get("source_row"),
                field=refused.path,
                found=refused.reason,
                remedy="Put the medium back as it was, or materialise the dataset again.",
            ) from refused
        return digest_json({"media": found, "stamp": self.stamp_parts})

    @cached_property
    def _expansion(self) -> Expansion | None:
        return learn_expansion(self.processor, self.mm_processor_kwargs)

    def _try_open(self, row: Mapping[str, Any]) -> "_Opened | Refused":
        try:
            return self._open(row, in_full=False)
        except Refused as refused:
            return refused

    def _render(
        self, rows: Sequence[Mapping[str, Any]], opened: Sequence["_Opened | Refused"]
    ) -> list[Rendered]:
        rendered: dict[int, Rendered] = {}
        quick: dict[int, str] = {}
        for index, (row, prompt) in enumerate(zip(rows, opened, strict=True)):
            try:
                if isinstance(prompt, Refused):
                    raise prompt
                if prompt.sizes is None:
                    rendered[index] = Rendered(ids=self._process(prompt)[0])
                elif self._is_quick(row, prompt):
                    quick[index] = self._expanded(prompt)
                else:
                    rendered[index] = Rendered(ids=self._process(self._open(row, in_full=True))[0])
            except Refused as refused:
                rendered[index] = Rendered(error=refused.reason, code=refused.code, path=refused.path)
        ids = self._encode(list(quick.values()))
        rendered |= {index: Rendered(ids=own) for index, own in zip(quick, ids, strict=True)}
        return [rendered[index] for index in range(len(rows))]

    def _is_quick(self, row: Mapping[str, Any], prompt: _Opened) -> bool:
        """Whether sizes are enough; the first rows are compared with what their pixels give."""
        if self._expansion is None or not self._to_compare:
            return self._expansion is not None
        self._to_compare -= 1
        in_full, _ = self._process(self._open(row, in_full=True))
        if self._encode([self._expanded(prompt)]) == [in_full]:
            return True
        _log.warning(
            "%s: the token count that the processor tells from an image's size differs from what it makes of "
            "the image; every image is processed",
            type(self.processor).__name__,
        )
        self._expansion = None
        return False

    def _expanded(self, prompt: _Opened) -> str:
        assert self._expansion is not None, "sizes are read where there is an expansion"
        assert prompt.sizes is not None, "as above"
        return expand(prompt.text, self.processor.image_token, self._expansion(prompt.sizes))

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self.processor.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []

    def _open(self, row: Mapping[str, Any], *, in_full: bool) -> _Opened:
        """Render the template and open the media, decoded where `in_full` or where sizes are not enough."""
        messages = self._messages(row)
        found = list(self._media(messages, row))
        tools = row.get("tools")
        text = self._template(messages, self.tools if tools is None else tools)
        tokens = {modality: getattr(self.processor, f"{modality}_token", None) for modality in MODALITIES}
        require_whole(text, messages, tokens)
        sized = not in_full and self._expansion is not None
        media: dict[str, list[Any]] = {}
        sizes: list[tuple[int, int]] = []
        sized = sized and all(part["type"] == "image" for _, part, _ in found)
        for path, part, medium in found:
            with reasons("render.media_error", path):
                if sized:
                    sizes.append(image_size(medium))
                else:
                    media.setdefault(part["type"], []).append(self._decode(part["type"], medium))
        return _Opened(text, media, sizes if sized else None)

    def _messages(self, row: Mapping[str, Any]) -> Messages:
        """The prompt with its placeholders as parts, without keys that are null."""
        if "raw_prompt" in row:
            messages = row["raw_prompt"]
        else:
            columns = {modality: row.get(modality + "s") for modality in MODALITIES}
            present = {modality: items for modality, items in columns.items() if items}
            try:
                messages = build_messages(row, row["prompt"], present)
            except InputError as error:
                raise Refused(
                    "render.media_error", error.field or "prompt", f"{error.found}, expected {error.expected}"
                ) from error
        return [_present(message) for message in messages]

    def _media(
        self, messages: Messages, row: Mapping[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any], Medium]]:
        """Each medium with its path in the row and its part; of a kind that the processor reads."""
        seen = dict.fromkeys(MODALITIES, 0)
        for path, part in media_parts(messages):
            modality = part["type"]
            if "raw_prompt" not in row and row.get(modality + "s"):
                path = f"{modality}s[{seen[modality]}]"
                seen[modality] += 1
            if all(getattr(self.processor, name, None) is None for name in _PROCESSORS[modality]):
                raise Refused(
                    "render.media_unsupported",
                    modality + "s",
                    f"the policy's {type(self.processor).__name__} reads no {modality}",
                )
            with reasons("render.media_error", path):
                medium = self.source.open(part, row.get("source_file"))
            yield path, part, medium

    def _template(self, messages: Messages, tools: Sequence[dict[str, Any]] | None) -> str:
        plain = [{**message, "content": _plain(message.get("content"))} for message in messages]
        with reasons("render.template_error", "prompt"):
            return self.processor.apply_chat_template(
                plain,
                tokenize=False,
                add_generation_prompt=True,
                tools=None if tools is None else list(tools),
                **self.template_kwargs,
            )

    def _decode(self, modality: str, medium: Medium) -> Any:
        if modality == "image":
            return read_image(medium)
        if modality == "video":
            return read_video(medium, self._chosen_frames)
        return read_audio(medium, self._sampling_rate)

    @cached_property
    def _sampling_rate(self) -> int:
        names = (getattr(self.processor, name, None) for name in _PROCESSORS["audio"])
        extractor = next(found for found in names if found is not None)
        return int(_flat(self.mm_processor_kwargs, "audio").get("sampling_rate", extractor.sampling_rate))

    def _chosen_frames(self, about: Mapping[str, Any]) -> Sequence[int]:
        """Frames that the processor takes of a video: as it samples them itself, or all."""
        from transformers.video_utils import VideoMetadata

        sampler = self.processor.video_processor
        settings = _flat(self.mm_processor_kwargs, "videos")
        asked = {name: settings[name] for name in _SAMPLING if settings.get(name) is not None}
        samples = bool(asked.keys() & {"fps", "num_frames"}) or sampler.do_sample_frames
        if not settings.get("do_sample_frames", samples):
            return range(about["total_num_frames"])
        return [int(index) for index in sampler.sample_frames(metadata=VideoMetadata(**about), **asked)]

    def _process(self, opened: _Opened) -> tuple[list[int], dict[str, "torch.Tensor"]]:
        """The processor's own ids and tensors."""
        arguments = self._arguments(opened.media)
        with reasons("render.media_error", "prompt"):
            made = self.processor(
                text=[opened.text], add_special_tokens=False, return_tensors="pt", **arguments
            )
        inputs = {name: value for name, value in made.items() if name not in _TEXT_OUTPUTS}
        if (grid := inputs.get("image_grid_thw")) is not None:
            inputs["images_seqlens"] = (grid[:, 1] * grid[:, 2]).repeat_interleave(grid[:, 0])
        return made["input_ids"][0].tolist(), inputs

    def _arguments(self, media: Mapping[str, list[Any]]) -> dict[str, Any]:
        """Arguments of the processor's call besides the text."""
        arguments = dict(self.mm_processor_kwargs)
        if "image" in media:
            arguments["images"] = media["image"]
        if "audio" in media:
            arguments |= {"audio": media["audio"], "sampling_rate": self._sampling_rate}
        if "video" in media:
            frames, about = zip(*media["video"], strict=True)
            # Frames were chosen when the video was decoded.
            arguments = _without(arguments, (*_SAMPLING, "do_sample_frames"))
            arguments |= {
                "videos": list(frames),
                "video_metadata": list(about),
                "do_sample_frames": False,
                "videos_kwargs": _without(
                    arguments.get("videos_kwargs", {}), (*_SAMPLING, "do_sample_frames")
                ),
            }
        return arguments


def load_media_renderer(
    path: str | Path,
    *,
    tools: Sequence[dict[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    mm_processor_kwargs: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    root: Path,
    media_root: str | None = None,
) -> MediaRenderer | None:
    """The renderer of prompts with media for the policy at `path`; None where it has no processor.

    Args:
        path: the policy's folder, or a hub id.
        tools: schemas that the template is given.
        template_kwargs: further arguments of the template.
        mm_processor_kwargs: further arguments of the processor's call.
        trust_remote_code: whether Python code in the folder may be run.
        root: the project's top folder, which `source_file` of a row is relative to.
        media_root: folder that media paths are relative to; None is the folder of the raw file.

    Raises:
        InputError: there are files of a processor, and it does not load.
    """
    folder = Path(path)
    if folder.is_dir() and not any((folder / name).is_file() for name in _FILES):
        return None
    from transformers import AutoProcessor, ProcessorMixin

    try:
        processor = AutoProcessor.from_pretrained(str(path), trust_remote_code=trust_remote_code)
    except Exception as error:  # whatever a damaged checkpoint or a missing package makes the library raise
        raise InputError(
            file=path,
            field="policy.path",
            found=f"a policy whose processor does not load ({first_line(error)})",
            expected="processor_config.json or preprocessor_config.json that transformers reads",
            remedy="Check its files; images and videos need the extra: pip install 'rl-assets[media]'.",
        ) from error
    if not isinstance(processor, ProcessorMixin):
        return None
    return MediaRenderer(
        processor,
        MediaSource(root, media_root),
        tools=tools,
        template_kwargs=template_kwargs,
        mm_processor_kwargs=mm_processor_kwargs,
    )


def _present(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None}


def _plain(content: Any) -> Any:
    """Content as a template looks at it: of a medium its kind alone."""
    if not isinstance(content, list):
        return content
    return [
        {"type": part["type"], part["type"]: part["type"]}
        if part.get("type") in MODALITIES
        else _present(part)
        for part in content
    ]


def _without(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _flat(settings: Mapping[str, Any], modality: str) -> dict[str, Any]:
    """Settings of one kind of media, given as they are or below ``<modality>_kwargs``."""
    return {**settings, **settings.get(f"{modality}_kwargs", {})}
