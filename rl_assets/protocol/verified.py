"""Files whose every block has a known digest, so that reading a part verifies that part."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from upath import UPath

from rl_assets.base.digests import digest_bytes

BLOCK_BYTES = 1 << 18


class DamagedError(Exception):
    """A file is not the one that was recorded; the message says how."""


class FileRecord(BaseModel):
    """What a file must be.

    Attributes:
        size: its bytes.
        blocks: the digest of each of its blocks of `BLOCK_BYTES` bytes, in order.
    """

    model_config = ConfigDict(frozen=True)

    size: int
    blocks: list[str]

    @classmethod
    def of(cls, data: bytes | memoryview) -> "FileRecord":
        """The record of a file with this content."""
        view = memoryview(data)
        starts = range(0, len(view), BLOCK_BYTES)
        return cls(size=len(view), blocks=[digest_bytes(view[s : s + BLOCK_BYTES]) for s in starts])


def read_verified(path: Path | UPath, record: FileRecord) -> bytes:
    """All bytes of a file.

    Raises:
        DamagedError: they are not those of the record.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    if len(data) != record.size:
        raise DamagedError(f"{len(data):,} bytes instead of {record.size:,}")
    for index, found in enumerate(FileRecord.of(data).blocks):
        if found != record.blocks[index]:
            raise DamagedError(_changed(index))
    return data


@dataclass
class VerifiedFile(io.RawIOBase):
    """A stream over a file that verifies each block when it is first read, and reads no other.

    Reading raises `DamagedError` where a block is not the recorded one, `OSError` where it cannot be read.
    """

    path: Path | UPath
    record: FileRecord
    _position: int = 0
    _verified: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (size := self.path.stat().st_size) != self.record.size:
            raise DamagedError(f"{size:,} bytes instead of {self.record.size:,}")
        self._stream = self.path.open("rb")

    def close(self) -> None:
        self._stream.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.record.size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self.range(self._position, self._position + len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def range(self, start: int, stop: int) -> bytes:
        """The bytes from `start` up to `stop` or the end of the file."""
        stop = min(stop, self.record.size)
        if stop <= start:
            return b""
        first = start // BLOCK_BYTES
        data = b"".join(self._block(index) for index in range(first, (stop - 1) // BLOCK_BYTES + 1))
        return data[start - first * BLOCK_BYTES : stop - first * BLOCK_BYTES]

    def _block(self, index: int) -> bytes:
        if index not in self._verified:
            self._stream.seek(index * BLOCK_BYTES)
            data = self._stream.read(BLOCK_BYTES)
            if digest_bytes(data) != self.record.blocks[index]:
                raise DamagedError(_changed(index))
            self._verified[index] = data
        return self._verified[index]


def _changed(index: int) -> str:
    return f"other bytes than were written, between byte {index * BLOCK_BYTES:,} and the next {BLOCK_BYTES:,}"
