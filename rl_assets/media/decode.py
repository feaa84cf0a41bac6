"""Media decoded for a processor: images with Pillow, videos and audio clips with PyAV."""

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_assets.errors import InputError
from rl_assets.media.files import IMAGE_FORMATS
from rl_assets.media.source import Medium

if TYPE_CHECKING:
    from PIL.Image import Image

# A playlist or a session description, whatever it is called, would have FFmpeg open what it names: any file,
# any address. These formats hold their own pictures and sound.
_CONTAINERS = """
    aac aiff asf au avi caf flac flv gif matroska,webm mov,mp4,m4a,3gp,3g2,mj2 mp3 mpeg mpegts ogg w64 wav
"""
_OPTIONS = {"format_whitelist": ",".join(_CONTAINERS.split()), "protocol_whitelist": "file"}

# EXIF's tag, and how pixels are moved for its values (CIPA DC-008, 4.6.5.1); those from 5 on swap the sides.
_ORIENTATION = 0x0112
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_ON_ITS_SIDE = frozenset({5, 6, 7, 8})
_WHITES = (1.0, 255.0, 4095.0, 65_535.0)

FRAMES_PER_SECOND = 2.0
"""Rate of a video that is given as a list of frames, as in verl."""


def image_size(medium: Medium) -> tuple[int, int]:
    """Height and width in pixels of the image that `read_image` gives, read from its header.

    Raises:
        OSError: no image, or of a format that the contract does not take.
    """
    with _opened_image(medium) as image:
        height, width = image.height, image.width
        return (width, height) if _orientation(image) in _ON_ITS_SIDE else (height, width)


def read_image(medium: Medium) -> "Image":
    """An image in RGB, turned as its EXIF orientation says; its alpha channel is laid over white.

    Grey of more than 8 bits keeps its contrast: white is the least of 1, 255, 4095 and 65535 that no pixel
    exceeds, and where there is none, or a pixel is negative, the range of the pixels is spread.

    Raises:
        OSError: no image, or one that breaks off.
    """
    from PIL import Image

    with _opened_image(medium) as image:
        turn = _TURNS.get(_orientation(image))
        seen = _in_eight_bits(image) if _is_deep(image) else image
        if seen.mode != "RGBA":
            flat = seen.convert("RGB")
        else:
            flat = Image.new("RGB", seen.size, (255, 255, 255))
            flat.paste(seen, mask=seen.getchannel("A"))
    return flat if turn is None else flat.transpose(Image.Transpose[turn])


def looks_other_elsewhere(medium: Medium) -> bool:
    """Whether a reader that turns no image and cuts 16 bits to 8, as verl's does, sees another picture."""
    with _opened_image(medium) as image:
        return _is_deep(image) or _orientation(image) in _TURNS


def _is_deep(image: "Image") -> bool:
    return image.mode[0] in "IF"


def _orientation(image: "Image") -> int:
    """The EXIF orientation of an image that is open and not decoded yet, without decoding it.

    Pillow turns a TIFF itself.
    """
    from PIL import Image

    if image.format == "TIFF":
        return 1
    try:
        # A PNG's own method decodes the picture, to look for what may come after it.
        return int(Image.Image.getexif(image).get(_ORIENTATION, 1))
    except Exception:  # of any kind on damaged EXIF, which says nothing then
        return 1


def _in_eight_bits(image: "Image") -> "Image":
    from PIL import Image

    pixels = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
    least, most = float(pixels.min()), float(pixels.max())
    white = next((white for white in _WHITES if most <= white), None)
    low, high = (least, most) if white is None or least < 0 else (0.0, white)
    spread = (pixels - low) * (255 / max(high - low, 1e-9))
    return Image.fromarray(spread.round().astype(np.uint8), "L")


