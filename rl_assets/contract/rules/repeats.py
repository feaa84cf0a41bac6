"""What must not repeat from row to row, and what of it does."""

from collections.abc import Callable
from typing import Any, NamedTuple

from rl_assets.base.jsontext import canonical
from rl_assets.contract.rules.code import Finding
from rl_assets.contract.rules.rows import Record
from rl_assets.contract.uids import copy_digest


class Keys(NamedTuple):
    """What a row is known again by. Digests of 64 bits, which differ from process to process, do for the last
    three, and take a fifth of the time."""

    numbered: tuple[str, str | None, Any]
    copy: bytes
    prompt: int
    shown: int
    truth: int


class Repeats:
    """The rows that were accepted so far, as far as others are compared with them.

    Positions are integers of the caller's choice. Memory is about 300 bytes per row.

    Args:
        place: names the row at a position.
        both_splits: whether there is validation beside training.
    """

    def __init__(self, place: Callable[[int], str], *, both_splits: bool) -> None:
        self._place = place
        self._indices: dict[tuple[str, str | None, Any], int] = {}
        self._copies: dict[bytes, int] = {}
        self._truths: dict[int, tuple[int, int]] = {}
        self._train_prompts: dict[int, int] | None = {} if both_splits else None

    def keys(self, record: Record, split: str) -> Keys:
        """What the row will be known again by."""
        prompt = hash(canonical([record.messages, record.media.identities]))
        return Keys(
            numbered=(split, record.own_split, record.own_index),
            copy=copy_digest(record.content, record.beside),
            prompt=prompt,
            shown=hash((prompt, record.beside)) if record.beside else prompt,
            truth=hash(canonical(record.truth)),
        )

    def found(self, keys: Keys) -> list[Finding]:
        """What of a row is in a row before it."""
        found = []
        if (first := self._indices.get(keys.numbered)) is not None:
            message = f"found the index of {self._place(first)}"
            found.append(Finding("extra_info.index_duplicate", "extra_info.index", message))
        if (first := self._copies.get(keys.copy)) is not None:
            found.append(Finding("row.duplicate", None, f"found the content of {self._place(first)}"))
        first, truth = self._truths.get(keys.shown, (None, keys.truth))
        if first is not None and truth != keys.truth:
            message = f"found another ground truth than {self._place(first)} has for the same prompt"
            found.append(Finding("row.conflicting_ground_truth", "reward_model.ground_truth", message))
        of_val = self._train_prompts if keys.numbered[0] != "train" else None
        if of_val and (first := of_val.get(keys.prompt)) is not None:
            found.append(
                Finding("row.shared_with_train", "prompt", f"found the prompt of {self._place(first)}")
            )
        return found

    def remember(self, keys: Keys, position: int) -> None:
        """Take an accepted row in."""
        self._indices.setdefault(keys.numbered, position)
        self._copies.setdefault(keys.copy, position)
        self._truths.setdefault(keys.shown, (position, keys.truth))
        if self._train_prompts is not None and keys.numbered[0] == "train":
            self._train_prompts.setdefault(keys.prompt, position)
