"""The records of a json file that is one array, one object around an array, or several objects in a row."""

import io
import json
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

_CHUNK: Final = 1 << 20
_SPACE: Final = " \t\r\n"


class MalformedJson(Exception):
    """The text cannot be read further; `code` is the rule of `CODES` that says why."""

    def __init__(self, message: str, code: str = "file.malformed") -> None:
        super().__init__(message)
        self.code = code


class JsonStream:
    """Decodes a UTF-8 stream value by value and holds no more than one value and a chunk of text.

    Args:
        stream: the bytes, a byte order mark allowed.
        max_bytes: largest value, in bytes of memory.
        max_values: most values inside one; it may be found out only at twice as many.
    """

    def __init__(self, stream: BinaryIO, max_bytes: int, max_values: int) -> None:
        self._max_bytes = max_bytes
        self._max_values = max_values
        self._decoder = json.JSONDecoder()
        self._characters = io.TextIOWrapper(stream, "utf-8-sig", newline="")
        self._text = ""
        self._at = 0
        self._line = 1

    def records(self) -> Iterator[tuple[Any, str]]:
        """Each record and its own text.

        Raises:
            MalformedJson: the text ends or breaks off; the records before that have been given.
        """
        first = self._peek()
        if first == "[":
            yield from self._elements()
        elif first:
            value, text = self._value()
            wrapped = None if self._peek() else _wrapped_records(value)
            if wrapped is not None:
                yield from ((record, json.dumps(record, ensure_ascii=False)) for record in wrapped)
                return
            yield value, text
            while self._peek():
                yield self._value()
            return
        if self._peek():
            raise MalformedJson(f"found text after the end of the array, at line {self._line_here()}")

    def _elements(self) -> Iterator[tuple[Any, str]]:
        self._at += 1
        if self._peek() == "]":
            self._at += 1
            return
        while True:
            yield self._value()
            mark = self._peek()
            self._at += 1
            if mark == "]":
                return
            if mark != ",":
                found = f"{mark!r}" if mark else "the end of the file"
                raise MalformedJson(f"found {found} at line {self._line_here()}, expected `,` or `]`")

    def _peek(self) -> str:
        """The next character that is not a space, or "" at the end; the cursor is on it."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._read(_CHUNK):
                return ""

    def _value(self) -> tuple[Any, str]:
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos > len(self._text) - 16
                if not cut or not self._grow():
                    line = self._line + self._text.count("\n", 0, error.pos)
                    raise MalformedJson(f"found line {line} that is not JSON: {error.msg}") from None
            except RecursionError:
                raise MalformedJson(
                    "found a value nested beyond what can be read", "value.too_deep"
                ) from None
            except ValueError as error:
                raise MalformedJson(f"found a number that cannot be read ({error})") from None
            else:
                # A number that touches the end of the text may go on in the next chunk.
                if end < len(self._text) or not self._grow():
                    text, self._at = self._text[self._at : end], end
                    return value, text

    def _grow(self) -> bool:
        held = len(self._text) - self._at
        if held and sys.getsizeof(self._text) * held // len(self._text) > self._max_bytes:
            raise MalformedJson(f"found a row of more than {self._max_bytes >> 20} MiB", "file.row_too_large")
        marks = sum(self._text.count(mark, self._at) for mark in ",[{") if held > self._max_values else 0
        if marks > self._max_values:
            found = f"found a row of more than {self._max_values:,} values"
            raise MalformedJson(found, "file.row_too_large")
        return self._read(max(_CHUNK, held))

    def _read(self, size: int) -> bool:
        try:
            piece = self._characters.read(size)
        except UnicodeDecodeError as error:
            raise MalformedJson(f"found bytes that are not UTF-8 ({error.reason})", "text.not_utf8") from None
        if not piece:
            return False
        self._line += self._text.count("\n", 0, self._at)
        self._text = self._text[self._at :] + piece
        self._at = 0
        return True

    def _line_here(self) -> int:
        return self._line + self._text.count("\n", 0, self._at)


def _wrapped_records(value: Any) -> list[Any] | None:
    """The records inside an object such as ``{"data": [{…}, …]}``; None where the object is a row itself."""
    if type(value) is not dict:
        return None
    lists = [
        item
        for item in value.values()
        if type(item) is list and item and all(type(record) is dict for record in item)
    ]
    if len(lists) != 1 or "prompt" in value or any("role" in record for record in lists[0]):
        return None
    schema = value.get("schema")
    by_pandas = type(schema) is dict and "pandas_version" in schema and schema.get("primaryKey") == ["index"]
    if by_pandas and [record.get("index") for record in lists[0]] == [*range(len(lists[0]))]:
        # orient="table" writes the numbers of the rows as a column, which the frame does not have.
        return [{key: item for key, item in record.items() if key != "index"} for record in lists[0]]
    return lists[0]


def pandas_orient(value: dict[str, Any]) -> str | None:
    """How pandas was told to write a whole table into this one object, or None where it is a row."""
    if value.keys() == {"columns", "index", "data"}:
        return 'orient="split"'
    objects = list(value.values())
    if not objects or any(type(one) is not dict or one.keys() != objects[0].keys() for one in objects):
        return None
    inner = objects[0].keys()
    if "prompt" in value or (inner and all(map(str.isdigit, inner))):
        return 'orient="columns"'
    return 'orient="index"' if "prompt" in inner or all(map(str.isdigit, value)) else None
