"""What verl's own tests import from `verl.protocol`, answered by this project.

The two unions are verl's names for what `DataProto.union` does to each half. The codec functions and the
folding of the batch dimension are not offered; their names are here so that the test file imports.
"""

from typing import Any, NoReturn

import numpy as np
from tensordict import TensorDict

from rl_assets.protocol.dataproto import DataProto, pad_dataproto_to_divisor, unpad_dataproto
from rl_assets.protocol.fields import MismatchError, merged

__all__ = ["DataProto", "pad_dataproto_to_divisor", "unpad_dataproto"]


def union_tensor_dict(first: TensorDict, second: TensorDict) -> TensorDict:
    joined = DataProto(batch=first).union(DataProto(batch=second)).batch
    return first.update(joined)  # verl's function changes its first argument


def union_numpy_dict(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    try:
        return merged("non_tensor_batch", first, second)
    except MismatchError as error:
        key = next(iter(second))  # each of verl's cases has one key that can differ: the first
        raise AssertionError(f"`{key}` in tensor_dict1 and tensor_dict2 are not the same object.") from error


def _not_offered(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError("rl_assets.protocol does not offer this")


serialize_single_tensor = deserialize_single_tensor = _not_offered
serialize_tensordict = deserialize_tensordict = _not_offered
fold_batch_dim = unfold_batch_dim = _not_offered
