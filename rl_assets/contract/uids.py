"""Row identity: the same prompt has the same uid tomorrow, on any machine, whatever the file is called."""

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any

from rl_assets.base.jsontext import canonical, describe
from rl_assets.contract.rules.code import Finding

_BYTES = 16


def _blake2b(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_BYTES).digest()


def content_digest(data_source: str, messages: list[Any], media: Sequence[Any], ground_truth: Any) -> bytes:
    """BLAKE2b (16 bytes) of what makes a row what it is, as canonical JSON.

    Args:
        media: one JSON value per medium that identifies it (its digest, not its place).
    """
    return _blake2b(canonical([data_source, messages, media, ground_truth]))


def copy_digest(content: bytes, beside: bytes) -> bytes:
    """BLAKE2b (16 bytes) of all that a policy is shown and a scorer reads of a row.

    Args:
        content: the row's `content_digest`.
        beside: what the policy is shown beside messages and media; empty where that is nothing.
    """
    return _blake2b(content + beside) if beside else content


def prompt_digest(messages: list[Any], media: Sequence[Any]) -> bytes:
    """BLAKE2b (16 bytes) of what the policy is shown, whatever the reward."""
    return _blake2b(canonical([messages, media]))


def uid_fault(uid: Any) -> Finding | None:
    """What is wrong with a uid of the user's own, if anything."""
    if type(uid) is not str:
        return Finding("uid.invalid", "uid", f"found {describe(uid)}, expected text")
    if not uid.strip():
        return Finding("uid.invalid", "uid", "found blank text, expected at least one letter or digit")
    if len(uid) > 255:
        return Finding("uid.invalid", "uid", f"found {describe(uid)}, expected at most 255")
    if "_" in uid:
        return Finding("uid.invalid", "uid", "found `_` in the uid, by which verl cuts its keys apart")
    return None


class UidRegistry:
    """Gives every row of a dataset its uid, and knows which uids were given before.

    Positions are integers of the caller's choice, by which `owner` names a row. Memory is about 200 bytes
    per row.
    """

    def __init__(self) -> None:
        self._contents: dict[bytes, int | tuple[int]] = {}
        self._copies: dict[bytes, int] = {}
        self._copy_uids: dict[str, int] = {}
        self._own: dict[str, int] = {}

    def owner(self, uid: str) -> int | None:
        """Position of the row that has this uid, where one has."""
        position = self._own.get(uid, self._copy_uids.get(uid))
        if position is None and len(uid) == 2 * _BYTES:
            with contextlib.suppress(ValueError):
                first = self._contents.get(bytes.fromhex(uid))
                if isinstance(first, int) and uid == uid.lower():
                    return first
        return position

    def register(self, content: bytes, position: int, own: str | None = None) -> str:
        """Take a row in.

        Args:
            content: the row's `content_digest`.
            own: a uid of the user's own that no row has yet (`owner` says None).

        Returns:
            The row's uid: `own`, or `content` in hex, or where that is taken a digest of `content` and a
            number.
        """
        known = self._contents.get(content)
        if known is None:
            # A tuple marks a row whose uid is not its content's, so that the content's own is still free.
            self._contents[content] = position if own is None else (position,)
        if own is not None:
            self._own[own] = position
            return own
        uid = content.hex()
        return uid if known is None and uid not in self._own else self._copy_uid(content, position)

    def _copy_uid(self, content: bytes, position: int) -> str:
        while True:
            number = self._copies[content] = self._copies.get(content, 0) + 1
            uid = _blake2b(content + number.to_bytes(8, "big")).hex()
            if self.owner(uid) is None:
                self._copy_uids[uid] = position
                return uid
