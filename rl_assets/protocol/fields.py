"""The halves of a batch: columns of values, and dicts of fields that are joined."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rl_assets.protocol.values import deep_equal, describe


class MismatchError(ValueError, AssertionError):
    """Parts of a batch do not fit each other: lengths, keys, dtypes or values.

    It is an AssertionError too, because that is what verl raises in these places and what code written
    for verl catches.
    """


def column(key: str, values: Any) -> np.ndarray:
    """`values` as a 1-D object array with one Python value per row, never more dimensions.

    Lists of equal length stay lists. A numeric or text array becomes Python numbers or text; an array of
    more than one dimension becomes a column of lists.

    Raises:
        MismatchError: `values` has no length (a scalar, a 0-d array), or is text.
    """
    if isinstance(values, np.ndarray):
        if values.ndim == 0:
            raise MismatchError(
                f"key `{key}`: found a 0-d array ({values.dtype}), expected one value per row"
            )
        if values.ndim == 1:
            return values if values.dtype == object else values.astype(object)
        values = values.tolist()
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise MismatchError(f"key `{key}`: found {describe(values)}, expected one value per row")
    values = list(values)
    return np.fromiter(values, dtype=object, count=len(values))


def merged(half: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Both dicts in one; values under the same key must be deeply equal, or `MismatchError` names the key."""
    for key in theirs:
        if key in mine and not deep_equal(mine[key], theirs[key]):
            found = f"{describe(mine[key])} and {describe(theirs[key])}"
            raise MismatchError(f"{half} key `{key}` differs between the two: {found}")
    return {**mine, **theirs}


def merged_meta(metas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The meta_info of batches that are concatenated; see `DataProto.concat`."""
    result: dict[str, Any] = {}
    metrics: dict[str, list[Any]] = {}
    for meta in metas:
        for key, value in meta.items():
            if key == "metrics":
                for entry in [value] if isinstance(value, Mapping) else value or ():
                    for name, number in entry.items():
                        metrics.setdefault(name, []).append(number)
            elif key in result and not deep_equal(result[key], value):
                raise MismatchError(
                    f"Conflicting values for meta_info key '{key}': {result[key]!r} and {value!r}"
                )
            else:
                result[key] = value
    return {**result, "metrics": metrics} if metrics else result
