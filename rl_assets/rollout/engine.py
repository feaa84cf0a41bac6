"""A batch of prompts becomes a batch of responses: checked, made or taken from the journal, joined by uid."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rl_assets.base.progress import Log, clock
from rl_assets.errors import InputError
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.values import fresh
from rl_assets.rollout.decode import Decoder, PlainDecoder
from rl_assets.rollout.devices import peak_memory
from rl_assets.rollout.journal import Journal
from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.policy import Policy
from rl_assets.rollout.requests import Prompt, Response, read_prompts, response_keys
from rl_assets.rollout.tensors import rollout_tensors
from rl_assets.rollout.verify import agrees

_LOG_EVERY = 5.0


@dataclass
class RolloutStats:
    """What a run did; hand the same object to several calls to add them up.

    Attributes:
        responses: how many responses there are in all.
        reused: how many of them came from the journal.
        truncated: how many of them ended at their limit.
        generated_tokens: tokens made, without reused ones.
        seconds: time spent on making them.
        peak_memory: most bytes held: of the device on CUDA, of the process on a CPU.
    """

    responses: int = 0
    reused: int = 0
    truncated: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0
    peak_memory: int = 0

    def __iadd__(self, other: "RolloutStats") -> Self:
        self.responses += other.responses
        self.reused += other.reused
        self.truncated += other.truncated
        self.generated_tokens += other.generated_tokens
        self.seconds += other.seconds
        self.peak_memory = max(self.peak_memory, other.peak_memory)
        return self

    @property
    def generated(self) -> int:
        """How many responses were made, without reused ones."""
        return self.responses - self.reused

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of wall time; 0.0 where none were made."""
        return self.generated_tokens / self.seconds if self.seconds else 0.0

    @property
    def truncated_share(self) -> float:
        """Share of responses that ended at their limit, 0 to 1."""
        return self.truncated / self.responses if self.responses else 0.0


def generate_rollouts(
    policy: Policy,
    prompts: DataProto,
    sampling: SamplingParams,
    *,
    prompt_length: int,
    response_length: int,
    max_batch_size: int | None = None,
    log: Log,
    journal: Journal | None = None,
    stats: RolloutStats | None = None,
) -> DataProto:
    """Answer every prompt `sampling.n` times.

    Args:
        policy: from `load_policy`.
        prompts: `non_tensor_batch` holds `uid` (text, unique) and `prompt_ids` (list of token ids) for B
            rows, and may hold `multi_modal_inputs` (dict of tensors for the model's forward),
            `max_new_tokens` (a limit of the row's own), and whatever else is to be carried along.
        sampling: how tokens are drawn.
        prompt_length: width P of the prompt columns.
        response_length: width R of the response columns.
        max_batch_size: most rows decoded at once; None chooses by device and free memory. The responses
            do not depend on it.
        log: told at most every 5 seconds how far it is, and how it ended.
        journal: where finished responses are kept, and found again.
        stats: added up to, where given.

    Returns:
        B·n rows, response j of prompt i in row ``i * n + j``. Tensors as in `rollout_tensors`. Every
        non-tensor column of the prompts is there, repeated; dicts and lists are copied, so that a scorer
        may write to one row's without touching its siblings'. Added are `sample_index` (int),
        `finish_reason` (``stop`` or ``length``) and `response_length` (tokens, int). `meta_info` holds
        that of the prompts, `eos_token_id`, `pad_token_id`, `blocked_token_ids` (ids that are never sampled),
        `sampling` and `policy_fingerprint`.

    The first response that a policy gives is checked against a plain forward pass over its row. Where they
    differ, `log` is warned, and all tokens come from plain passes.

    Raises:
        InputError: prompts, parameters or policy do not fit together, raised before a token is made; or the
            policy's logits are not finite, or its files change, while it answers.
    """
    columns = prompts.non_tensor_batch
    rows = len(next(iter(columns.values()))) if columns else 0
    asked = read_prompts(columns, rows, sampling, prompt_length, response_length)
    _check_fit(policy, asked)
    made = _responses(
        policy, asked, sampling, max_batch_size, log, journal, RolloutStats() if stats is None else stats
    )
    groups = [[made[prompt.uid, index] for index in range(sampling.n)] for prompt in asked]
    return DataProto.from_dict(
        tensors=rollout_tensors(policy, asked, groups, prompt_length, response_length),
        non_tensors={
            **{
                name: [fresh(value) for value in values for _ in range(sampling.n)]
                for name, values in columns.items()
            },
            "sample_index": [index for _ in asked for index in range(sampling.n)],
            "finish_reason": [response.finish_reason for group in groups for response in group],
            "response_length": [len(response.token_ids) for group in groups for response in group],
        },
        meta_info={
            **prompts.meta_info,
            "eos_token_id": list(policy.eos_token_ids),
            "pad_token_id": policy.pad_token_id,
            "blocked_token_ids": list(policy.blocked_token_ids),
            "sampling": sampling.as_dict(),
            "policy_fingerprint": policy.fingerprint,
        },
    )


