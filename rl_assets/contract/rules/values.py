"""Values that JSON text cannot say, each with its path: a finding of the contract."""

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from rl_assets.base.jsontext import ATOMS, MAX_DEPTH, describe, encode_plain, is_plain, join
from rl_assets.contract.rules.code import Finding

MAX_FAULTS = 100


def faults(value: Any, path: str, depth: int = MAX_DEPTH) -> Iterator[Finding]:
    """Every place in `value` that JSON cannot say, in reading order."""
    kind = type(value)
    if kind is str:
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            yield Finding("text.lone_surrogate", path, "found a lone surrogate, expected whole characters")
    elif kind is float:
        if not math.isfinite(value):
            yield Finding("value.not_finite", path, f"found {value}, expected a finite number")
    elif kind in (dict, list) and depth <= 0:
        yield Finding("value.too_deep", path, f"found more than {MAX_DEPTH} levels of nesting")
    elif kind is dict:
        for key, item in value.items():
            if type(key) is str:
                yield from faults(key, f"{path} (key)".lstrip(), depth)
                yield from faults(item, join(path, key), depth - 1)
            else:
                yield Finding("value.not_json", path, f"found a key that is {describe(key)}, expected text")
    elif kind is list:
        for index, item in enumerate(value):
            yield from faults(item, f"{path}[{index}]", depth - 1)
    elif kind not in ATOMS:
        yield Finding("value.not_json", path, f"found {describe(value)}, expected a JSON value")


def encode(value: Any, path: str, found: list[Finding]) -> str:
    """`value` as compact JSON text in the order of its keys; or "", after its first faults go to `found`."""
    if is_plain(value):
        try:
            return encode_plain(value).decode()
        except UnicodeEncodeError:
            pass
    found.extend(islice(faults(value, path), MAX_FAULTS))
    return ""
