"""Texts that are not to be seen: the arguments of a reward function may hold the key of a service."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

_WORD = 3
_NUMBER = 7


class Hidden:
    """Puts the name of the argument in place of every text of the arguments, however deep it is in them.

    A text is found as it is and as `repr`, `ascii`, JSON, bytes, URLs and Base64 write it. One that could be
    a part of any word or number (up to three letters, up to seven digits, a single character) is replaced
    only where it is by itself, so that an argument of `"1"` does not make every message unreadable.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._names: dict[str, str] = {}
        found: dict[str, list[str]] = {"everywhere": [], "alone": []}
        for name, value in arguments.items():
            for text in _texts(value):
                common = _is_common(text)
                for form in _forms(text):
                    if form not in self._names:
                        self._names[form] = f"({name})"
                        found["alone" if common else "everywhere"].append(form)
        self._everywhere = _any_of(found["everywhere"], "{}")
        self._all = _any_of(
            [*found["everywhere"]], "{}", found["alone"], r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"
        )

    def message(self, text: str) -> str:
        """A message that may be shown."""
        return self._replaced(self._all, text)

    def value(self, value: Any) -> Any:
        """A JSON-like value that may be stored. It is data, so a text that any answer may hold stays."""
        if self._everywhere is None:
            return value
        if isinstance(value, str):
            return self._replaced(self._everywhere, value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        return value

    def _replaced(self, pattern: re.Pattern[str] | None, text: str) -> str:
        return text if pattern is None else pattern.sub(lambda found: self._names[found.group()], text)


def _any_of(
    texts: list[str], form: str, more: list[str] | None = None, other: str = "{}"
) -> re.Pattern[str] | None:
    """A pattern for all the texts, the longest first, each in its form."""
    forms = {**dict.fromkeys(texts, form), **dict.fromkeys(more or (), other)}
    ordered = sorted(forms, key=len, reverse=True)
    return re.compile("|".join(forms[text].format(re.escape(text)) for text in ordered)) if forms else None


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value. A key is one where it is no name: names are what messages speak of."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, str):
        yield value
        if "\n" in value:
            yield from (line for line in value.splitlines() if len(line) > _NUMBER)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item)
            if not str(key).isidentifier():
                yield from _texts(key)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _texts(item)


def _is_common(text: str) -> bool:
    text = text.strip()
    if len(text) <= _WORD:
        return len(text) == 1 or text.isalpha() or text.replace(".", "").isdecimal()
    return len(text) <= _NUMBER and text.lstrip("-").replace(".", "").isdecimal()


def _forms(text: str) -> Iterator[str]:
    """The text as messages may write it; none of a text that says nothing, such as a comma."""
    if not any(character.isalnum() for character in text) and len(text) <= _WORD:
        return
    data = text.encode(errors="surrogatepass")
    seen = {text, text.strip(), quote(data), quote(data, safe=""), quote_plus(data)}
    for encoded in (base64.b64encode(data), base64.urlsafe_b64encode(data)):
        # The end is the one part that depends on what follows.
        seen |= {encoded.decode(), encoded.decode().rstrip("=")}
    escaped = {text}
    for _ in range(2):  # what is in the text of an error may be in the text of another
        escaped |= {
            form
            for one in escaped
            for form in (
                repr(one)[1:-1],
                ascii(one)[1:-1],
                json.dumps(one)[1:-1],
                json.dumps(one, ensure_ascii=False)[1:-1],
                repr(one.encode(errors="surrogatepass"))[2:-1],
                one.replace("'", "\\'"),
            )
        }
    yield from sorted((seen | escaped) - {""}, key=len, reverse=True)
