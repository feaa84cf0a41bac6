"""Finished responses on disk, one line each, found again by key: nothing is generated twice."""

import base64
import contextlib
import json
import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np

from rl_assets.base import formats
from rl_assets.base.digests import digest_bytes
from rl_assets.base.files import locked, make_folder, named_errors, put_aside
from rl_assets.base.jsontext import to_json
from rl_assets.rollout.requests import Response

_CHECK_DIGITS = 8


class _Place(NamedTuple):
    """Where a line is: `length` bytes of `file`, from `start` on, without the line's end."""

    file: Path
    start: int
    length: int


class Journal:
    """A folder of append-only files of responses.

    A process appends to a file of its own and indexes all of them at the start, so several may work in one
    folder at once, and what a killed one has written stays good: a line counts only when it is whole and
    its check digits hold. Two lines with one key hold the same response. In memory are the keys and where
    their lines are; a response is read when it is asked for. A lock file is beside the file that a process
    writes, so that `rl-assets gc` leaves it alone.

    Args:
        folder: a local folder; made on the first write.

    Raises:
        InputError: a newer release wrote there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._held = contextlib.ExitStack()
        self._places: dict[str, _Place] = {}
        for file in sorted(folder.glob("*.jsonl")):
            if file.is_dir():
                put_aside(file, "a folder in the place of a file")
                continue
            start = 0
            with file.open("rb") as lines:
                for line in lines:
                    entry = _entry(line.removesuffix(b"\n"), file)
                    if entry:
                        self._places[entry["key"]] = _Place(file, start, len(line) - line.endswith(b"\n"))
                    start += len(line)

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: str) -> Response | None:
        """The response with this key, or None: it was never added, or its line is damaged or gone since."""
        place = self._places.get(key)
        if place is None:
            return None
        try:
            with place.file.open("rb") as stream:
                stream.seek(place.start)
                entry = _entry(stream.read(place.length), place.file)
        except FileNotFoundError:  # a process that only reads holds no lock, and `gc` may take the file
            return None
        return _response(entry) if entry else None

    def add(self, key: str, response: Response) -> None:
        """Keep a response; the operating system has it on return, so killing the process loses nothing."""
        if self._file is None:
            make_folder(self._folder)
            path = self._folder / f"{uuid.uuid4().hex}.jsonl"
            self._held.enter_context(locked(path.with_suffix(".lock")))
            self._file = self._held.enter_context(path.open("ab", buffering=0))
        file, line = Path(self._file.name), _encoded(key, response)
        start = self._file.seek(0, os.SEEK_END)
        with named_errors(file):
            try:
                rest = memoryview(line)
                while rest:  # a full disk takes a part first, and says why at the next byte
                    rest = rest[self._file.write(rest) :]
            except OSError:
                self._file.truncate(start)  # else the next line would be a part of this torn one
                raise
        self._places[key] = _Place(file, start, len(line) - 1)

    def close(self) -> None:
        """Write through to the disk and let go of the file."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file = None
        self._held.close()

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


def _entry(line: bytes, file: Path) -> dict[str, Any] | None:
    """What a line holds; None where it is torn or damaged."""
    check, _, text = line.partition(b" ")
    if check != digest_bytes(text)[:_CHECK_DIGITS].encode():
        return None
    entry: dict[str, Any] = json.loads(text)
    formats.refuse_newer(str(file), formats.version(entry), formats.JOURNAL)
    return entry


def _response(entry: dict[str, Any]) -> Response:
    return Response(
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
