"""`rl-assets codes`: the reject codes explained."""

import difflib
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from rl_assets.cli.console import Screen, coloured, stop
from rl_assets.contract.rules.codes import CODES


def codes(
    code: Annotated[str | None, typer.Argument(help="Explain this code.", show_default=False)] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/reject-codes.md.")] = False,
) -> None:
    """List the reject and warning codes, or explain one."""
    console = Screen()
    if markdown:
        typer.echo(codes_page(), nl=False)
    elif code is None:
        table = RichTable("code", "stage", "severity", "what is wrong", box=None, pad_edge=False)
        table.columns[0].no_wrap = True
        for rule in CODES.values():
            table.add_row(rule.code, rule.stage, coloured(rule.severity), escape(rule.meaning))
        console.print(table)
    elif code in CODES:
        rule = CODES[code]
        console.print(f"[bold]{rule.code}[/bold]  {coloured(rule.severity)}, found by the {rule.stage} stage")
        console.print(f"\n{escape(rule.meaning)}\n\n[bold]What to do:[/bold] {escape(rule.remedy)}")
        if rule.adjustable:
            console.print("\nAdjustable: `contract.severities` may make it an error or a warning.")
    else:
        close = difflib.get_close_matches(code, CODES, n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise stop(f"there is no code {code}{hint}")


def codes_page() -> str:
    """The whole table as a Markdown page."""
    lines = [
        "# Reject and warning codes",
        "",
        "An *error* rejects the row; a *warning* is counted and the row goes on. Where a code is marked as",
        "adjustable, `contract.severities` in the YAML may make the one the other. The order is that of",
        "precedence: of the errors of one row, the first in this list names the rejection.",
        "",
        "This page is made from `rl_assets/contract/rules/codes.py` by `rl-assets codes --markdown`.",
    ]
    titles = {
        ("read", "error"): "Errors on reading",
        ("contract", "error"): "Errors in the field contract",
        ("render", "error"): "Errors on rendering",
        ("render", "warning"): "Set aside on rendering",
        ("score", "error"): "Errors of the self-test of scoring, which refuse no row",
        ("score", "warning"): "Warnings of the self-test of scoring",
        ("contract", "warning"): "Warnings",
    }
    for (stage, severity), title in titles.items():
        lines += ["", f"## {title}", "", "| code | what is wrong | what to do |", "|---|---|---|"]
        for code in CODES.values():
            if (code.stage, code.severity) == (stage, severity):
                mark = " (adjustable)" if code.adjustable and severity == "error" else ""
                lines.append(f"| `{code.code}`{mark} | {_cell(code.meaning)} | {_cell(code.remedy)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
