"""Prompts with media: the policy's own processor expands placeholders and makes the model's tensors."""

import contextlib
import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_assets.base.digests import digest_bytes, digest_json
from rl_assets.base.jsontext import canonical_json
from rl_assets.base.modalities import COLUMN_OF, MODALITIES
from rl_assets.base.workers.pool import threads_of_own
from rl_assets.contract.rules.code import Finding
from rl_assets.errors import InputError
from rl_assets.media.call import ProcessorCall
from rl_assets.media.decode import image_size
from rl_assets.media.expansion import Expansion, expand, learn_expansion
from rl_assets.media.settings import MediumSettings
from rl_assets.media.source import MediaSource, Medium, media_digest, media_parts
from rl_assets.media.store import MediaStore
from rl_assets.policy.checkpoint import load_processor
from rl_assets.prompts.messages import build_messages, present, without_media
from rl_assets.prompts.refused import Refused, reasons
from rl_assets.prompts.rendered import Rendered
from rl_assets.prompts.settings import settings_of
from rl_assets.prompts.templates import ChatTemplate, without_empty_calls
from rl_assets.prompts.time_limit import names_template, time_limit
from rl_assets.prompts.whole import WholeCheck

if TYPE_CHECKING:
    import torch

Messages = list[dict[str, Any]]

_log = logging.getLogger(__name__)
_COMPARED_ROWS = 4

MOST_THREADS = 8
"""Media of so many prompts are decoded side by side, at most."""


MEDIA_STEPS = 3
"""Counts the changes of what is done to media before a processor sees them: results of older steps are no
results of today's."""


class _Medium(NamedTuple):
    """A medium of a prompt: where it stands in the row, its kind, where it lies, what it asks for."""

    path: str
    modality: str
    source: Medium
    settings: MediumSettings

    @property
    def digest(self) -> str:
        """Of its kind too: a GIF is an image, or a video of the same bytes."""
        return digest_json([self.modality, media_digest(self.source), dict(self.settings.given)])


@dataclass(frozen=True)
class _Prompt:
    """A prompt as the template wrote it, one placeholder per medium, its media in their order, and what it
    lacks of its row besides media."""

    text: str
    media: list[_Medium]
    lost: Sequence[Finding]

    @property
    def has_images_alone(self) -> bool:
        return all(medium.modality == "image" for medium in self.media)


