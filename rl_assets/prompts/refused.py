"""Why a prompt with media is not rendered."""

import contextlib
from collections.abc import Iterator

from rl_assets.errors import InputError, first_line


class Refused(Exception):
    """A prompt with media that is not rendered.

    Attributes:
        code: a key of `CODES`.
        path: the field at fault.
        reason: what is wrong.
    """

    def __init__(self, code: str, path: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.path, self.reason = code, path, reason


@contextlib.contextmanager
def reasons(code: str, path: str) -> Iterator[None]:
    """Turns whatever a library raises into a refusal of the row.

    Raises:
        Refused: something but a `Refused` or an `InputError` was raised.
    """
    try:
        yield
    except (Refused, InputError):
        raise
    except Exception as error:
        raise Refused(code, path, first_line(error)) from error
