"""What the rules gather while they go through one row."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rl_assets.contract.codes import Finding
from rl_assets.contract.jsontext import MAX_FAULTS
from rl_assets.contract.options import ContractOptions


class Spot(NamedTuple):
    """A text or media part inside the prompt that the media rules must look at.

    Attributes:
        path: ``prompt[0].content`` or ``prompt[0].content[1]``.
        role: of the message.
        value: the text, or the part.
    """

    path: str
    role: str
    value: Any


@dataclass(slots=True)
class Draft:
    """One row under examination.

    Attributes:
        options: of the contract.
        columnar: whether the row comes from a columnar file, where nulls fill absent keys.
        found: errors and warnings so far.
        healed: kinds of healing that were applied, one entry per row and kind.
        texts: texts that may hold placeholders or control tokens.
        parts: media parts.
    """

    options: ContractOptions
    columnar: bool
    found: list[Finding] = field(default_factory=list)
    healed: set[str] = field(default_factory=set)
    texts: list[Spot] = field(default_factory=list)
    parts: list[Spot] = field(default_factory=list)
    _kept: dict[str, int] = field(default_factory=dict)

    @property
    def errors(self) -> list[Finding]:
        """What was found that rejects the row under the user's options."""
        severity = self.options.severity
        return [finding for finding in self.found if severity[finding.code] == "error"]

    def add(self, code: str, path: str | None, message: str) -> None:
        """Add one finding; of each code, the first hundred are kept."""
        kept = self._kept.get(code, 0)
        if kept < MAX_FAULTS:
            self._kept[code] = kept + 1
            self.found.append(Finding(code, path, message))


def has_null_key(value: Any) -> bool:
    """Whether an object anywhere in `value` has a key whose value is null."""
    if type(value) is dict:
        return any(item is None or has_null_key(item) for item in value.values())
    return type(value) is list and any(has_null_key(item) for item in value)


def without_null_keys(value: Any) -> Any:
    """A copy of `value` in which no object has a null value; nulls in lists stay."""
    if type(value) is dict:
        return {key: without_null_keys(item) for key, item in value.items() if item is not None}
    if type(value) is list:
        return [without_null_keys(item) for item in value]
    return value
