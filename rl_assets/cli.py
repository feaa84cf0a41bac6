"""The command line: `rl-assets check` judges files of RL rows, `rl-assets codes` explains what it found."""

import difflib
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from rl_assets.contract import CODES, ContractOptions, ContractResult, apply_contract, scan_files
from rl_assets.contract.codes import codes_page
from rl_assets.errors import InputError
from rl_assets.prompts.media_tokens import media_tokens

app = typer.Typer(
    help="Check RL post-training datasets in verl's row schema.", no_args_is_help=True, add_completion=False
)

REJECTED, WRONG_CALL = 1, 2
OVERLONG = "prompt.overlong"


class Format(StrEnum):
    """Output of `check`."""

    table = "table"
    json = "json"


class PromptFormat(StrEnum):
    """What the prompt column holds."""

    messages = "messages"
    text = "text"


class Issue(NamedTuple):
    """One line of the linter: what was found where. `row` counts from 0 in its file."""

    file: str
    row: int
    code: str
    field: str | None
    message: str


class Report(NamedTuple):
    """What the linter says about a set of files."""

    accepted: int
    total: int
    rejected: list[Issue]
    warnings: list[Issue]


@app.callback()
def _main() -> None:
    """Check RL post-training datasets in verl's row schema."""


@app.command()
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
            special_tokens=_media_tokens(tokenizer, processor),
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
        Console(stderr=True).print(f"[red]error[/red]: {escape(str(plain))}", soft_wrap=True)
        raise typer.Exit(WRONG_CALL) from None
    if output is Format.json:
        typer.echo(json.dumps(_as_json(report), ensure_ascii=False, indent=2))
    else:
        _print(report, show)
    raise typer.Exit(REJECTED if report.accepted < report.total else 0)


@app.command()
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
            table.add_row(rule.code, rule.stage, _coloured(rule.severity), escape(rule.meaning))
        console.print(table)
    elif code in CODES:
        rule = CODES[code]
        console.print(
            f"[bold]{rule.code}[/bold]  {_coloured(rule.severity)}, found by the {rule.stage} stage"
        )
        console.print(f"\n{escape(rule.meaning)}\n\n[bold]What to do:[/bold] {escape(rule.remedy)}")
        if rule.adjustable:
            console.print("\nAdjustable: `contract.severities` may make it an error or a warning.")
    else:
        close = difflib.get_close_matches(code, CODES, n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        Console(stderr=True).print(f"[red]error[/red]: there is no code {escape(code)}{hint}")
        raise typer.Exit(WRONG_CALL)


def lint(
    files: list[str],
    options: ContractOptions,
    *,
    val_files: list[str] | None = None,
    tokenizer: str | None = None,
    max_prompt_length: int | None = None,
    root: Path | None = None,
) -> Report:
    """Judge the rows of `files`; nothing is written.

    Args:
        tokenizer: renders the accepted rows too, where one is named; a row that its template refuses is
            rejected, and one longer than `max_prompt_length` is warned of.
        root: what relative paths start from, by default the current folder.

    Raises:
        InputError: a file or the tokenizer cannot be read.
    """
    root = root or Path.cwd()
    manifest = scan_files(files, val_files, root=root)
    with tempfile.TemporaryDirectory(prefix="rl-assets-") as name:
        folder = Path(name)
        result = apply_contract(manifest, options, root=root, folder=folder, examples=None)
        rejected = list(_issues(result.rejected.rows(_REJECT_COLUMNS)))
        warnings = [
            Issue(warned.file, warned.row, *warned.finding)
            for found in result.examples.values()
            for warned in found
        ]
        accepted = result.accepted_rows
        if tokenizer is not None:
            refused, overlong = _render(result, tokenizer, max_prompt_length, folder, options.has_processor)
            accepted -= len({(issue.file, issue.row) for issue in refused})
            rejected += refused
            warnings += overlong
    return Report(accepted, manifest.rows, sorted(rejected, key=_place), sorted(warnings, key=_place))


_REJECT_COLUMNS = ("source_file", "source_row", "errors")


def _issues(records: Iterator[dict[str, Any]]) -> Iterator[Issue]:
    for record in records:
        for error in record["errors"]:
            yield Issue(
                record["source_file"], record["source_row"], error["code"], error["path"], error["message"]
            )


def _place(issue: Issue) -> tuple[str, int]:
    return issue.file, issue.row


def _render(
    result: ContractResult, tokenizer: str, max_prompt_length: int | None, folder: Path, has_processor: bool
) -> tuple[list[Issue], list[Issue]]:
    """Rows that the chat template refuses, and rows whose prompt is too long."""
    from rl_assets.prompts import PromptRenderer, filter_by_length

    limit = max_prompt_length or 1 << 30
    gate = filter_by_length(
        result.accepted,
        PromptRenderer.load(tokenizer),
        max_prompt_length=limit,
        folder=folder,
        log=lambda line: None,
    )
    refused = [
        issue
        for issue in _issues(gate.refused.rows(_REJECT_COLUMNS))
        if not (has_processor and issue.code == "render.media_unsupported")
    ]
    overlong = [
        Issue(
            record["source_file"],
            record["source_row"],
            OVERLONG,
            "prompt",
            f"found {record['prompt_length']:,} tokens, expected at most {limit:,}",
        )
        for record in gate.overlong.rows(("source_file", "source_row", "prompt_length"))
    ]
    return refused, overlong


def _media_tokens(tokenizer: str | None, processor: str | None) -> tuple[str, ...]:
    """Control tokens of the policy that stand for media."""
    tokens: set[str] = set()
    for path in {path for path in (tokenizer, processor) if path is not None}:
        from transformers import AutoTokenizer

        try:
            loaded = AutoTokenizer.from_pretrained(path)
        except Exception as error:  # Whatever a damaged or absent checkpoint makes the library raise.
            raise InputError(
                file=path,
                field="--tokenizer" if path == tokenizer else "--processor",
                found=f"nothing that loads as one ({str(error).splitlines()[0]})",
                expected="a folder with tokenizer files, or a hub id",
                remedy="Check the path.",
            ) from error
        tokens.update(str(token) for token in loaded.added_tokens_decoder.values() if token.special)
    return media_tokens(tokens)


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "accepted": report.accepted,
        "total": report.total,
        "rejected": [issue._asdict() for issue in report.rejected],
        "warnings": [issue._asdict() for issue in report.warnings],
    }


