"""Values as JSON text, strictly: what cannot come out exactly as it went in is found, with its path.

msgspec does the encoding because it is some ten times faster than the standard library. It also writes NaN
as null, dates as text and bytes as base64, so nothing is given to it that was not looked through before.
"""

import base64
import contextlib
import json
import math
from typing import Any

import msgspec

MAX_DEPTH = 64
MAX_ROW_VALUES = 1 << 19
_MAX_SHOWN = 40
_MAX_SHOWN_BITS = 128
ATOMS = frozenset({str, int, bool, type(None)})

encode_plain = msgspec.json.Encoder().encode
"""A plain value (`is_plain`) as UTF-8 JSON."""
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
decode = msgspec.json.Decoder().decode


def is_plain(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether `value` is made of null, booleans, finite numbers, text, lists and objects with text keys,
    nested at most `depth` deep. Lone surrogates in text are not looked for."""
    kind = type(value)
    if kind in ATOMS:
        return True
    if kind is float:
        return math.isfinite(value)
    if depth <= 0:
        return False
    if kind is list:
        items = value
    elif kind is dict:
        try:
            "".join(value)  # The fastest way to ask whether all keys are text.
        except TypeError:
            return False
        items = value.values()
    else:
        return False
    # A plain loop that asks for atoms itself: calls and generators would take most of the time.
    for item in items:  # noqa: SIM110
        if type(item) not in ATOMS and not is_plain(item, depth - 1):
            return False
    return True


def parse(text: str) -> Any:
    """The value of JSON text that stands in a row, exactly as written there.

    Raises:
        ValueError: it is no JSON, or no reader gives it back whole; the message says what was found.
    """
    try:
        value = decode(text)
        if (key := repeated_key(text.encode(), value)) is not None:
            raise ValueError(f"JSON text with the key {quote(key)} twice in one object")
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise ValueError("text that is not JSON") from error
    return value


def repeated_key(raw: bytes, value: Any) -> str | None:
    """A key that an object in JSON text names twice, or None; `value` is what the text was decoded to."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                repeated.append(key)
            seen.add(key)

    # A key that stands twice is decoded once, so that a quotation mark is missing when encoded again.
    with contextlib.suppress(UnicodeEncodeError, RecursionError):
        if raw.count(b'"') != encode_plain(value).count(b'"'):
            json.loads(raw, object_pairs_hook=look)
    return repeated[0] if repeated else None


def to_json(value: Any) -> str:
    """`value` as compact JSON text that decodes to an equal value, in the order of its keys.

    Raises:
        TypeError: the value holds something that JSON cannot say (bytes, dates, sets).
        ValueError: the value refers to itself.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def utf8_json(value: Any) -> str:
    """Like `to_json`; text with unpaired surrogates, which UTF-8 cannot hold, is written in ASCII escapes."""
    text = to_json(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


def canonical_json(value: Any) -> str:
    """Like `to_json` with the keys sorted: equal values give equal text, so it can be digested."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def canonical(value: Any) -> bytes:
    """UTF-8 JSON of a plain value with its keys sorted: equal values give equal bytes."""
    return _encode_sorted(value)


def join(path: str, key: str) -> str:
    """The path of `key` inside the object at `path`."""
    key = key if len(key) <= 40 else key[:39] + "…"
    if key.isidentifier():
        return f"{path}.{key}" if path else key
    return f"{path}[{json.dumps(key)}]" if path else json.dumps(key)


def describe(value: Any) -> str:
    """What kind of value this is, in words; of its content, only a short number."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        short = isinstance(value, float) or value.bit_length() <= _MAX_SHOWN_BITS
        return f"the number {value}" if short else "a number"
    if isinstance(value, str):
        return f"text of {len(value)} characters" if value else "empty text"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, dict):
        return "an object" if value else "an empty object"
    return f"a {type(value).__name__}"


def show(value: Any) -> str:
    """A value that may be shown: short text in quotes, anything else as `describe` has it."""
    return quote(value) if isinstance(value, str) and 0 < len(value) <= _MAX_SHOWN else describe(value)


def quote(text: str) -> str:
    """A short label (a role, a source) in quotes, cut to 40 characters."""
    return json.dumps(
        text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…", ensure_ascii=not text.isprintable()
    )


def dump_anything(value: Any) -> str:
    """Any row as JSON text: bytes become ``{"$bytes": base64}``, other foreign values ``{"$<type>": text}``.

    Text with lone surrogates is written in ASCII escapes, so the result is always encodable.
    """
    return utf8_json(_wrapped(value))


def _wrapped(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): _wrapped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_wrapped(item) for item in value]
    return {f"${type(value).__name__}": str(value)}
