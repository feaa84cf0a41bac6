"""The one error that users meet: it says where, what was found, what was expected, and what to do."""

import re
from functools import partial
from pathlib import PurePath
from typing import Any

# What a terminal obeys (C0 and C1 controls, but for line break and tab), and what turns text around.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text whose control characters show as escapes, such as ``\\x1b``, instead of moving the cursor,
    clearing the screen, or turning the words around."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


class InputError(ValueError):
    """Something that a user gave (a file, a row, a setting, a checkpoint) cannot be used.

    The message is built from the parts, so that every error of the project reads alike (and is `printable`)::

        data/math/train.jsonl, row 12: field `reward_model`: found the text "72", expected an object
        with `ground_truth`. Store the object itself, not its JSON text.

    Attributes:
        file: the file at fault, as the user wrote it, or None.
        row: position of the row in that file, counted from 0, or None.
        field: path of the field (``prompt[2].content``) or setting (``data.train_files``), or None.
        found: what is there.
        expected: what would have been accepted, or None where `found` says it all.
        remedy: what to do about it.
    """

    def __init__(
        self,
        *,
        found: str,
        remedy: str,
        expected: str | None = None,
        file: str | PurePath | None = None,
        row: int | None = None,
        field: str | None = None,
    ) -> None:
        self.file = None if file is None else str(file)
        self.row = row
        self.field = field
        self.found = found
        self.expected = expected
        self.remedy = remedy
        super().__init__(printable(self._message()))

    def __reduce__(self) -> tuple[Any, ...]:
        # An error that crosses from a worker process is pickled; its arguments are all keywords.
        names = ("file", "row", "field", "found", "expected", "remedy")
        return partial(type(self), **{name: getattr(self, name) for name in names}), ()

    def _message(self) -> str:
        place = self.file or ""
        if self.row is not None:
            place += f"{', ' if place else ''}row {self.row}"
        if self.field:
            place += f"{': ' if place else ''}field `{self.field}`"
        finding = f"found {self.found}"
        if self.expected:
            finding += f", expected {self.expected}"
        return f"{place + ': ' if place else ''}{finding}. {self.remedy}"


def first_line(error: BaseException) -> str:
    """The first line of another library's error, or its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
