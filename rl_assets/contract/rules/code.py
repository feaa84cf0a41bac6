"""What a rule is, and what it finds in a row."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Stage = Literal["read", "contract", "render", "score"]
Severity = Literal["error", "warning"]


class Finding(NamedTuple):
    """One thing that a rule found in a row.

    Attributes:
        code: key of `CODES`.
        path: path of the value inside the row (``prompt[2].content``), or None for the row as a whole.
        message: what was found and what was expected, without quoting the prompt.
    """

    code: str
    path: str | None
    message: str


@dataclass(frozen=True)
class Code:
    """One rule.

    Attributes:
        code: stable name, `<theme>.<problem>`.
        meaning: one line: what is wrong.
        remedy: one line: what to do.
        stage: the stage that applies the rule.
        severity: an error rejects the row, a warning is counted and the row goes on.
        adjustable: whether a user may turn the error into a warning or the warning into an error.
    """

    code: str
    meaning: str
    remedy: str
    stage: Stage
    severity: Severity
    adjustable: bool = False
