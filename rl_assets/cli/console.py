"""What the commands share: how a wrong call ends, and colours."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

from rl_assets.errors import InputError

REJECTED, WRONG_CALL = 1, 2


def stop(message: str) -> typer.Exit:
    """Say what is wrong on the error stream; the exception that ends the command with status 2."""
    Console(stderr=True).print(f"[red]error[/red]: {escape(message)}", soft_wrap=True)
    return typer.Exit(WRONG_CALL)


@contextmanager
def refusals() -> Iterator[None]:
    """End the command with status 2 and the message of a user's error, without our traceback."""
    try:
        yield
    except InputError as error:
        raise stop(str(error)) from None


def coloured(severity: str) -> str:
    """A severity in its colour, as Rich markup."""
    return f"[{'red' if severity == 'error' else 'yellow'}]{severity}[/]"
