"""The policy's processor as it is called: a text and decoded media in, ids and the model's tensors out."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from rl_assets.media.decode import read_audio, read_image, read_video
from rl_assets.media.settings import MediumSettings, is_read_by_verl
from rl_assets.media.source import Medium

if TYPE_CHECKING:
    import torch

_PROCESSORS = {
    "image": ("image_processor",),
    "video": ("video_processor",),
    "audio": ("feature_extractor", "audio_processor"),
}
# Of a processor's output these are the prompt's, and not its media's.
_TEXT_OUTPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"})
_SAMPLING = ("fps", "num_frames", "min_frames", "max_frames")


@dataclass(frozen=True)
class ProcessorCall:
    """A processor, with what it is given besides a text and its media.

    Attributes:
        processor: a `ProcessorMixin` of transformers.
        kwargs: `mm_processor_kwargs`, further arguments of its call, as in verl.
    """

    processor: Any
    kwargs: Mapping[str, Any]

    def reads(self, modality: str) -> bool:
        """Whether the processor takes media of this kind."""
        return any(getattr(self.processor, name, None) is not None for name in _PROCESSORS[modality])

    def prepare(self) -> None:
        """Make the processor fit for several threads at a time: a tokenizer sets its padding up when it is
        first called, which fails while another thread encodes."""
        with contextlib.suppress(Exception):  # one that takes no text alone: its rows say what is wrong
            self.processor(text=["a"], return_tensors="pt", **self._arguments({}))

    def encode(self, texts: list[str]) -> Iterator[list[int]]:
        """The token ids of texts in which every placeholder is expanded."""
        specials = _flat(self._settings, "text").get("add_special_tokens", True)
        return iter(
            self.processor.tokenizer(texts, add_special_tokens=specials)["input_ids"] if texts else ()
        )

    def decode(self, modality: str, source: Medium, settings: MediumSettings) -> Any:
        """A medium as the processor takes it: an image; frames and what they are of; samples of sound."""
        if modality == "image":
            return settings.image(read_image(source))
        if modality == "video":
            choose = partial(self._chosen_frames, settings)
            frames, about = read_video(source, choose, settings.list_of_frames)
            return settings.video(frames), about
        return read_audio(source, self._sampling_rate)

    def tensors(
        self, text: str, media: Mapping[str, list[Any]]
    ) -> tuple[list[int], dict[str, "torch.Tensor"]]:
        """Ids, and what the processor makes of the media.

        Args:
            text: of one prompt, with a placeholder per medium.
            media: by kind, what `decode` gave, in the order of the placeholders.

        Returns:
            The ids, and tensors such as `pixel_values` and `image_grid_thw`; `images_seqlens` (int64: h·w of
            each image, t times) where there is an image grid, as in verl.
        """
        made = self.processor(text=[text], return_tensors="pt", **self._arguments(media))
        inputs = {name: value for name, value in made.items() if name not in _TEXT_OUTPUTS}
        if (grid := inputs.get("image_grid_thw")) is not None:
            inputs["images_seqlens"] = (grid[:, 1] * grid[:, 2]).repeat_interleave(grid[:, 0])
        return made["input_ids"][0].tolist(), inputs

    @property
    def _settings(self) -> dict[str, Any]:
        """Arguments of every call; verl says nothing on special tokens, so a tokenizer may write its own."""
        alone = {} if is_read_by_verl(self.processor) else {"add_special_tokens": False}
        return {**alone, **self.kwargs}

    @cached_property
    def _sampling_rate(self) -> int:
        names = (getattr(self.processor, name, None) for name in _PROCESSORS["audio"])
        extractor = next(found for found in names if found is not None)
        return int(_flat(self.kwargs, "audio").get("sampling_rate", extractor.sampling_rate))

    def _chosen_frames(self, own: MediumSettings, about: Mapping[str, Any]) -> Sequence[int]:
        """Frames that are taken of a video: those that it asks for, as `mm_processor_kwargs` samples, or as
        the policy's kind does."""
        from transformers.video_utils import VideoMetadata

        settings = _flat(self.kwargs, "videos")
        asked = {name: settings[name] for name in _SAMPLING if settings.get(name) is not None}
        chosen_for_all = asked or "do_sample_frames" in settings
        if (not chosen_for_all or own.names_frames) and (frames := own.frames(about)) is not None:
            return frames
        sampler = self.processor.video_processor
        samples = bool(asked.keys() & {"fps", "num_frames"}) or sampler.do_sample_frames
        if not settings.get("do_sample_frames", samples):
            return range(about["total_num_frames"])
        return [int(index) for index in sampler.sample_frames(metadata=VideoMetadata(**about), **asked)]

    def _arguments(self, media: Mapping[str, list[Any]]) -> dict[str, Any]:
        """Arguments of the processor's call besides the text."""
        arguments = self._settings
        if "image" in media:
            arguments["images"] = media["image"]
        if "audio" in media:
            arguments |= {"audio": media["audio"], "sampling_rate": self._sampling_rate}
        if "video" in media:
            frames, about = zip(*media["video"], strict=True)
            # Frames were chosen when the video was decoded.
            chosen = (*_SAMPLING, "do_sample_frames")
            arguments = _without(arguments, chosen)
            arguments |= {
                "videos": list(frames),
                "video_metadata": list(about),
                "do_sample_frames": False,
                "videos_kwargs": _without(arguments.get("videos_kwargs", {}), chosen),
            }
        return arguments


def _without(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _flat(settings: Mapping[str, Any], modality: str) -> dict[str, Any]:
    """Settings of one kind of media, given as they are or below ``<modality>_kwargs``."""
    return {**settings, **settings.get(f"{modality}_kwargs", {})}
