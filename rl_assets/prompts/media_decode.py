"""Media decoded for a processor: images with Pillow, videos and audio clips with PyAV."""

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_assets.contract.media_files import IMAGE_FORMATS
from rl_assets.errors import InputError
from rl_assets.prompts.media_source import Medium

if TYPE_CHECKING:
    from PIL.Image import Image

# A playlist or a session description, whatever it is called, would have FFmpeg open what it names: any file,
# any address. These formats hold their own pictures and sound.
_CONTAINERS = """
    aac aiff asf au avi caf flac flv gif matroska,webm mov,mp4,m4a,3gp,3g2,mj2 mp3 mpeg mpegts ogg w64 wav
"""
_OPTIONS = {"format_whitelist": ",".join(_CONTAINERS.split()), "protocol_whitelist": "file"}

FRAMES_PER_SECOND = 2.0
"""Rate of a video that is given as a list of frames, as in verl."""


def image_size(medium: Medium) -> tuple[int, int]:
    """Height and width of an image in pixels, read from its header.

    Raises:
        OSError: no image, or of a format that the contract does not take.
    """
    with _opened_image(medium) as image:
        return image.height, image.width


def read_image(medium: Medium) -> "Image":
    """An image in RGB, its alpha channel laid over white; its EXIF orientation is not applied. As in verl.

    Raises:
        OSError: no image, or one that breaks off.
    """
    from PIL import Image

    with _opened_image(medium) as image:
        if image.mode != "RGBA":
            return image.convert("RGB")
        flat = Image.new("RGB", image.size, (255, 255, 255))
        flat.paste(image, mask=image.getchannel("A"))
        return flat


def read_video(
    medium: Medium, choose: Callable[[dict[str, Any]], Sequence[int]]
) -> tuple[np.ndarray, dict[str, Any]]:
    """Chosen frames of a video; of one that is a list of frames, all.

    Args:
        medium: the video.
        choose: given `total_num_frames`, `fps` (per second), `height`, `width` and `duration` (seconds), says
            which frames to take, in ascending order.

    Returns:
        uint8 of shape (frames, 3, height, width), and the metadata with `frames_indices`.

    Raises:
        ValueError: it has no frames, breaks off, or its frames differ in size.
    """
    if isinstance(medium, list):
        frames = [np.asarray(read_image(frame)) for frame in medium]
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
    with _av().open(opened, container_options=_OPTIONS) as container:
        yield container


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
