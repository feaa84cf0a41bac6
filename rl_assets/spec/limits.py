"""What a value of a defs.yaml may be: every number has bounds, and every text a length.

A test walks the fields of the spec and holds that none takes a number without bounds.
"""

import math
from typing import Annotated, Any

from pydantic import AfterValidator, Field

_LARGEST = 2**53

Count = Annotated[int, Field(ge=1, le=10**9)]
"""How many rows, tokens, bytes or seconds of something: at least one."""

Responses = Annotated[int, Field(ge=1, le=100_000)]
"""Responses per prompt."""

MaxSamples = Annotated[int, Field(ge=-1, le=10**9)]
"""A cap on prompts; -1 is none."""

TopK = Annotated[int, Field(ge=-1, le=10**9)]
"""Most likely tokens that are sampled among; -1 is off."""

Workers = Annotated[int, Field(ge=1, le=1024)]
"""Processes."""

Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""Any whole number of 64 bits."""

Share = Annotated[float, Field(ge=0, le=1)]
"""A share of a whole."""

Temperature = Annotated[float, Field(ge=0, le=100)]
"""A sampling temperature."""

Score = Annotated[float, Field(ge=-(10**9), le=10**9)]
"""What a reward function returns."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]
"""A time limit of at most a day."""

Hours = Annotated[float, Field(gt=0, le=87_600)]
"""An age of at most ten years."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$", max_length=100)]
"""The first part of asset keys and the name of a folder."""

PathText = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=4096)]
"""A path, glob or address: not empty, on one line."""

Column = Annotated[str, Field(min_length=1, max_length=1000)]
"""Name of a column, of a source, or of something in code."""

ColumnOrNone = Annotated[str, Field(max_length=1000)]
"""Name of a column; an empty text means that there is none."""


def _plain(value: Any) -> Any:
    """A free-form value, unless a number in it is infinite, not a number, or beyond what JSON keeps."""
    numbers: list[Any] = [value]
    while numbers:
        one = numbers.pop()
        if isinstance(one, dict):
            numbers += one.values()
        elif isinstance(one, (list, tuple)):
            numbers += one
        elif isinstance(one, float) and not (math.isfinite(one) and abs(one) <= _LARGEST):
            raise ValueError(f"a number must be finite and at most {_LARGEST:,} in size")
        elif isinstance(one, int) and abs(one) > _LARGEST:
            raise ValueError(f"a number must be at most {_LARGEST:,} in size")
    return value


Plain = Annotated[Any, AfterValidator(_plain)]
"""A free-form value, as JSON can hold it."""
