"""What the commands share: the screen, how a wrong call ends, verdicts and remedies, and colours."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table as RichTable

from rl_assets.contract.rules.codes import CODES
from rl_assets.errors import InputError, printable

if TYPE_CHECKING:
    from rl_assets.graph.loading import Broken

REJECTED, WRONG_CALL = 1, 2
DAMAGED = 1


class Screen(Console):
    """A console that shows control characters of rows, prompts and answers: a terminal would obey them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments that are printed."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def stop(message: str) -> typer.Exit:
    """Say what is wrong on the error stream; the exception that ends the command with status 2."""
    Screen(stderr=True).print(f"[red]error[/red]: {escape(message)}", soft_wrap=True)
    return typer.Exit(WRONG_CALL)


@contextmanager
def refusals() -> Iterator[None]:
    """End the command with status 2 and the message of a user's error, without our traceback."""
    try:
        yield
    except InputError as error:
        raise stop(str(error)) from None


def warn_of(broken: "Iterable[Broken]") -> None:
    """Say which YAMLs were passed over since they do not load, and why."""
    for one in broken:
        line = f"[yellow]passed over[/yellow]: {escape(str(one.error))}"
        Screen(stderr=True).print(line, soft_wrap=True, highlight=False)


def counted(accepted: int, total: int) -> str:
    """How many rows are accepted, in the colour of the verdict, as Rich markup."""
    return f"[{'green' if accepted == total else 'red'}]{accepted:,} of {total:,} rows accepted[/]"


def print_remedies(console: Console, counts: Iterable[tuple[str, int]]) -> None:
    """What to do about findings, each a code and how often it was found; a line each without a terminal."""
    if not console.is_terminal:
        for code, count in counts:
            console.print(f"{code} ({count:,}): {escape(CODES[code].remedy)}", soft_wrap=True)
        return
    table = RichTable("code", "found", "what to do", box=None, header_style="dim", pad_edge=False)
    table.columns[0].no_wrap = True
    table.columns[1].justify = "right"
    for code, count in counts:
        table.add_row(code, f"{count:,}", escape(CODES[code].remedy))
    console.print(table)


def called(command: str) -> str:
    """How a command of this installation is to be typed: as `rl-assets` was, by its name or by a path."""
    mine = Path(sys.argv[0])
    found = shutil.which(mine.name)
    by_path = mine.name == "rl-assets" and not (found and os.path.samefile(found, mine))
    return str(mine.with_name(command)) if by_path else command


def coloured(severity: str) -> str:
    """A severity in its colour, as Rich markup."""
    return f"[{'red' if severity == 'error' else 'yellow'}]{severity}[/]"
