"""`rl-assets codes`: the reject codes explained."""

import difflib
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from rl_assets.cli.console import coloured, stop
from rl_assets.contract import CODES
from rl_assets.contract.codes import codes_page


def codes(
    code: Annotated[str | None, typer.Argument(help="Explain this code.", show_default=False)] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/reject-codes.md.")] = False,
) -> None:
    """List the reject and warning codes, or explain one."""
    console = Console()
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
