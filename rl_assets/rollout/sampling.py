"""Keyed sampling: a token is a pure function of its row's scores and its row's key.

The next token is ``argmax(score + Gumbel noise)``, which draws from ``softmax(score)``. The noise is a hash
of (seed, uid, sample index, position, token id), so neither the batch a row is in nor the order of rows
plays a part.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from rl_assets.rollout.params import SamplingParams

# Odd multipliers and shifts of a 32-bit mixing function with low bias; as signed numbers, for int32 tensors.
_MIX_1 = 0x7FEB352D
_MIX_2 = 0x846CA68B - (1 << 32)
_GOLDEN_64 = np.uint64(0x9E3779B97F4A7C15)

# Top-p looks for its cut among so many likeliest tokens first; only rows that need more are sorted whole.
_CANDIDATES = 1024

# Scores handled at once: on a CPU so few that the passes over them stay in its cache; elsewhere so few that
# the copies they need stay small beside a model.
_CPU_SCORES = 1 << 18
_SCORES = 1 << 26


def row_key(seed: int, uid: str, sample_index: int) -> int:
    """The 64-bit key of one response's draws."""
    text = f"{seed}\0{uid}\0{sample_index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def step_keys(row_keys: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
    """Two 32-bit keys for each row's next draw: the finaliser of splitmix64 over key and position.

    Returns:
        int32 tensor (rows, 2) on the CPU.
    """
    state = (
        np.array(row_keys, dtype=np.uint64)
        + (np.array(positions, dtype=np.uint64) + np.uint64(1)) * _GOLDEN_64
    )
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
    return torch.from_numpy(state.view(np.int32).reshape(-1, 2))


def exponential_noise(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Exponentially distributed noise; ``-log`` of it is Gumbel noise.

    Args:
        keys: int32 (rows, 2), from `step_keys`.
        token_ids: int32 (tokens,).

    Returns:
        float32 (rows, tokens), positive and finite. Small values, which decide who wins, have a
        resolution of 2^-31.
    """
    mixed = _shift_xor(token_ids * _MIX_1, 15) * _MIX_2
    bits = _shift_xor(mixed ^ keys[:, :1], 16)
    bits = _shift_xor(bits.mul_(_MIX_1).add_(keys[:, 1:]), 15)
    bits = _shift_xor(bits.mul_(_MIX_2), 16)
    uniform = bits.bitwise_and_(0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_()


def _shift_xor(bits: torch.Tensor, by: int) -> torch.Tensor:
    # >> copies the sign bit on signed integers; the mask makes the shift a logical one.
    return bits.bitwise_xor_((bits >> by).bitwise_and_((1 << (32 - by)) - 1))


class Sampler:
    """Draws one token per row from its logits.

    The logits are divided by the temperature, cut to the `top_k` likeliest tokens, then to the smallest
    set that reaches `top_p` (the order of transformers' `generate`). Tokens that tie with the last one
    kept are kept too, so that a cut depends on the row's values alone.

    Args:
        params: temperature, cuts, or greedy.
        blocked_token_ids: ids that are never drawn, such as placeholders of images: their logits count as
            -inf before everything else.
    """

    def __init__(self, params: SamplingParams, blocked_token_ids: Sequence[int]) -> None:
        self._params = params
        self._blocked = torch.tensor(list(blocked_token_ids), dtype=torch.long)

    def __call__(
        self, logits: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw a token for every row.

        Args:
            logits: (rows, vocabulary), any floating dtype; left as they are.
            keys: int32 (rows, 2), from `step_keys`, on any device.

        Returns:
            tokens int64 (rows,); their log-probability under the distribution they were drawn from (in a
            greedy run: under the policy itself) and under the policy itself, its softmax over all ids, each
            float32 (rows,). Where a row's logits are not finite, neither is the latter.
        """
        keys, count = keys.to(logits.device), len(logits)
        self._blocked = self._blocked.to(logits.device)
        if count == 1:
            # The sum over a single row is shared out among the threads, which rounds in another way.
            logits, keys = logits.expand(2, -1), keys.expand(2, -1)
        size = max(2, (_CPU_SCORES if logits.device.type == "cpu" else _SCORES) // logits.shape[1])
        starts = [min(start, len(logits) - 2) for start in range(0, len(logits), size)]
        ends = [*starts[1:], len(logits)]
        parts = [
            self._draw(logits[start:end], keys[start:end]) for start, end in zip(starts, ends, strict=True)
        ]
        tokens, log_probs, raw_log_probs = (torch.cat(part)[:count] for part in zip(*parts, strict=True))
        return tokens, log_probs, raw_log_probs

    def _draw(
        self, logits: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = logits.float()
        if self._params.greedy:
            tokens = logits.index_fill(1, self._blocked, -torch.inf).argmax(-1)
            raw = _log_prob(logits, tokens)
            return tokens, raw, raw
        # A new tensor already, so that blocking costs no copy of its own.
        scores = (logits / self._params.temperature).index_fill_(1, self._blocked, -torch.inf)
        scores = self._cut(scores)
        # exp(score) / Exponential has the argmax of score + Gumbel, one pass over the vocabulary cheaper.
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        token_ids = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)
        tokens = (weights / exponential_noise(keys, token_ids)).argmax(-1)
        log_probs = (weights.gather(-1, tokens[:, None]).squeeze(-1) / weights.sum(-1)).log_()
        return tokens, log_probs, _log_prob(logits, tokens)

    def _cut(self, scores: torch.Tensor) -> torch.Tensor:
        """The scores with those outside of top-k and top-p at -inf."""
        top_k, top_p = self._params.top_k, self._params.top_p
        if 0 < top_k < scores.shape[1]:
            least = scores.topk(top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if top_p < 1:
            scores = scores.masked_fill(scores < _nucleus_floor(scores, top_p), -torch.inf)
        return scores


def _nucleus_floor(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """The least score within the smallest set of tokens whose probability reaches `top_p`, (rows, 1)."""
    total = scores.logsumexp(-1, keepdim=True)
    count = min(_CANDIDATES, scores.shape[1])
    floor, kept = _floor_among(scores.topk(count, dim=-1).values, total, top_p)
    wide = (kept == count).squeeze(-1).nonzero().squeeze(-1)
    if count < scores.shape[1] and len(wide):
        best = scores[wide].sort(dim=-1, descending=True).values
        floor[wide] = _floor_among(best, total[wide], top_p)[0]
    return floor


def _floor_among(best: torch.Tensor, total: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    probs = torch.exp(best - total)
    before = probs.cumsum(-1) - probs
    kept = (before < top_p).sum(-1, keepdim=True)
    return best.gather(-1, kept - 1), kept


def _log_prob(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return logits.gather(-1, tokens[:, None]).squeeze(-1) - logits.logsumexp(-1)
