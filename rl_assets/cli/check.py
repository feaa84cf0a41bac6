"""`rl-assets check`: the field contract as a linter."""

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from rl_assets.cli.console import REJECTED, Screen, coloured, counted, remedies, stop
from rl_assets.contract import ContractOptions
from rl_assets.errors import InputError
from rl_assets.lint import Issue, Report, checkpoint_media_tokens, lint, place


class Format(StrEnum):
    """Output of `check`."""

    table = "table"
    json = "json"


class PromptFormat(StrEnum):
    """What the prompt column holds."""

    messages = "messages"
    text = "text"


def check(
    files: Annotated[
        list[str],
        typer.Argument(help="parquet, json or jsonl files, globs, folders or URLs.", show_default=False),
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Folder or hub id: render the prompts with its chat template."),
    ] = None,
    processor: Annotated[
        str | None,
        typer.Option(help="Folder or hub id: apply the media rules to all rows."),
    ] = None,
    max_prompt_length: Annotated[
        int | None,
        typer.Option(min=1, help="Warn of prompts with more tokens (needs --tokenizer)."),
    ] = None,
    output: Annotated[
        Format, typer.Option("--format", help="A table for people, json for programs.")
    ] = Format.table,
    prompt_key: Annotated[str, typer.Option(help="Column of the prompt.")] = "prompt",
    reward_fn_key: Annotated[str, typer.Option(help="Column of the data source.")] = "data_source",
    prompt_format: Annotated[PromptFormat, typer.Option(help="What the prompt is.")] = PromptFormat.messages,
    media_root: Annotated[
        str | None, typer.Option(help="Folder of the media (by default the folder of each file).")
    ] = None,
    known_data_source: Annotated[
        list[str] | None, typer.Option(help="A source that your own scorer knows; may be repeated.")
    ] = None,
    val_files: Annotated[
        list[str] | None, typer.Option(help="Validation files: prompts shared with FILES are warned of.")
    ] = None,
    show: Annotated[int, typer.Option(min=0, help="Lines of the table; 0 shows all.")] = 50,
) -> None:
    """Judge every row of FILES by the rules of the field contract.

    Exit status: 0 when every row is accepted, 1 when a row is rejected, 2 when the call itself is wrong.
    """
    try:
        if max_prompt_length is not None and tokenizer is None:
            raise InputError(
                field="--max-prompt-length",
                found="no tokenizer",
                remedy="A length in tokens needs one: add --tokenizer.",
            )
        options = ContractOptions(
            prompt_key=prompt_key,
            reward_fn_key=reward_fn_key,
            prompt_format=prompt_format.value,
            media_root=media_root,
            known_data_sources=tuple(known_data_source or ()),
            has_processor=processor is not None,
            special_tokens=checkpoint_media_tokens(tokenizer, processor),
        )
        report = lint(
            files, options, val_files=val_files, tokenizer=tokenizer, max_prompt_length=max_prompt_length
        )
    except InputError as error:
        # The fields named by the reader are settings of the YAML, of which there is none here.
        field = error.field if error.field and not error.field.startswith("data.") else None
        plain = InputError(
            file=error.file, field=field, found=error.found, expected=error.expected, remedy=error.remedy
        )
        raise stop(str(plain)) from None
    if output is Format.json:
        typer.echo(json.dumps(_as_json(report), ensure_ascii=False, indent=2))
    else:
        _print(report, show)
    raise typer.Exit(REJECTED if report.accepted < report.total else 0)


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "accepted": report.accepted,
        "total": report.total,
        "rejected": [issue._asdict() for issue in report.rejected],
        "warnings": [issue._asdict() for issue in report.warnings],
    }


def _print(report: Report, show: int) -> None:
    console = Screen()
    issues = [("error", issue) for issue in report.rejected] + [("warning", i) for i in report.warnings]
    issues.sort(key=lambda pair: place(pair[1]))
    shown = issues[:show] if show else issues
    for file, group in itertools.groupby(shown, key=lambda pair: pair[1].file):
        console.print(f"[bold]{escape(file)}[/bold]", soft_wrap=True)
        console.print(_table(group))
    if len(issues) > len(shown):
        console.print(f"… and {len(issues) - len(shown):,} more (--show 0 shows all)\n")
    if issues:
        console.print(remedies(Counter(issue.code for _, issue in issues).most_common()))
        console.print()
    refused = report.total - report.accepted
    console.print(
        f"{counted(report.accepted, report.total)}, {refused:,} rejected, {len(report.warnings):,} warnings"
    )


def _table(issues: Iterable[tuple[str, Issue]]) -> RichTable:
    table = RichTable("row", "", "code", "field", "message", box=None, header_style="dim", pad_edge=False)
    table.columns[0].justify = "right"
    table.columns[2].no_wrap = True
    for severity, issue in issues:
        cells = (issue.code, escape(issue.field or ""), escape(issue.message))
        table.add_row(str(issue.row), coloured(severity), *cells)
    return table
