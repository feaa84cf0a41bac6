"""How responses are sampled: one frozen set of parameters under verl's names."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from rl_assets.base.digests import digest_json
from rl_assets.errors import InputError


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling parameters; greedy, validation and sampling runs differ in nothing else.

    Attributes:
        n: responses per prompt.
        do_sample: False takes the likeliest token at every step (greedy).
        temperature: divides the logits; 0 is greedy, as in verl's `val_kwargs` and vLLM.
        top_p: the smallest set of tokens whose probability reaches this is kept; 1.0 keeps all.
        top_k: so many likeliest tokens are kept; -1 (vLLM's convention) or 0 (transformers') keeps all.
        max_new_tokens: limit of a response in tokens; None means the response length of the call.
        seed: part of the key of every draw.
        stop: a response ends with the token that completes one of these strings. The string stays in it.

    Raises:
        InputError: a value that no sampler can use.
    """

    n: int = 1
    do_sample: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        self._check("n", self.n >= 1, "at least 1")
        self._check("temperature", 0 <= self.temperature < math.inf, "a finite number from 0 up")
        self._check("top_p", 0 < self.top_p <= 1, "more than 0 and at most 1")
        self._check("top_k", self.top_k >= -1, "-1 (off) or a count")
        self._check("max_new_tokens", self.max_new_tokens is None or self.max_new_tokens >= 1, "at least 1")
        self._check("stop", all(self.stop), "no empty string")

    def _check(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise InputError(
                field=f"rollout.{name}",
                found=repr(getattr(self, name)),
                expected=expected,
                remedy="Correct the sampling parameters.",
            )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken at every step."""
        return not self.do_sample or self.temperature == 0

    def as_dict(self) -> dict[str, Any]:
        """All parameters as JSON values, under their own names."""
        return asdict(self) | {"stop": list(self.stop)}

    def response_key(self) -> dict[str, Any]:
        """What one response depends on: neither `n` nor, in a greedy run, the parameters of the draw.

        `max_new_tokens` is left to the caller, who knows each row's limit.
        """
        if self.greedy:
            return {"greedy": True, "stop": list(self.stop)}
        return {
            "temperature": float(self.temperature),
            "top_p": float(self.top_p),
            "top_k": max(self.top_k, 0),
            "seed": self.seed,
            "stop": list(self.stop),
        }

    @property
    def digest(self) -> str:
        """32 hex digits; parameters that give the same responses have the same digest."""
        return digest_json({"n": self.n, "max_new_tokens": self.max_new_tokens, **self.response_key()})
