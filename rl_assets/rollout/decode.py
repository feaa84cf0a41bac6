"""The decoding loop: a prompt is prefilled once, a finished response leaves at once, a new one joins."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from transformers import DynamicCache

from rl_assets.base.progress import Log
from rl_assets.errors import InputError
from rl_assets.rollout.cache import BatchCache, Prefilled
from rl_assets.rollout.devices import free_memory, release_memory
from rl_assets.rollout.media import begin
from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.policy import Policy
from rl_assets.rollout.positions import media_inputs, prompt_positions
from rl_assets.rollout.requests import Prompt, Response
from rl_assets.rollout.sampling import Sampler, row_key, step_keys
from rl_assets.rollout.stopping import EndOfResponse

# By kind of device: most rows at once where nobody says, padded tokens of one prefill, and the share of
# the free memory that the cache may take.
_ROWS = {"cpu": 64, "cuda": 512}
_PREFILL_TOKENS = {"cpu": 256, "cuda": 16384}
_CACHE_SHARE = {"cpu": 0.25, "cuda": 0.6}

OnFinish = Callable[[Prompt, int, Response], None]
OnTokens = Callable[[int], None]


@dataclass(eq=False)
class _Sample:
    """One response being made: sample `index` of `prompt`, and what there is of it."""

    prompt: Prompt
    index: int
    key: int
    # Position of a token less its index in the row: media take fewer positions than tokens.
    shift: int = 0
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    raw_log_probs: list[float] = field(default_factory=list)

    @property
    def longest(self) -> int:
        return len(self.prompt.ids) + self.prompt.limit


@dataclass(eq=False)
class _Prefill:
    """Samples that go on from the same tokens: all of a prompt's at its start, one alone after a restart."""

    samples: list[_Sample]

    @property
    def prompt(self) -> Prompt:
        return self.samples[0].prompt

    @property
    def ids(self) -> list[int]:
        return [*self.prompt.ids, *self.samples[0].token_ids]