def _print(report: Report, show: int) -> None:
    console = Console()
    issues = [("error", issue) for issue in report.rejected] + [("warning", i) for i in report.warnings]
    issues.sort(key=lambda pair: _place(pair[1]))
    shown = issues[:show] if show else issues
    for file, group in itertools.groupby(shown, key=lambda pair: pair[1].file):
        console.print(f"[bold]{escape(file)}[/bold]", soft_wrap=True)
        console.print(_table(group))
    if len(issues) > len(shown):
        console.print(f"… and {len(issues) - len(shown):,} more (--show 0 shows all)\n")
    if issues:
        _print_remedies(console, issues)
    refused = report.total - report.accepted
    colour = "red" if refused else "green"
    console.print(
        f"[{colour}]{report.accepted:,} of {report.total:,} rows accepted[/{colour}], "
        f"{refused:,} rejected, {len(report.warnings):,} warnings"
    )


def _table(issues: Iterable[tuple[str, Issue]]) -> RichTable:
    table = RichTable("row", "", "code", "field", "message", box=None, header_style="dim", pad_edge=False)
    table.columns[0].justify = "right"
    table.columns[2].no_wrap = True
    for severity, issue in issues:
        cells = (issue.code, escape(issue.field or ""), escape(issue.message))
        table.add_row(str(issue.row), _coloured(severity), *cells)
    return table


def _print_remedies(console: Console, issues: list[tuple[str, Issue]]) -> None:
    counts = Counter(issue.code for _, issue in issues)
    table = RichTable("code", "found", "what to do", box=None, header_style="dim", pad_edge=False)
    table.columns[0].no_wrap = True
    table.columns[1].justify = "right"
    for code, count in counts.most_common():
        remedy = CODES[code].remedy if code in CODES else "Shorten the prompt, or raise the limit."
        table.add_row(code, f"{count:,}", escape(remedy))
    console.print(table)
    console.print()


def _coloured(severity: str) -> str:
    return f"[{'red' if severity == 'error' else 'yellow'}]{severity}[/]"


if __name__ == "__main__":
    app()