class MediaRenderer:
    """Renders prompts with media with the policy's processor.

    The ids equal those that the processor makes of the rendered template and the media: its image size,
    patch size, frame rate and sampling rate are the processor's, unless `mm_processor_kwargs` says
    otherwise. As in verl, a tokenizer that begins every text with a BOS token does so here too, before the
    template's own (Gemma 4, Llama 3.2 Vision), unless `mm_processor_kwargs` has `add_special_tokens: false`;
    for processors that verl does not load, special tokens come from the template alone.

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
        self._call = ProcessorCall(processor, self.mm_processor_kwargs)
        self._to_compare = _COMPARED_ROWS
        self._variants: dict[str, MediaRenderer] = {}

    def __getstate__(self) -> dict[str, Any]:
        made = ("_expansion", "_alone", "_whole")
        return {name: value for name, value in self.__dict__.items() if name not in made} | {"_variants": {}}

    @property
    def tokenizer(self) -> Any:
        """The processor's."""
        return self.processor.tokenizer

    @cached_property
    def _alone(self) -> ChatTemplate:
        """The processor's chat template, for text alone."""
        return ChatTemplate(
            self.tokenizer, {"chat_template": self.processor.chat_template, **self.template_kwargs}
        )

    @cached_property
    def stamp_parts(self) -> dict[str, str]:
        """Digests of what ids and tensors depend on besides text: settings, template, call arguments."""
        settings = f"{type(self.processor).__name__}\n{self.processor.to_json_string()}"
        return {
            "processor": digest_bytes(settings.encode()),
            "processor_template": digest_json(self.processor.chat_template),
            "mm_processor_kwargs": digest_json(self.mm_processor_kwargs),
            "media_steps": digest_json(MEDIA_STEPS),
        }

    def with_settings(self, own: Mapping[str, Any] | None) -> "MediaRenderer":
        """The renderer of rows with these settings of the template, which count more than the dataset's."""
        if not own:
            return self
        key = canonical_json(own)
        if key not in self._variants:
            other = self._variants[key] = copy.copy(self)
            other.template_kwargs = {**self.template_kwargs, **own}
            other._forget()
        return self._variants[key]

    def reading(self, store: MediaStore) -> "MediaRenderer":
        """The same for the rows of shards, whose media bytes are in `store`."""
        return self.opening(replace(self.source, store=store))

    def opening(self, source: MediaSource) -> "MediaRenderer":
        """The same with media that `source` opens."""
        other = copy.copy(self)
        other.source = source
        other._forget()
        return other

    def _forget(self) -> None:
        """Make anew what was made of the settings of the one that this is a copy of."""
        self._variants = {}
        for made in ("_alone", "_whole"):
            self.__dict__.pop(made, None)

    def render(self, rows: Sequence[Mapping[str, Any]]) -> list[Rendered]:
        """Render rows with media; one that is refused does not harm the others.

        Where the processor tells from an image's size how many tokens it becomes, no pixel is decoded. The
        first rows are rendered in full as well; when they differ, all are rendered in full. Rows are worked
        on side by side, so as many as there are threads have their media in memory.

        Args:
            rows: as `decode_row` gives them (`prompt`, `images`, `videos`, `audios`), with the
                `source_file` that relative paths of media are read from.

        Returns:
            One result per row, in order.
        """
        self._compare(rows)
        self.settle()
        with ThreadPoolExecutor(min(threads_of_own(), MOST_THREADS)) as threads:
            found = list(threads.map(self._measured, rows))
        quick = self._call.encode([one.text for one in found if isinstance(one, _Prompt)])
        return [
            Rendered(ids=next(quick), lost=one.lost) if isinstance(one, _Prompt) else one for one in found
        ]

    def settle(self) -> None:
        """Make the processor fit for several threads at a time."""
        self._call.prepare()

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
        with self._told(row):
            return self._process(self._prompt(row))

    def digest(self, row: Mapping[str, Any]) -> str:
        """Digest (32 hex digits) of a row's media and of all settings that make tensors of them.

        Raises:
            InputError: a medium cannot be opened.
        """
        with self._told(row):
            found = [medium.digest for medium in self._media(self._messages(row), row)]
        return digest_json({"media": found, "stamp": self.stamp_parts})

    @contextlib.contextmanager
    def _told(self, row: Mapping[str, Any]) -> Iterator[None]:
        """Turns the refusal of a row that was measured before into an error."""
        try:
            yield
        except Refused as refused:
            raise InputError(
                file=row.get("source_file"),
                row=row.get("source_row"),
                field=refused.path,
                found=f"[{refused.code}] {refused.reason}"
                + (f" (uid {row['uid']})" if row.get("uid") else ""),
                remedy="Put the media back as they were, or materialise the dataset again.",
            ) from refused

    @cached_property
    def _expansion(self) -> Expansion | None:
        return learn_expansion(self.processor, self.mm_processor_kwargs)

    def _compare(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Hold the expansion by size against what the pixels of the first rows give."""
        for row in rows:
            if self._expansion is None or not self._to_compare:
                return
            with contextlib.suppress(Refused):  # said of the row when its turn comes
                prompt = self._prompt(row)
                if not prompt.has_images_alone:
                    continue
                in_full, _ = self._process(prompt)
                self._to_compare -= 1
                if next(self._call.encode([self._expanded(prompt)])) != in_full:
                    _log.warning(
                        "%s: the token count that the processor tells from an image's size differs from what "
                        "it makes of the image; every image is processed",
                        type(self.processor).__name__,
                    )
                    self._expansion = None

    def _measured(self, row: Mapping[str, Any]) -> Rendered | _Prompt:
        """What becomes of a row; where sizes of images are enough, its prompt with the text expanded."""
        try:
            prompt = self._prompt(row)
            if self._expansion is not None and prompt.has_images_alone:
                return replace(prompt, text=self._expanded(prompt))
            return Rendered(ids=self._process(prompt)[0], lost=prompt.lost)
        except Refused as refused:
            return Rendered(error=refused.reason, code=refused.code, path=refused.path)

    def _expanded(self, prompt: _Prompt) -> str:
        assert self._expansion is not None, "asked for only where there is one"
        sizes = []
        for medium in prompt.media:
            with reasons("render.media_error", medium.path):
                sizes.append(medium.settings.image_size(image_size(medium.source)))
        with reasons("render.media_error", "prompt"):
            return expand(prompt.text, self.processor.image_token, self._expansion(sizes))

    def _prompt(self, row: Mapping[str, Any]) -> _Prompt:
        """Render the template, and find the media."""
        if own := settings_of(row, row.get("extra_info")):
            return self.with_settings(own)._rendered(row)
        return self._rendered(row)

    def _rendered(self, row: Mapping[str, Any]) -> _Prompt:
        messages = self._messages(row)
        media = list(self._media(messages, row))
        tools = row.get("tools")
        tools = (self.tools if tools is None else tools) or None
        plain = [{**message, "content": without_media(message.get("content"))} for message in messages]
        text = self._template(plain, tools)
        self._require_media(text, plain)
        return _Prompt(text, media, self._whole.losses(text, plain, tools))

    def _require_media(self, text: str, messages: Messages) -> None:
        """Refuse a rendered prompt that does not hold every medium once: no processor takes it."""
        kinds = [part["type"] for _, part in media_parts(messages)]
        for modality in MODALITIES:
            token, media = getattr(self.processor, f"{modality}_token", None), kinds.count(modality)
            if token is not None and (found := text.count(token)) != media:
                reason = f"{found} {modality} placeholders in the rendered prompt of {media} {modality}s"
                raise Refused("render.media_lost", "prompt", reason)

    @cached_property
    def _whole(self) -> WholeCheck:
        return WholeCheck(self._template)

    def _messages(self, row: Mapping[str, Any]) -> Messages:
        """The prompt with its placeholders as parts, without keys that are null."""
        if "raw_prompt" in row:
            messages = row["raw_prompt"]
        else:
            columns = {modality: row.get(name) for modality, name in COLUMN_OF.items()}
            given = {modality: items for modality, items in columns.items() if items}
            try:
                messages = build_messages(row, row["prompt"], given)
            except InputError as error:
                raise Refused(
                    "render.media_error", error.field or "prompt", f"{error.found}, expected {error.expected}"
                ) from error
        return without_empty_calls([present(message) for message in messages])

    def _media(self, messages: Messages, row: Mapping[str, Any]) -> Iterator[_Medium]:
        """Each medium of the messages; of a kind that the processor reads."""
        seen = dict.fromkeys(MODALITIES, 0)
        for path, part in media_parts(messages):
            modality = part["type"]
            if "raw_prompt" not in row and row.get(COLUMN_OF[modality]):
                path = f"{COLUMN_OF[modality]}[{seen[modality]}]"
                seen[modality] += 1
            if not self._call.reads(modality):
                raise Refused(
                    "render.media_unsupported",
                    COLUMN_OF[modality],
                    f"the policy's {type(self.processor).__name__} reads no {modality}",
                )
            with reasons("render.media_error", path):
                settings = MediumSettings.of(part, self.processor)
                source = self.source.open(part, row.get("source_file"))
            yield _Medium(path, modality, source, settings)

    @names_template
    def _template(self, messages: Messages, tools: Sequence[dict[str, Any]] | None) -> str:
        with reasons("render.template_error", "prompt"), time_limit(messages):
            if self._alone.apart is not None:  # first where it can be ended
                self._alone.apart(messages, list(tools) if tools else None)
            return self.processor.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=True,
                tools=list(tools) if tools else None,
                **self.template_kwargs,
            )

    def _process(self, prompt: _Prompt) -> tuple[list[int], dict[str, "torch.Tensor"]]:
        """The processor's own ids and tensors."""
        media: dict[str, list[Any]] = {}
        for medium in prompt.media:
            with reasons("render.media_error", medium.path):
                decoded = self._call.decode(medium.modality, medium.source, medium.settings)
                media.setdefault(medium.modality, []).append(decoded)
        with reasons("render.media_error", "prompt"):
            return self._call.tensors(prompt.text, media)


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
    processor = load_processor(path, trust_remote_code=trust_remote_code)
    if processor is None:
        return None
    return MediaRenderer(
        processor,
        MediaSource(root, media_root),
        tools=tools,
        template_kwargs=template_kwargs,
        mm_processor_kwargs=mm_processor_kwargs,
    )
