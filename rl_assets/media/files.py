"""Where media lie and whether they can be used: paths, data URIs, bytes, hosts; images are decoded."""

import base64
import io
import os
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from rl_assets.base.digests import digest_bytes, digest_file
from rl_assets.base.files import is_url
from rl_assets.base.jsontext import describe, quote
from rl_assets.media.boxes import cut_short
from rl_assets.media.forms import path_of

# Pillow reads more, among them formats whose decoders start other programs. MPO is opened as JPEG; named
# here, Pillow would fail on every format that follows.
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
MAX_ASPECT = 200
MAX_IMAGE_BYTES = 256 << 20
_LONGEST_PATH = 4096

Fault = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Seen:
    """What looking at one medium gave.

    Attributes:
        digest: BLAKE2b of its bytes, None where they were not read.
        address: the URL of a medium that is fetched later.
        faults: code and message of each error and warning.
    """

    digest: str | None = None
    address: str | None = None
    faults: tuple[Fault, ...] = ()


def _fault(code: str, message: str) -> Seen:
    return Seen(faults=((code, message),))


def without_medium(item: dict[str, Any], modality: str) -> str:
    """What is said of an object in which no medium is found: the keys that it has, and those expected."""
    keys = ", ".join(quote(str(key)) for key in item if key != "type") or "no key"
    return f"found an object with {keys}, expected `{modality}` with a path or a data: URI, or `bytes`"


@dataclass(frozen=True, kw_only=True)
class MediaRules:
    """Which media may be read.

    Attributes:
        media_root: folder that media paths are relative to and may not leave, relative to the project's
            root; by default the folder of the data file.
        allowed_hosts: hosts from which media may be fetched later; nothing is fetched here.
        max_image_pixels: largest image, in pixels.
    """

    media_root: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    max_image_pixels: int = 89_478_485


@dataclass
class MediaReader:
    """Looks at the media of one raw file.

    Attributes:
        options: of the contract.
        folder: what media paths are relative to and may not leave; None where the raw file is remote.
    """

    options: MediaRules
    folder: Path | None
    _files: dict[tuple[Path, bool], Seen] = field(default_factory=dict)
    _verdicts: dict[str, tuple[Fault, ...]] = field(default_factory=dict)

    @classmethod
    def for_file(cls, source_file: str, options: MediaRules, root: Path) -> "MediaReader":
        """The reader for media of the raw file at a manifest's path."""
        if options.media_root is not None:
            folder: Path | None = root / os.path.expanduser(options.media_root)
        else:
            folder = None if is_url(source_file) else (root / source_file).parent
        return cls(options, folder)

    @property
    def opened(self) -> set[Path]:
        """The files that were looked at, those too that are missing; none outside the media folder."""
        return {
            path
            for (path, _), seen in self._files.items()
            if "media.outside_folder" not in (code for code, _ in seen.faults)
        }

    def look(self, payload: Any, modality: str, *, bare: bool = False) -> Seen:
        """Find the medium that `payload` means, read it, and (an image) decode it.

        Args:
            payload: bytes, a path, a URL, a data URI, or (video) a list of frames.
            bare: the payload stands in the list itself and not in an object.
        """
        if type(payload) is bytes:
            if bare:
                return _fault("media.bad_item", f"found {describe(payload)}, expected an object around them")
            return self._judge(payload, modality)
        if type(payload) is str and payload:
            return self._look_up(payload, modality)
        if type(payload) is list and payload and modality == "video":
            return self._frames(payload)
        if type(payload) is dict:
            return self._look_inside(payload, modality)
        expected = "a path, a data: URI or an object with bytes or path"
        return _fault(
            "media.bad_item",
            f"found {'nothing' if payload is None else describe(payload)}, expected {expected}",
        )

    def _look_inside(self, payload: dict[str, Any], modality: str) -> Seen:
        for key in ("bytes", "path", "url"):
            if (value := payload.get(key)) is not None and type(value) is not dict:
                return self.look(value, modality)
        return _fault("media.bad_item", without_medium(payload, modality))

    def _frames(self, frames: list[Any]) -> Seen:
        seen = [self.look(frame, "image") for frame in frames]
        faults = tuple(fault for frame in seen for fault in frame.faults)
        digests = "".join(frame.digest or frame.address or "" for frame in seen)
        return Seen(None if faults else digest_bytes(digests.encode()), faults=faults)

    def _look_up(self, text: str, modality: str) -> Seen:
        if text.startswith("data:"):
            return self._data_uri(text, modality)
        if text.startswith("file://"):
            return self._file(path_of(text), modality)
        if "://" in text[:20]:
            return self._url(text, modality)
        if len(text) > _LONGEST_PATH or "\0" in text or "\n" in text:
            return _fault(
                "media.bad_item", f"found {describe(text)}, which is no path; base64 needs `data:` before it"
            )
        return self._file(text, modality)

    def _url(self, text: str, modality: str) -> Seen:
        try:
            url = urlsplit(text)
            host = url.hostname or ""
        except ValueError:
            return _fault("media.bad_item", "found a URL that cannot be read")
        if url.scheme not in ("http", "https"):
            return _fault("media.remote", f"found a medium under {quote(url.scheme)}")
        if host not in self.options.allowed_hosts:
            return _fault("media.remote", f"found a medium on the host {quote(host)}")
        return Seen(address=text)

    def _data_uri(self, text: str, modality: str) -> Seen:
        head, comma, body = text.partition(",")
        if not comma or not head.endswith(";base64"):
            return _fault("media.bad_item", "found a data: URI that is not base64")
        try:
            data = base64.b64decode(body, validate=True)
        except ValueError as error:
            return _fault("media.unreadable", f"found base64 that cannot be decoded ({error})")
        return self._judge(data, modality)

    def _file(self, name: str, modality: str) -> Seen:
        if self.folder is None:
            return _fault("media.file_missing", "found a path in a remote file; set `contract.media_root`")
        # An image is decoded; a clip of the same name is not.
        looked_at = self.folder / name, modality == "image"
        if (known := self._files.get(looked_at)) is not None:
            return known
        seen = self._files[looked_at] = self._open_file(looked_at[0], name, modality)
        return seen

    def _open_file(self, path: Path, name: str, modality: str) -> Seen:
        try:
            real = path.resolve()
            if not real.is_relative_to(self.folder.resolve()):  # type: ignore[union-attr]
                return _fault("media.outside_folder", "found a path that leads out of the media folder")
            if not real.is_file():
                return _fault("media.file_missing", f"found no file {quote(name)}")
            if modality == "image" and (size := real.stat().st_size) > MAX_IMAGE_BYTES:
                return _fault(
                    "media.image_size",
                    f"found an image file of {size >> 20} MiB, expected at most {MAX_IMAGE_BYTES >> 20}",
                )
            if modality == "image":
                return self._judge(real.read_bytes(), modality)
            if not (size := real.stat().st_size):
                return _fault("media.unreadable", "found an empty file")
            with real.open("rb") as stream:
                return Seen(digest_file(real), faults=_cut(stream, size))
        except (OSError, RuntimeError, ValueError) as error:
            return _fault("media.unreadable", f"found a file that cannot be opened ({type(error).__name__})")

    def _judge(self, data: bytes, modality: str) -> Seen:
        if not data:
            return _fault("media.unreadable", "found no bytes at all")
        digest = digest_bytes(data)
        if modality != "image":
            return Seen(digest, faults=_cut(io.BytesIO(data), len(data)))
        if (faults := self._verdicts.get(digest)) is None:
            faults = self._verdicts[digest] = tuple(image_faults(data, self.options.max_image_pixels))
        return Seen(digest, faults=faults)


