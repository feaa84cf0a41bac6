"""Small media, and rows that have them."""

import io
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image


def picture(height: int = 50, width: int = 30, mode: str = "RGB") -> Image.Image:
    """An image of noise that depends on its size alone."""
    noise = np.random.default_rng(1000 * height + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise).convert(mode)


def png(height: int = 50, width: int = 30, mode: str = "RGB", **options: Any) -> bytes:
    """The same as a PNG file."""
    sink = io.BytesIO()
    picture(height, width, mode).save(sink, "PNG", **options)
    return sink.getvalue()


def video(path: Path, frames: int = 24, rate: int = 8, height: int = 32, width: int = 48) -> Path:
    """A video whose frame k is grey of brightness 10·k."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            grey = np.full((height, width, 3), 10 * number, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())
    return path


def sound(path: Path, seconds: float = 0.5, rate: int = 8000, channels: int = 2) -> Path:
    """A 440 Hz tone, at half the full scale in the first channel and silent in the others."""
    samples = np.zeros((int(seconds * rate), channels), dtype="<i2")
    samples[:, 0] = 16383 * np.sin(2 * np.pi * 440 * np.arange(len(samples)) / rate)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return path


def row(content: Any, *, system: str | None = None, **media: Sequence[Any]) -> dict[str, Any]:
    """A row of the raw file `data/train.jsonl` as the contract passes it on."""
    before = [{"role": "system", "content": system}] if system else []
    return {
        "uid": "u1",
        "source_file": "data/train.jsonl",
        "source_row": 3,
        "prompt": [*before, {"role": "user", "content": content}],
        **media,
    }