class Decoder:
    """Makes responses with one policy, a batch of rows at a time.

    Prompts are taken longest first, so neighbours in a batch are of like length, the batch that needs the
    most memory comes first, and the last rows to run are short ones. When the device runs out of memory
    the batch is halved; rows keep their tokens and only their cache is computed again.

    Args:
        policy: the loaded policy.
        sampling: how tokens are drawn.
        max_batch_size: most rows at once; None chooses by device and free memory.
        log: told when the batch shrinks.
    """

    def __init__(
        self, policy: Policy, sampling: SamplingParams, *, max_batch_size: int | None, log: Log
    ) -> None:
        self._policy, self._sampling, self._log = policy, sampling, log
        self._sampler = Sampler(sampling, policy.blocked_token_ids)
        self._ends = EndOfResponse(
            policy.eos_token_ids, sampling.stop, policy.tokenizer if sampling.stop else None
        )
        kind = policy.device.type
        self._rows = max_batch_size or _ROWS.get(kind, _ROWS["cpu"])
        self._multiple = policy.row_multiple
        self._prefill_tokens = _PREFILL_TOKENS.get(kind, _PREFILL_TOKENS["cpu"])
        self._pending: deque[_Prefill] = deque()
        self._ready: deque[tuple[Prefilled, list[_Sample]]] = deque()
        self._active: list[_Sample] = []
        self._cache: BatchCache | None = None
        self._on_finish: OnFinish = lambda *_: None
        self._on_tokens: OnTokens = lambda _: None

    @torch.inference_mode()
    def run(
        self,
        wanted: Sequence[tuple[Prompt, Sequence[int]]],
        on_finish: OnFinish,
        on_tokens: OnTokens = lambda _: None,
    ) -> None:
        """Make responses.

        Args:
            wanted: prompts, each with the indexes of the samples to make.
            on_finish: called with (prompt, sample index, response) as each is finished.
            on_tokens: called after every step with the number of tokens that it made.

        Raises:
            InputError: the device cannot hold even one row, or the policy's logits are not finite.
        """
        self._on_finish, self._on_tokens = on_finish, on_tokens
        for prompt, indexes in sorted(wanted, key=lambda each: -len(each[0].ids)):
            samples = [_Sample(prompt, i, row_key(self._sampling.seed, prompt.uid, i)) for i in indexes]
            if prompt.limit == 0:
                for sample in samples:
                    self._finish(sample, "length")
            elif samples:
                self._pending.append(_Prefill(samples))
        while self._pending or self._ready or self._active:
            # Handled outside of `except`: the error's traceback keeps the tensors of its frames alive.
            if not self._advance():
                self._shrink()

    def _advance(self) -> bool:
        """Fill free slots and make one token for every row; False where the device ran out of memory."""
        try:
            while len(self._active) < self._slots and (self._pending or self._ready):
                if not self._ready:
                    self._prefill()
                else:
                    self._place()
            if self._active:
                self._step()
        except torch.OutOfMemoryError:
            return False
        return True

    @property
    def _slots(self) -> int:
        return self._cache.slots if self._cache else self._rows

    def _prefill(self) -> None:
        """One forward pass over the next prompts, and the first token of each of their samples."""
        group = self._next_group()
        begin(item.prompt.media for item in self._pending)
        rows = [item.ids for item in group]
        width = _rounded_up(max(map(len, rows)), self._multiple)
        ids = torch.tensor([[self._policy.pad_token_id] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        positions = torch.stack([self._positions(item, width) for item in group], dim=-2)
        cache = DynamicCache()
        media = media_inputs(self._policy, group[0].prompt, ids)
        logits = self._forward(ids, mask, positions, cache, logits_to_keep=self._multiple, **media)
        samples = [sample for item in group for sample in item.samples]
        lines = [line for line, item in enumerate(group) for _ in item.samples]
        unfinished = set(self._draw(logits[lines], samples))
        for _ in group:
            self._pending.popleft()
        for line, item in enumerate(group):
            left = [sample for sample in item.samples if sample in unfinished]
            if left:
                own = slice(width - len(rows[line]), width)
                layers = [(layer.keys[line, :, own], layer.values[line, :, own]) for layer in cache.layers]
                self._ready.append((Prefilled(layers), left))

    def _next_group(self) -> list[_Prefill]:
        """The next prompts that one padded pass can take; a prompt with media is taken alone."""
        group = [self._pending[0]]
        width = len(group[0].ids)
        for item in list(self._pending)[1:]:
            width = max(width, len(item.ids))
            too_many = width * (len(group) + 1) > self._prefill_tokens
            if too_many or item.prompt.media or group[0].prompt.media:
                break
            group.append(item)
        return group

    def _positions(self, item: _Prefill, width: int) -> torch.Tensor:
        """Positions of a left-padded row, (width,) or (3, width); padding is at position 0."""
        first = prompt_positions(self._policy, item.prompt)
        made = len(item.samples[0].token_ids)
        for sample in item.samples:
            sample.shift = int(first.max()) + 1 - len(item.prompt.ids)
        further = (torch.arange(made) + int(first.max()) + 1).expand(*first.shape[:-1], made)
        own = torch.cat([first, further], dim=-1)
        return torch.nn.functional.pad(own, (width - own.shape[-1], 0))

    def _place(self) -> None:
        """Move prefilled samples into free slots."""
        row, samples = self._ready[0]
        if self._cache is None:
            self._cache = BatchCache(row, *self._cache_size(row), self._multiple)
        count = min(self._slots - len(self._active), len(samples))
        self._cache.append(row, count)
        self._active += samples[:count]
        self._ready.popleft()
        if samples[count:]:
            self._ready.appendleft((row, samples[count:]))

    def _cache_size(self, row: Prefilled) -> tuple[int, int]:
        """(slots, most tokens in a row): as many rows as are wanted, allowed, and fit into free memory."""
        waiting = [s for item in self._pending for s in item.samples] + [
            s for _, ss in self._ready for s in ss
        ]
        longest = max(sample.longest for sample in waiting)
        share = _CACHE_SHARE.get(self._policy.device.type, _CACHE_SHARE["cpu"])
        room = int(free_memory(self._policy.device) * share)
        fits = room // (row.bytes_per_token * BatchCache.columns(longest))
        return max(1, min(self._rows, len(waiting), fits)), longest

    def _step(self) -> None:
        """One token for every row of the batch."""
        cache, active = self._cache, self._active
        assert cache is not None, "rows are only ever placed in a cache"
        cache.make_room()
        idle = [[0]] * (_rounded_up(len(active), self._multiple) - len(active))
        ids = torch.tensor([[sample.token_ids[-1]] for sample in active] + idle)
        at = torch.tensor(
            [[length + s.shift] for length, s in zip(cache.lengths, active, strict=True)] + idle
        )
        positions = at.expand(3, -1, -1) if self._policy.mrope else at
        logits = self._forward(ids, cache.mask(len(ids)), positions, cache)
        unfinished = set(self._draw(logits[: len(active)], active))
        cache.advance()
        gone = [row for row, sample in enumerate(active) if sample not in unfinished]
        if gone:
            self._active = [active[row] for row in cache.remove(gone)]

    def _forward(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        cache: Any,
        logits_to_keep: int = 1,
        **media: Any,
    ) -> torch.Tensor:
        """Logits that follow each row's last token, (rows, vocabulary)."""
        device = self._policy.device
        output = self._policy.model(
            input_ids=ids.to(device, non_blocking=True),
            attention_mask=mask.to(device, non_blocking=True),
            position_ids=positions.to(device, non_blocking=True),
            cache=cache,
            use_cache=cache is not None,
            logits_to_keep=logits_to_keep,
            **media,
        )
        return output.logits[:, -1]

    def _draw(self, logits: torch.Tensor, samples: list[_Sample]) -> list[_Sample]:
        """Give every sample its next token; hand over those that are finished and return the rest."""
        keys = step_keys([sample.key for sample in samples], [len(sample.token_ids) for sample in samples])
        drawn = [part.tolist() for part in self._sampler(logits, keys)]
        unfinished = []
        self._on_tokens(len(samples))
        for sample, token, log_prob, raw_log_prob in zip(samples, *drawn, strict=True):
            if not isfinite(raw_log_prob):
                raise self._not_finite(sample)
            sample.token_ids.append(token)
            sample.log_probs.append(log_prob)
            sample.raw_log_probs.append(raw_log_prob)
            reason = self._ends(sample.token_ids, sample.prompt.limit)
            if reason:
                self._finish(sample, reason)
            else:
                unfinished.append(sample)
        return unfinished

    def _not_finite(self, sample: _Sample) -> InputError:
        """One NaN or infinity among a row's logits makes the log-probability of every token NaN."""
        return InputError(
            file=self._policy.folder,
            field="policy.path",
            found=f"logits that are not finite (NaN or infinite) after {len(sample.token_ids)} tokens of the "
            f"response to uid {sample.prompt.uid!r}",
            expected="numbers, of which a token can be drawn",
            remedy="Look at the weights for NaN: training may have diverged before this checkpoint. Where "
            "they are sound, `policy.dtype: float32` rules out an overflow of the dtype.",
        )

    def _finish(self, sample: _Sample, reason: str) -> None:
        response = Response(sample.token_ids, sample.log_probs, sample.raw_log_probs, reason)
        self._on_finish(sample.prompt, sample.index, response)

    def _shrink(self) -> None:
        """Halve the batch. Rows on their way keep their tokens and are prefilled again, one by one."""
        if self._slots == 1 and self._prefill_tokens == 1:
            raise InputError(
                found=f"too little memory on {self._policy.device} for a single row",
                remedy="Free the device, shorten prompts and responses, or use a smaller policy or dtype.",
            )
        self._rows = max(1, self._slots // 2)
        self._prefill_tokens = max(1, self._prefill_tokens // 2)
        restart = self._active + [sample for _, samples in self._ready for sample in samples]
        self._pending.extendleft(_Prefill([sample]) for sample in reversed(restart))
        self._active, self._cache = [], None
        self._ready.clear()
        release_memory(self._policy.device)
        self._log(f"rollouts: out of memory on {self._policy.device}; at most {self._rows} rows at once now")


class PlainDecoder(Decoder):
    """Makes the same responses without the loop: every token from a forward pass over its whole row.

    For a policy that the loop does not serve. The rows of a pass are samples of one prompt and of one length,
    so nothing is padded and nothing is cached.
    """

    def _advance(self) -> bool:
        begin(item.prompt.media for item in self._pending)
        item = self._pending.popleft()
        most = 1 if item.prompt.media else self._rows
        if item.samples[most:]:
            self._pending.appendleft(_Prefill(item.samples[most:]))
            item = _Prefill(item.samples[:most])
        try:
            while item.samples:
                item.samples = self._draw(self._next_logits(item), item.samples)
        except torch.OutOfMemoryError:
            self._pending.appendleft(item)
            return False
        return True

    def _next_logits(self, item: _Prefill) -> torch.Tensor:
        ids = torch.tensor([[*item.prompt.ids, *sample.token_ids] for sample in item.samples])
        positions = self._positions(item, ids.shape[1])
        positions = positions.unsqueeze(-2).expand(*positions.shape[:-1], *ids.shape)
        media = media_inputs(self._policy, item.prompt, ids)
        return self._forward(ids, torch.ones_like(ids), positions, None, **media)


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
