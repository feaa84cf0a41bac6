"""What verl's own tests import from `verl.utils.tensordict_utils`, answered by this project."""

from typing import Any

import torch
from tensordict import TensorDict

from rl_assets.protocol.dataproto import DataProto


def get_tensordict(tensor_dict: dict[str, Any], non_tensor_dict: dict[str, Any]) -> TensorDict:
    tensors = {key: value for key, value in tensor_dict.items() if isinstance(value, torch.Tensor)}
    columns = {key: value for key, value in tensor_dict.items() if key not in tensors}
    return DataProto.from_dict(tensors, columns, non_tensor_dict).to_tensordict()
