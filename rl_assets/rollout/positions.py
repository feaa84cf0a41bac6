"""Positions of a prompt's tokens, plain or with the three rows (time, height, width) of multimodal RoPE."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from rl_assets.rollout.policy import Policy
from rl_assets.rollout.requests import Prompt


def prompt_positions(policy: Policy, prompt: Prompt) -> torch.Tensor:
    """Positions as the model's forward takes them.

    Returns:
        int64 on the CPU: (length,); for an mrope policy (3, length), from the model's `get_rope_index`.
    """
    plain = torch.arange(len(prompt.ids))
    if not policy.mrope:
        return plain
    if not prompt.media:
        return plain.expand(3, -1)
    find = policy.model.model.get_rope_index
    ids = torch.tensor([prompt.ids])
    known = inspect.signature(find).parameters
    media = {name: torch.as_tensor(prompt.media[name]) for name in prompt.media if name in known}
    positions, _ = find(ids, **media | {"mm_token_type_ids": token_types(policy, ids)})
    return positions[:, 0].cpu()


def token_types(policy: Policy, ids: torch.Tensor) -> torch.Tensor:
    """Which tokens stand for media: 0 text, 1 image, 2 video; int32, in the shape of `ids`."""
    types = torch.zeros_like(ids, dtype=torch.int32)
    for kind, modality in ((1, "image"), (2, "video")):
        for name in (f"{modality}_token_id", f"{modality}_token_index"):
            token = getattr(policy.model.config, name, None)
            if token is not None:
                types[ids == token] = kind
    return types


def media_inputs(policy: Policy, prompt: Prompt, ids: torch.Tensor) -> Mapping[str, Any]:
    """Keyword arguments that show a prompt's media to the model's forward, on the policy's device."""
    if not prompt.media:
        return {}
    known = inspect.signature(policy.model.forward).parameters
    inputs = {name: torch.as_tensor(value) for name, value in prompt.media.items()}
    # Gemma 3 lets the tokens of an image see one another by the second name.
    inputs |= dict.fromkeys(("mm_token_type_ids", "token_type_ids"), token_types(policy, ids))
    return {name: value.to(policy.device) for name, value in inputs.items() if name in known}
