"""Text of users inside Markdown: shown as it stands and never obeyed.

Prompts, answers and the names in a row may look like markup, by chance or on purpose: an image in one would
be fetched, from whatever host it names, by everyone who looks at the page.
"""

import re
from collections.abc import Iterable, Sequence

from rl_assets.errors import printable

_MARKUP = re.compile(r"([\\`*_{}\[\]#!|~$])")
_TICKS = re.compile(r"`+")


def escape(text: str) -> str:
    """Text that shows as it stands within a line or a table's cell."""
    flat = printable(" ⏎ ".join(text.splitlines()))
    return _MARKUP.sub(r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;"))


def code(text: str) -> str:
    """Text as code within a line or a table's cell."""
    flat = printable(" ".join(text.splitlines())).replace("|", "\\|")
    ticks = _fence(flat, least=1)
    return f"{ticks} {flat} {ticks}" if len(ticks) > 1 else f"`{flat}`"


def code_block(text: str, language: str) -> str:
    """Text as a block of code."""
    ticks = _fence(text, least=3)
    return f"{ticks}{language}\n{text}\n{ticks}"


def _fence(text: str, *, least: int) -> str:
    """More backticks than stand anywhere in a row in the text."""
    return "`" * max(least, 1 + max(map(len, _TICKS.findall(text)), default=0))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells that are Markdown already, as a table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