def _cut(clip: BinaryIO, size: int) -> tuple[Fault, ...]:
    lacking = cut_short(clip, size)
    return () if lacking is None else (("media.truncated", f"found a file that breaks off: {lacking}"),)


def image_faults(data: bytes, max_pixels: int) -> list[Fault]:
    """Decode an image to its last pixel and say what is wrong with it."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as image:
                width, height = image.size
                if width * height > max_pixels:
                    found = f"found {width} × {height} pixels, expected at most {max_pixels:,} in all"
                    return [("media.image_size", found)]
                if max(width, height) > MAX_ASPECT * min(width, height):
                    found = f"found {width} × {height} pixels, expected sides at most {MAX_ASPECT} to 1"
                    return [("media.image_size", found)]
                image.load()
                mode = image.mode
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        # Raised on opening, before the sides are known; the message begins with their product.
        product = re.search(r"\d+", str(error))
        found = f"{int(product.group()):,}" if product else "too many"
        return [("media.image_size", f"found {found} pixels, expected at most {max_pixels:,}")]
    except UnidentifiedImageError:
        if (name := other_format(data)) is not None:
            return [("media.unreadable", f"found {name}, expected {', '.join(IMAGE_FORMATS)}")]
        return [("media.unreadable", f"found {len(data)} bytes that are no image")]
    except Exception as error:  # Pillow's decoders raise errors of any kind on hostile data.
        if "truncated" in str(error).lower():
            return [("media.truncated", f"found an image that breaks off ({str(error)[:80]})")]
        return [("media.unreadable", f"found an image that cannot be decoded ({type(error).__name__})")]
    return [] if mode == "RGB" else [("media.image_mode", f"found mode {mode}")]


_MAGIC = (
    (b"\0\0\1\0", "an icon (ICO)"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 image"),
    (b"\xffO\xffQ", "a JPEG 2000 image"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL image"),
    (b"\xff\x0a", "a JPEG XL image"),
    (b"8BPS", "a Photoshop file"),
    (b"%PDF", "a PDF file"),
    (b"%!PS", "a PostScript file"),
    (b"v/1\1", "an OpenEXR image"),
    (b"DDS ", "a DDS texture"),
    (b"qoif", "a QOI image"),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (b"PK\3\4", "a ZIP archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"version https://git-lfs", "a Git LFS pointer in place of the file (`git lfs pull` brings it)"),
)
_BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1"), "a HEIC image"),
    **dict.fromkeys((b"avif", b"avis"), "an AVIF image"),
}


def other_format(data: bytes) -> str | None:
    """What bytes are that are no image of a format that is read, by how they begin; None where unknown."""
    if (name := next((name for magic, name in _MAGIC if data.startswith(magic)), None)) is not None:
        return name
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "an MP4 video")
    if data[128:132] == b"DICM":
        return "a DICOM image"
    text = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<svg", b"<?xml", b"<!--", b"<!doctype svg")) and b"<svg" in text:
        return "an SVG drawing"
    return "a page of HTML" if text.startswith((b"<!doctype html", b"<html")) else None
