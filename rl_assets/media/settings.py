"""Settings of one medium: an image or a video of a row may ask for a size and for frames of its own.

The names and what they do are those of qwen-vl-utils 0.0.14, with which verl reads the media of every policy
whose processor it loads, Gemma 4 and Llama 3.2 Vision among them: a medium is resized before the processor
sees it, whose own limits come after.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rl_assets.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]
"""Height and width in pixels."""

SIZE_SETTINGS = frozenset({"min_pixels", "max_pixels", "resized_height", "resized_width"})
FRAME_SETTINGS = frozenset({"fps", "nframes", "min_frames", "max_frames", "video_start", "video_end"})
_HONOURED = {
    "image": SIZE_SETTINGS,
    "video": SIZE_SETTINGS | FRAME_SETTINGS | {"total_pixels"},
    "audio": frozenset[str](),
}
_NAMES = frozenset().union(*_HONOURED.values(), {"num_frames", "sample_fps", "raw_fps", "sampling_rate"})

# Defaults of qwen-vl-utils: tokens of an image, of a frame, and of a whole video; frames.
_IMAGE_TOKENS = (4, 16_384)
_FRAME_TOKENS = (128, 768)
_VIDEO_TOKENS = 0.9 * 128_000
_FRAMES_PER_SECOND, _LEAST_FRAMES, _MOST_FRAMES, _FRAME_FACTOR = 2.0, 4, 768, 2


_READ_BY_VERL = frozenset(
    f"{name}Processor" for name in ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Glm4v", "Glm46V", "Mllama", "Gemma4")
)
_VERLS_PATCH = 14


def is_read_by_verl(processor: Any) -> bool:
    """Whether verl 0.9.1 loads a processor (`hf_processor`): it takes a policy with any other for one of text
    alone, and stops at a row with media."""
    return type(processor).__name__ in _READ_BY_VERL


def patch_size(processor: Any) -> int:
    """Side of the patches of images in pixels, as verl asks a processor for it: 14 where it does not say."""
    return getattr(getattr(processor, "image_processor", None), "patch_size", _VERLS_PATCH)


def require_patch_size(given: int | None, processor: Any) -> None:
    """Refuse a `data.image_patch_size` with which verl's length filter would resize images otherwise than its
    rollouts, which ask the processor.

    Args:
        given: the key's value; null and 0 are the processor's own, as in verl.
        processor: the policy's, of transformers; one that verl does not load has no use for the key.

    Raises:
        InputError: it is not the processor's.
    """
    if not given or not is_read_by_verl(processor) or given == (own := patch_size(processor)):
        return
    raise InputError(
        field="data.image_patch_size",
        found=f"{given}; the policy's {type(processor).__name__} has patches of {own} pixels",
        expected=f"{own} or null",
        remedy="Leave the key out, here and in verl, whose own YAML sets 14: its length filter would resize "
        "images by this number, its rollouts by the processor's.",
    )


def resize_factor(processor: Any) -> int:
    """What sides of a picture are multiples of, in pixels, when a processor is given it; 0 where it is given
    the picture as it is.

    verl takes twice the patch size, whatever the processor makes of it. Of those that verl does not load, it
    is the side of a token for processors that make a token of a square of patches, as Qwen-VL's do.
    """
    if is_read_by_verl(processor):
        return 2 * patch_size(processor)
    images = getattr(processor, "image_processor", None)
    patch, merged = (getattr(images, name, 0) for name in ("patch_size", "merge_size"))
    return patch * merged if isinstance(patch, int) and isinstance(merged, int) else 0


@dataclass(frozen=True)
class MediumSettings:
    """The size and the frames of one image or video.

    Attributes:
        given: what it says itself, by name; empty for most media.
        factor: sides of a resized picture are multiples of so many pixels; 0 leaves media as they are.
    """

    given: Mapping[str, float]
    factor: int

    @classmethod
    def of(cls, part: Mapping[str, Any], processor: Any) -> Self:
        """The settings that stand in a media part, beside its medium.

        Args:
            part: of a message.
            processor: the policy's, of transformers.

        Raises:
            ValueError: they cannot be honoured: they are for another kind of media or no positive numbers, or
                media are not resized for the policy's processor.
        """
        given = {name: part[name] for name in sorted(_NAMES & part.keys()) if part[name] is not None}
        factor = resize_factor(processor)
        if not given:
            return cls({}, factor)
        honoured = _HONOURED[part["type"]] if factor else ()
        if refused := [name for name in given if name not in honoured]:
            raise ValueError(
                f"{', '.join(refused)} on one {part['type']}, for which the policy's "
                f"{type(processor).__name__} has one setting for all: data.mm_processor_kwargs"
            )
        if any(isinstance(value, list) for value in part.values()) and (
            chosen := FRAME_SETTINGS & given.keys()
        ):
            raise ValueError(f"{', '.join(sorted(chosen))} on a list of frames, which is taken whole")
        for name, value in given.items():
            least = 0 if name in ("video_start", "video_end") else 1e-9
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
                raise ValueError(f"{name} is {value!r}, expected a positive number")
        for one, other in (("resized_height", "resized_width"), ("resized_width", "resized_height")):
            if one in given and other not in given:
                raise ValueError(f"{one} without {other}")
        if "fps" in given and "nframes" in given:
            raise ValueError("both fps and nframes")
        return cls(given, factor)

    @property
    def names_frames(self) -> bool:
        """Whether the medium itself says which of its frames are taken."""
        return not FRAME_SETTINGS.isdisjoint(self.given)

    def image_size(self, size: Size) -> Size:
        """The size to which an image of `size` is brought before it goes to the processor."""
        if not self.factor:
            return size
        least, most = (tokens * self.factor**2 for tokens in _IMAGE_TOKENS)
        return self._fitted(size, self.given.get("min_pixels", least), self.given.get("max_pixels", most))

    def image(self, image: "Image") -> "Image":
        """An image in the size in which it goes to the processor."""
        height, width = self.image_size((image.height, image.width))
        return image.resize((width, height)) if self.factor else image

    def list_of_frames(self, frames: list["Image"]) -> list["Image"]:
        """The frames of a video that is a list of them, an even number, each brought to the size of an image
        of twice the factor before the video is; the last one fills up."""
        if not self.factor:
            return frames
        own = replace(self, factor=2 * self.factor)
        resized = [own.image(frame) for frame in frames]
        return resized + resized[-1:] * (len(resized) % _FRAME_FACTOR)

    def frames(self, about: Mapping[str, Any]) -> list[int] | None:
        """Which frames of a video are taken, evenly spread; None where the processor chooses.

        Args:
            about: `total_num_frames` and `fps` (per second) of the video.

        Raises:
            ValueError: the video has not as many frames.
        """
        if not self.factor:
            return None
        import torch

        rate = about["fps"]
        first, last = self._range(about["total_num_frames"], rate)
        total = last - first + 1
        if "nframes" in self.given:
            count = _FRAME_FACTOR * round(self.given["nframes"] / _FRAME_FACTOR)
        else:
            least = _FRAME_FACTOR * math.ceil(self.given.get("min_frames", _LEAST_FRAMES) / _FRAME_FACTOR)
            most = self.given.get("max_frames", min(_MOST_FRAMES, total)) // _FRAME_FACTOR * _FRAME_FACTOR
            wanted = total / rate * self.given.get("fps", _FRAMES_PER_SECOND)
            count = int(min(max(wanted, least), most, total) // _FRAME_FACTOR * _FRAME_FACTOR)
        if not _FRAME_FACTOR <= count <= total:
            raise ValueError(f"{count} frames asked for, of a video (or a part of it) that has {total}")
        return torch.linspace(first, last, count).round().int().tolist()

    def video(self, frames: np.ndarray) -> np.ndarray:
        """Frames, uint8 of shape (frames, 3, height, width), in the size that the processor is given, and as
        float32 of 0 to 255 where they are resized, as the processor rounds frames of uint8 otherwise."""
        if not self.factor:
            return frames
        from torch import from_numpy
        from torchvision.transforms.functional import InterpolationMode, resize

        least, most = (float(tokens * self.factor**2) for tokens in _FRAME_TOKENS)
        least = self.given.get("min_pixels", least)
        whole = self.given.get("total_pixels", _VIDEO_TOKENS * self.factor**2)
        most = max(min(most, whole / len(frames) * _FRAME_FACTOR), int(least * 1.05))
        most = min(self.given.get("max_pixels", most), most)
        size = self._fitted((frames.shape[2], frames.shape[3]), least, most)
        resized = resize(from_numpy(frames), list(size), InterpolationMode.BICUBIC, antialias=True)
        return resized.float().numpy()

    def _range(self, total: int, rate: float) -> tuple[int, int]:
        """First and last frame between `video_start` and `video_end`, in seconds."""
        if not {"video_start", "video_end"} & self.given.keys():
            return 0, total - 1
        seconds = total / rate
        first = math.ceil(min(self.given.get("video_start", 0.0), seconds) * rate)
        last = min(math.floor(min(self.given.get("video_end", seconds), seconds) * rate), total - 1)
        if first >= last:
            raise ValueError(f"no frames between video_start and video_end in a video of {seconds:g} seconds")
        return first, last

    def _fitted(self, size: Size, least: float, most: float) -> Size:
        """The nearest size of whole tokens, of `least` to `most` pixels and of much the same shape."""
        factor = self.factor
        height, width = map(float, size)
        if "resized_height" in self.given:
            height, width = self.given["resized_height"], self.given["resized_width"]
            least, most = (tokens * factor**2 for tokens in _IMAGE_TOKENS)
        if least > most:
            raise ValueError(f"at least {least:g} pixels are more than at most {most:g}")
        fitted = [max(factor, round(side / factor) * factor) for side in (height, width)]
        area = fitted[0] * fitted[1]
        if area > most:
            ratio = math.sqrt(height * width / most)
            fitted = [max(factor, math.floor(side / ratio / factor) * factor) for side in (height, width)]
        elif area < least:
            ratio = math.sqrt(least / (height * width))
            fitted = [math.ceil(side * ratio / factor) * factor for side in (height, width)]
        return fitted[0], fitted[1]
