"""When a response ends: an EOS token, a stop string, or its limit."""

from collections.abc import Sequence
from typing import Any, Literal

FinishReason = Literal["stop", "length"]


class EndOfResponse:
    """Tells after every token whether a response is finished.

    Args:
        eos_token_ids: tokens that end a response.
        stop: strings that end it, where they are completed.
        tokenizer: decodes for `stop`; not needed without.
    """

    def __init__(self, eos_token_ids: Sequence[int], stop: Sequence[str], tokenizer: Any = None) -> None:
        self._eos = frozenset(eos_token_ids)
        self._stop = tuple(stop)
        self._tokenizer = tokenizer
        # A string of b bytes spans at most b tokens; the first may be the tail of a character, of up to 4.
        self._tail = max((len(text.encode()) for text in stop), default=0) + 4

    def __call__(self, token_ids: Sequence[int], limit: int) -> FinishReason | None:
        """Why the response ends with its last token, or None where it goes on."""
        if token_ids and token_ids[-1] in self._eos:
            return "stop"
        if self._stop and token_ids:
            text = self._tokenizer.decode(token_ids[-self._tail :], clean_up_tokenization_spaces=False)
            if any(stop in text for stop in self._stop):
                return "stop"
        return "length" if len(token_ids) >= limit else None
