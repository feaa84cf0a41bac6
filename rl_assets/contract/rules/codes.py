"""The one table of rules: every way in which a row is refused or remarked on, with what to do about it.

The contract, the render stage, `rl-assets codes` and `docs/reject-codes.md` all read it. Its order is the
order of precedence: of the errors of one row, the first in the table names the rejection.
"""

from rl_assets.contract.rules import codes_of_prompts, codes_of_rows
from rl_assets.contract.rules.code import Code, Finding

CODES: dict[str, Code] = {code.code: code for code in (*codes_of_rows.TABLE, *codes_of_prompts.TABLE)}
RANK: dict[str, int] = {code: rank for rank, code in enumerate(CODES)}


def by_precedence(findings: list[Finding]) -> list[Finding]:
    """`findings` in the order of the table; equal codes keep their order."""
    return sorted(findings, key=lambda finding: RANK[finding.code])
