"""Rows to a batch: tensors are stacked, everything else becomes a 1-D object array."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rl_assets.protocol.fields import MismatchError, column
from rl_assets.protocol.values import describe


def collate_fn(features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor | np.ndarray]:
    """Collate items into what `DataProto.from_single_dict` takes.

    Args:
        features: one dict per row, all with the same keys.

    Returns:
        By key: a tensor of shape (rows, ...) where the rows hold tensors of equal shape and dtype, else an
        object array of shape (rows,) with each row's value as it is. No rows give an empty dict.

    Raises:
        MismatchError: a row lacks a key or has one more, a key holds tensors in some rows only, or tensors
            of different shapes or dtypes; the message names the key and the row.
    """
    if not features:
        return {}
    keys = features[0].keys()
    for row, feature in enumerate(features):
        if feature.keys() != keys:
            differing = sorted(feature.keys() ^ keys)
            raise MismatchError(f"row {row} and row 0 do not have the same keys: {differing} are in one only")
    return {key: _stack(key, [feature[key] for feature in features]) for key in keys}


def _stack(key: str, values: list[Any]) -> torch.Tensor | np.ndarray:
    first = values[0]
    wanted = isinstance(first, torch.Tensor)
    for row, value in enumerate(values):
        if isinstance(value, torch.Tensor) != wanted or (
            wanted and (value.shape != first.shape or value.dtype != first.dtype)
        ):
            raise MismatchError(f"key `{key}`: {describe(value)} in row {row}, {describe(first)} in row 0")
    return torch.stack(values) if wanted else column(key, values)
