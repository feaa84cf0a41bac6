"""Responses as the tensors that verl's trainer reads (verl's Hugging Face rollout, faults left out)."""

from collections.abc import Sequence

import torch

from rl_assets.rollout.media import in_turn
from rl_assets.rollout.policy import Policy
from rl_assets.rollout.positions import prompt_positions
from rl_assets.rollout.requests import Prompt, Response


def rollout_tensors(
    policy: Policy,
    prompts: Sequence[Prompt],
    responses: Sequence[Sequence[Response]],
    prompt_length: int,
    response_length: int,
) -> dict[str, torch.Tensor]:
    """The tensors of B prompts with n responses each; row ``i * n + j`` is response j of prompt i.

    With P = `prompt_length` and R = `response_length`:

    ====================== ================ ======= ==================================================
    name                   shape            dtype   holds
    ====================== ================ ======= ==================================================
    ``prompts``            (B·n, P)         int64   prompt tokens, left padded
    ``responses``          (B·n, R)         int64   response tokens, right padded
    ``input_ids``          (B·n, P+R)       int64   both, side by side
    ``attention_mask``     (B·n, P+R)       int64   1 on tokens, 0 on padding
    ``position_ids``       (B·n, P+R)       int64   0, 1, … from the first token; see below
    ``response_mask``      (B·n, R)         int64   1 on generated tokens, the one that ends it included
    ``rollout_log_probs``  (B·n, R)         float32 under the distribution sampled from; 0 on padding
    ``raw_log_probs``      (B·n, R)         float32 under the policy's own softmax; 0 on padding
    ====================== ================ ======= ==================================================

    Positions count on through all R response columns, padding too (last prompt position + 1 … R). For an
    mrope policy they are (B·n, 4, P+R): text positions (1 on left padding), then time, height and width.
    """
    n = len(responses[0]) if responses else 1
    flat = [response for group in responses for response in group]
    pad = policy.pad_token_id
    prompt_ids = _padded([prompt.ids for prompt in prompts], prompt_length, pad, left=True)
    prompt_mask = _padded([[1] * len(prompt.ids) for prompt in prompts], prompt_length, 0, left=True)
    prompt_ids, prompt_mask = prompt_ids.repeat_interleave(n, 0), prompt_mask.repeat_interleave(n, 0)
    response_ids = _padded([response.token_ids for response in flat], response_length, pad)
    response_mask = _padded([[1] * len(response.token_ids) for response in flat], response_length, 0)
    turns = in_turn([prompt.media if policy.mrope else {} for prompt in prompts])
    positions = [
        _positions(policy, prompt, prompt_length, response_length)
        for prompt, _ in zip(prompts, turns, strict=True)
    ]
    empty = torch.zeros(0, prompt_length + response_length, dtype=torch.long)
    return {
        "prompts": prompt_ids,
        "responses": response_ids,
        "input_ids": torch.cat([prompt_ids, response_ids], dim=1),
        "attention_mask": torch.cat([prompt_mask, response_mask], dim=1),
        "position_ids": torch.stack(positions).repeat_interleave(n, 0) if positions else empty,
        "response_mask": response_mask,
        "rollout_log_probs": _padded([r.log_probs for r in flat], response_length, 0.0),
        "raw_log_probs": _padded([r.raw_log_probs for r in flat], response_length, 0.0),
    }


def _padded(rows: Sequence[Sequence[float]], width: int, fill: float, *, left: bool = False) -> torch.Tensor:
    filled = torch.full((len(rows), width), fill)
    for line, row in zip(filled, rows, strict=True):
        if row:
            line[slice(width - len(row), None) if left else slice(len(row))] = torch.tensor(row)
    return filled


def _positions(policy: Policy, prompt: Prompt, prompt_length: int, response_length: int) -> torch.Tensor:
    own = prompt_positions(policy, prompt)
    if policy.mrope:
        own = torch.cat([torch.arange(len(prompt.ids))[None], own])
    last = own.amax(-1, keepdim=True)
    if policy.mrope:
        # Time, height and width go on from the largest of the three.
        last[1:] = last[1:].max()
    further = last + 1 + torch.arange(response_length)
    before = torch.zeros(*own.shape[:-1], prompt_length - len(prompt.ids), dtype=torch.long)
    if policy.mrope:
        before[0] = 1
    return torch.cat([before, own, further], dim=-1)