def _check_fit(policy: Policy, prompts: Sequence[Prompt]) -> None:
    most = getattr(policy.text_config, "max_position_embeddings", None)
    for prompt in prompts:
        if most and len(prompt.ids) + prompt.limit > most:
            raise InputError(
                field="prompt_ids",
                found=f"{len(prompt.ids)} prompt tokens and up to {prompt.limit} more for uid {prompt.uid!r}",
                expected=f"at most {most} in all (max_position_embeddings of {policy.folder})",
                remedy="Lower data.max_prompt_length or data.max_response_length, or use another policy.",
            )
        if not 0 <= min(prompt.ids) <= max(prompt.ids) < policy.vocab_size:
            raise InputError(
                field="prompt_ids",
                found=f"a token id outside of the vocabulary of {policy.vocab_size} for uid {prompt.uid!r}",
                remedy="Render the prompts with the tokenizer of this policy.",
            )
        placeholders = sum(token in policy.placeholder_token_ids for token in prompt.ids)
        if bool(placeholders) != bool(prompt.media):
            raise InputError(
                field="multi_modal_inputs",
                found=f"{'tensors' if prompt.media else 'none'} for uid {prompt.uid!r}, whose prompt has "
                f"{placeholders} media placeholders",
                expected="media tensors exactly where there are placeholders",
                remedy="Run the policy's processor over the row's media, and keep what it makes.",
            )


def _responses(
    policy: Policy,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    max_batch_size: int | None,
    log: Log,
    journal: Journal | None,
    stats: RolloutStats,
) -> dict[tuple[str, int], Response]:
    """Every (uid, sample index)'s response, from the journal where it is there, else made now."""
    context = {
        "fingerprint": policy.fingerprint,
        "dtype": str(policy.dtype),
        **policy.vocabulary.key,
    }
    keys = {prompt.uid: response_keys(prompt, sampling, context) for prompt in prompts}
    made: dict[tuple[str, int], Response] = {}
    if journal is not None:
        for uid, own in keys.items():
            found = {(uid, index): journal.get(key) for index, key in enumerate(own)}
            made |= {place: response for place, response in found.items() if response is not None}
    reused = len(made)
    report = _Report(log, total=len(prompts) * sampling.n, reused=reused)

    def finish(prompt: Prompt, index: int, response: Response) -> None:
        if not policy.verified and not policy.plain and response.token_ids:
            if not agrees(policy, prompt, response, log):
                raise _Disagreement
            policy.verified = True
        policy.files.require_same()  # weights may still be read from the files as they are used
        made[prompt.uid, index] = response
        if journal is not None:
            journal.add(keys[prompt.uid][index], response)
        report.add(response)

    def decode(kind: type[Decoder]) -> None:
        wanted = [(p, [i for i in range(sampling.n) if (p.uid, i) not in made]) for p in prompts]
        kind(policy, sampling, max_batch_size=max_batch_size, log=log).run(wanted, finish, report.drew)

    try:
        decode(PlainDecoder if policy.plain else Decoder)
    except _Disagreement:
        policy.plain = True
        decode(PlainDecoder)
    assert len(made) == len(prompts) * sampling.n, "every sample of every prompt has its response"
    stats += RolloutStats(
        responses=len(made),
        reused=reused,
        truncated=sum(response.finish_reason == "length" for response in made.values()),
        generated_tokens=report.tokens,
        seconds=report.close(),
        peak_memory=peak_memory(policy.device),
    )
    return made


class _Disagreement(Exception):
    """The decoding loop does not do what the policy's forward pass does."""


class _Report:
    """Progress lines: responses done, tokens per second, time left."""

    def __init__(self, log: Log, total: int, reused: int) -> None:
        self.tokens = 0
        """Of finished responses."""
        self._log, self._total, self._reused = log, total, reused
        self._made = self._drawn = self._truncated = 0
        self._start = self._last = time.monotonic()

    def drew(self, tokens: int) -> None:
        """Count tokens as they are drawn, and say how far it is every few seconds."""
        self._drawn += tokens
        now = time.monotonic()
        if now - self._last >= _LOG_EVERY:
            self._last = now
            rate = self._drawn / (now - self._start)
            self._log(f"{self._counted()}, {rate:,.0f} tokens/s{self._left(rate)}")

    def _left(self, rate: float) -> str:
        """The time left, if the others become as long as those that are finished."""
        if not self._made:
            return ""
        to_come = (self._total - self._reused) * self.tokens / self._made - self._drawn
        return f", about {clock(max(to_come, 0) / rate)} left"

    def add(self, response: Response) -> None:
        """Count a finished response."""
        self.tokens += len(response.token_ids)
        self._made += 1
        self._truncated += response.finish_reason == "length"

    def close(self) -> float:
        """Log the summary; returns the seconds it took."""
        took = time.monotonic() - self._start
        cut = f"{self._truncated / self._made:.0%} cut at the limit" if self._made else "none made"
        rate = self.tokens / max(took, 1e-9) if self._made else 0
        self._log(
            f"{self._counted()}, {self.tokens:,} tokens at {rate:,.0f} tokens/s, {cut}, "
            f"{self._reused:,} taken from the journal, took {clock(took)}"
        )
        return took if self._made else 0.0

    def _counted(self) -> str:
        return f"rollouts: {self._reused + self._made:,} of {self._total:,} responses"
