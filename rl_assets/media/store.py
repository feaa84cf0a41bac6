"""Media once: the bytes of images, videos and audio clips, each kept under the digest of its content."""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

from upath import UPath

from rl_assets.base.digests import digest_bytes
from rl_assets.base.files import publish_file
from rl_assets.base.formats import UnreadableError
from rl_assets.errors import InputError

# A reference stands in a shard, and a file is looked for under it.
_DIGEST = re.compile(r"[0-9a-f]{32}")


class MediaReference(TypedDict):
    """What a shard holds where a row held bytes: ``{"bytes": {"digest": …}, "path": null}``.

    Attributes:
        digest: of the bytes, 32 hex digits; the `MediaStore` keeps them under it.
    """

    digest: str


@dataclass(frozen=True)
class MediaStore:
    """A folder of files named by the digest of their bytes, so that equal media are stored once.

    Attributes:
        root: the folder, local or any fsspec URL.
    """

    root: Path | UPath

    def put(self, data: bytes) -> str:
        """Store `data` where it is not there yet; returns its digest (32 hex digits)."""
        digest = digest_bytes(data)
        path = self._path(digest)
        if not path.exists() or path.stat().st_size != len(data):
            with tempfile.TemporaryDirectory(prefix="rl-assets-") as folder:
                staged = Path(folder) / "medium"
                staged.write_bytes(data)
                publish_file(staged, path)
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes stored under `digest`.

        Raises:
            UnreadableError: they are missing, or have changed since they were stored.
        """
        with self.open(digest) as stream:
            data = stream.read()
        if digest_bytes(data) != digest:
            raise self._refusal(digest, "other bytes than were stored")
        return data

    def open(self, digest: str) -> BinaryIO:
        """The bytes stored under `digest` as a stream, for media too large to hold; not verified.

        Raises:
            UnreadableError: they are missing.
        """
        try:
            return self._path(digest).open("rb")
        except FileNotFoundError:
            raise self._refusal(digest, "nothing") from None

    def __contains__(self, digest: str) -> bool:
        return self._path(digest).exists()

    def _path(self, digest: str) -> Path | UPath:
        if not _DIGEST.fullmatch(digest):
            raise InputError(
                field="digest",
                found=repr(digest),
                expected="32 hex digits",
                remedy="Materialise proto_shards again: it stores the media that its rows hold.",
            )
        return self.root / digest[:2] / digest

    def _refusal(self, digest: str, found: str) -> UnreadableError:
        return UnreadableError(
            file=str(self._path(digest)),
            found=found,
            expected=f"the medium with the digest {digest}",
            remedy="Materialise proto_shards again: it stores the media that its rows hold.",
        )


def by_reference(item: Any, media: MediaStore | None) -> Any:
    """A medium of a row (a path, or an object) with its bytes, where it has any, put into `media`.

    Raises:
        InputError: the medium has bytes, and there is no store for them.
    """
    if not isinstance(item, dict) or not isinstance(item.get("bytes"), bytes):
        return item
    if media is None:
        raise InputError(
            field="media",
            found=f"a medium of {len(item['bytes']):,} bytes and no store to put it into",
            remedy="Give a MediaStore: rows of a shard hold references, never bytes.",
        )
    return {**item, "bytes": MediaReference(digest=media.put(item["bytes"]))}