def read_video(
    medium: Medium,
    choose: Callable[[dict[str, Any]], Sequence[int]],
    whole: Callable[[list["Image"]], list["Image"]] = list,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Chosen frames of a video; of one that is a list of frames, all.

    Args:
        medium: the video.
        choose: given `total_num_frames`, `fps` (per second), `height`, `width` and `duration` (seconds), says
            which frames to take, in ascending order.
        whole: what becomes of the frames of a list.

    Returns:
        uint8 of shape (frames, 3, height, width), and the metadata with `frames_indices`.

    Raises:
        ValueError: it has no frames, breaks off, or its frames differ in size.
    """
    if isinstance(medium, list):
        frames = [np.asarray(frame) for frame in whole([read_image(frame) for frame in medium])]
        if len({frame.shape for frame in frames}) != 1:
            raise ValueError("frames of different sizes")
        about = _about(len(frames), FRAMES_PER_SECOND, *frames[0].shape[:2])
        return _stacked(frames), {**about, "frames_indices": list(range(len(frames)))}
    with _container(medium) as container:
        if not container.streams.video:
            raise ValueError("a file without pictures")
        stream = container.streams.video[0]
        total, rate, height, width = stream.frames, stream.average_rate, stream.height, stream.width
    if not total:  # some containers do not say how many frames they hold
        with _container(medium) as container:
            total = sum(1 for _ in container.decode(video=0))
    if not total or not rate:
        raise ValueError("a video without frames or without a frame rate")
    about = _about(total, float(rate), height, width)
    wanted = [int(index) for index in choose(about)]
    if not wanted:
        raise ValueError(f"a video of {total} frames of which none is chosen")
    chosen, last, taken = set(wanted), max(wanted), dict[int, np.ndarray]()
    with _container(medium) as container:
        container.streams.video[0].thread_type = "AUTO"
        for index, frame in enumerate(container.decode(video=0)):
            if index in chosen:
                taken[index] = frame.to_ndarray(format="rgb24")
            if index >= last:
                break
    if missing := sorted(chosen - taken.keys()):
        raise ValueError(f"a video of {total} frames that breaks off before frame {missing[0]}")
    return _stacked([taken[index] for index in wanted]), {**about, "frames_indices": wanted}


def read_audio(medium: Medium, sampling_rate: int) -> np.ndarray:
    """An audio clip, its channels averaged: float32 of shape (samples,), in -1 to 1.

    Args:
        medium: the clip, or a video with a sound track.
        sampling_rate: samples per second of the result.

    Raises:
        ValueError: it has no samples.
    """
    av = _av()
    pieces: list[np.ndarray] = []
    with _container(medium) as container:
        if not container.streams.audio:
            raise ValueError("a file without sound")
        resampler = av.AudioResampler(format="fltp", rate=sampling_rate)
        for frame in itertools.chain(container.decode(audio=0), [None]):
            pieces.extend(made.to_ndarray() for made in resampler.resample(frame))
    if not pieces:
        raise ValueError("a clip without samples")
    return np.concatenate(pieces, axis=1).mean(axis=0, dtype=np.float32)


def _opened_image(medium: Medium) -> "Image":
    from PIL import Image

    if isinstance(medium, list):
        raise ValueError("a list where an image is expected")
    return Image.open(_rewound(medium), formats=IMAGE_FORMATS)


@contextlib.contextmanager
def _container(medium: Medium) -> Iterator[Any]:
    if isinstance(medium, list):
        raise ValueError("a list where a clip is expected")
    source = _rewound(medium)
    opened = str(source) if isinstance(source, Path) else source
    av = _av()
    try:
        with av.open(opened, container_options=_OPTIONS) as container:
            yield container
    except av.error.FFmpegError as error:  # its own text has the path in it
        raise ValueError(
            f"a clip that breaks off, or is of no format that is read ({error.strerror})"
        ) from error


def _rewound(medium: Path | io.BytesIO) -> Path | io.BytesIO:
    if isinstance(medium, io.BytesIO):
        medium.seek(0)
    return medium


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise InputError(
            field="media",
            found="videos or audio clips, and no PyAV to decode them",
            remedy="Install the extra: pip install -e '.[media]'.",
        ) from error
    return av


def _about(frames: int, rate: float, height: int, width: int) -> dict[str, Any]:
    return {
        "total_num_frames": frames,
        "fps": rate,
        "height": height,
        "width": width,
        "duration": frames / rate,
    }


def _stacked(frames: list[np.ndarray]) -> np.ndarray:
    return np.stack(frames).transpose(0, 3, 1, 2)
