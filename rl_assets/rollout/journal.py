"""Finished responses on disk, one line each, found again by key: nothing is generated twice."""

import base64
import contextlib
import fcntl
import json
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from rl_assets.base import formats
from rl_assets.base.digests import digest_bytes
from rl_assets.base.files import make_folder, named_errors, put_aside
from rl_assets.base.jsontext import to_json
from rl_assets.rollout.requests import Response

_CHECK_DIGITS = 8


class Journal:
    """A folder of append-only files of responses.

    A process appends to a file of its own and reads all of them at the start, so several may work in one
    folder at once, and what a killed one has written stays good: a line counts only when it is whole and
    its check digits hold. Two lines with one key hold the same response. A file is locked while a process
    writes it, so that `rl-assets gc` leaves it alone.

    Args:
        folder: a local folder; made on the first write.

    Raises:
        InputError: a newer release wrote there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._found: dict[str, Response] = {}
        for file in sorted(folder.glob("*.jsonl")):
            if file.is_dir():
                put_aside(file, "a folder in the place of a file")
                continue
            for line in file.read_bytes().split(b"\n"):
                entry = _decoded(line, file)
                if entry:
                    self._found[entry[0]] = entry[1]

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: str) -> Response | None:
        """The response with this key, or None."""
        return self._found.get(key)

    def add(self, key: str, response: Response) -> None:
        """Keep a response; the operating system has it on return, so killing the process loses nothing."""
        if self._file is None:
            make_folder(self._folder)
            self._file = (self._folder / f"{uuid.uuid4().hex}.jsonl").open("ab", buffering=0)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        line = _encoded(key, response)
        with named_errors(Path(self._file.name)):
            if (written := self._file.write(line)) != len(line):
                raise OSError(f"only {written} of {len(line)} bytes of a line could be written")
        self._found[key] = response

    def close(self) -> None:
        """Write through to the disk and let go of the file."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _encoded(key: str, response: Response) -> bytes:
    text = to_json(
        {
            formats.KEY: formats.JOURNAL,
            "key": key,
            "finish_reason": response.finish_reason,
            "token_ids": response.token_ids,
            "log_probs": _packed(response.log_probs),
            "raw_log_probs": _packed(response.raw_log_probs),
        }
    ).encode()
    return digest_bytes(text)[:_CHECK_DIGITS].encode() + b" " + text + b"\n"


def _decoded(line: bytes, file: Path) -> tuple[str, Response] | None:
    check, _, text = line.partition(b" ")
    if check != digest_bytes(text)[:_CHECK_DIGITS].encode():
        return None
    entry: dict[str, Any] = json.loads(text)
    formats.refuse_newer(str(file), formats.version(entry), formats.JOURNAL)
    return entry["key"], Response(
        token_ids=entry["token_ids"],
        log_probs=_unpacked(entry["log_probs"]),
        raw_log_probs=_unpacked(entry["raw_log_probs"]),
        finish_reason=entry["finish_reason"],
    )


def _packed(values: list[float]) -> str:
    # The values come from float32 tensors, so four bytes hold each of them exactly.
    return base64.b64encode(np.array(values, dtype="<f4").tobytes()).decode()


def _unpacked(text: str) -> list[float]:
    return np.frombuffer(base64.b64decode(text), dtype="<f4").tolist()
