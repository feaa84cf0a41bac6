"""What rendering gives: ids or a reason, and a stamp of what they depend on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rl_assets.base.digests import digest_json
from rl_assets.contract.rules.code import Finding
from rl_assets.errors import InputError


@dataclass(frozen=True)
class Rendered:
    """What became of one prompt: its ids and what they lack of the row, or the reason why there are none.

    Attributes:
        ids: token ids of the rendered prompt, generation prompt included; None when it did not render.
        error: what is wrong, such as the template's own message; None when it rendered.
        code: the reason, a key of `CODES` such as ``render.template_error``; None when it rendered.
        path: the field at fault where it did not render.
        lost: texts, tools and tool calls of the row that are not in the rendered prompt, one of each code.
    """

    ids: list[int] | None = None
    error: str | None = None
    code: str | None = None
    path: str = "prompt"
    lost: Sequence[Finding] = ()


@dataclass(frozen=True)
class RenderStamp:
    """Digests of everything that a rendered prompt depends on, part by part.

    Equal stamps mean equal ids for equal messages, so what was measured can be proven to be what is
    generated from. The parts are kept apart so that a difference can be named.
    """

    parts: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """One digest for all parts, 32 hex digits."""
        return digest_json(dict(self.parts))

    def require(self, stamped: Mapping[str, str], what: str) -> None:
        """Refuse data that was rendered under another stamp.

        Raises:
            InputError: a part differs; the message names the parts.
        """
        changed = sorted(
            name for name in {*self.parts, *stamped} if self.parts.get(name) != stamped.get(name)
        )
        if changed:
            raise InputError(
                file=what,
                field="render stamp",
                found=f"prompts rendered with another {' and '.join(changed).replace('_', ' ')}",
                expected="the ones the policy has now",
                remedy="Materialise length_filtered and proto_shards again, then the rollouts.",
            )
