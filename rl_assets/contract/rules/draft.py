"""What the rules gather while they go through one row."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rl_assets.contract.rules.code import Finding
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.contract.rules.values import MAX_FAULTS


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
        filled: columns of the row in which a columnar file fills absent keys with null.
        found: errors and warnings so far.
        repaired: kinds of repair that were applied, one entry per row and kind.
        texts: texts that may hold placeholders or control tokens.
        parts: media parts.
    """

    options: ContractOptions
    filled: frozenset[str]
    found: list[Finding] = field(default_factory=list)
    repaired: set[str] = field(default_factory=set)
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
    """A copy of `value` from a columnar file without what was filled in: keys that are null, and objects
    that hold nothing but such keys. Nulls in lists stay.

    Some writers make an object of nulls where there is none. A columnar file cannot hold an object that was
    empty when it was written, but for the `properties` of a tool without parameters, which some other tool
    gave a key.
    """
    if type(value) is list:
        return [without_null_keys(item) for item in value]
    if type(value) is not dict:
        return value
    kept: dict[Any, Any] = {}
    for key, item in value.items():
        if item is None:
            continue
        bare = without_null_keys(item)
        if bare == {} != item and not (key == "properties" and value.get("type") == "object"):
            continue
        kept[key] = bare
    return kept
