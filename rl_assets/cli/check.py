"""`rl-assets check`: the field contract as a linter."""

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable

from rl_assets.cli.console import REJECTED, Screen, coloured, counted, stop
from rl_assets.cli.lint import Issue, Report, checkpoint_tokens, lint, place
from rl_assets.contract.rules.codes import CODES
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.errors import InputError, printable


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
        list[str] | None,
        typer.Argument(help="parquet, json or jsonl files, globs, folders or URLs.", show_default=False),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Judge this dataset's files as its YAML says, rendered by its policy."),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Of --dataset, this partition.")] = None,
    defs: Annotated[
        Path, typer.Option(help="The project's folder, or one below it.", show_default="this folder")
    ] = Path(),
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
    show: Annotated[int, typer.Option(min=0, help="Rows shown for each code; 0 shows all.")] = 3,
) -> None:
    """Judge every row of FILES, or of a dataset's files, by the rules of the field contract.

    With --dataset, files and settings are those of its YAML, and the options of the YAML's settings have no
    effect. What is accepted is what the graph accepts and can render, and right answers are scored as the
    check `perfect_answers_score` does.

    Exit status: 0 when every row is accepted, 1 when a row is rejected or the run would stop, 2 when the call
    itself is wrong.
    """
    try:
        if bool(files) == (dataset is not None):
            raise InputError(
                found="both FILES and --dataset" if files else "neither FILES nor --dataset",
                expected="one of them",
                remedy="Name raw files, or a dataset of this project.",
            )
        if dataset is not None:
            report = _lint_dataset(dataset, partition, defs)
        else:
            report = _lint_files(
                files or [],
                val_files,
                ContractOptions(
                    prompt_key=prompt_key,
                    reward_fn_key=reward_fn_key,
                    prompt_format=prompt_format.value,
                    media_root=media_root,
                    known_data_sources=tuple(known_data_source or ()),
                    has_processor=processor is not None,
                ),
                tokenizer,
                processor,
                max_prompt_length,
            )
    except InputError as error:
        # The fields named by the reader are settings of the YAML, of which FILES have none.
        hidden = dataset is None and error.field is not None and error.field.startswith("data.")
        parts = vars(error) | ({"field": None} if hidden else {})
        raise stop(str(InputError(**parts))) from None
    if output is Format.json:
        typer.echo(json.dumps(_as_json(report), ensure_ascii=False, indent=2))
    else:
        _print(report, show)
    raise typer.Exit(REJECTED if report.stops or report.accepted < report.total else 0)


def _lint_files(
    files: list[str],
    val_files: list[str] | None,
    options: ContractOptions,
    tokenizer: str | None,
    processor: str | None,
    max_prompt_length: int | None,
) -> Report:
    if max_prompt_length is not None and tokenizer is None:
        raise InputError(
            field="--max-prompt-length",
            found="no tokenizer",
            remedy="A length in tokens needs one: add --tokenizer.",
        )
    tokens = checkpoint_tokens(tokenizer, processor)
    options = replace(options, special_tokens=tokens.media, control_tokens=tokens.control)
    renderer = None
    if tokenizer is not None:
        from rl_assets.prompts.render import PromptRenderer

        renderer = PromptRenderer.load(tokenizer)
    return lint(files, options, val_files=val_files, renderer=renderer, max_prompt_length=max_prompt_length)


def _lint_dataset(name: str, partition: str | None, defs: Path) -> Report:
    """The rows of a dataset's files under its YAML, as the graph judges and renders them."""
    from rl_assets.graph.project import load_datasets
    from rl_assets.policy.control_tokens import read_policy_tokens
    from rl_assets.policy.fingerprint import policy_files

    (dataset,) = load_datasets(defs).chosen(name)
    if (dataset.spec.partition_by is None) != (partition is None):
        raise InputError(
            field="--partition",
            found=partition or "none",
            expected="none" if partition else f"a partition of {name}",
            remedy="`partition_by` in the YAML says which there are.",
        )
    if partition is not None:
        dataset = dataset.at(partition)
    if isinstance(dataset.policy, Path) and dataset.policy.is_dir():
        policy_files(dataset.policy)  # what the graph refuses first
    tokens = read_policy_tokens(dataset.policy)
    data = dataset.spec.data
    return lint(
        data.train_paths,
        replace(dataset.contract_options, special_tokens=tokens.media, control_tokens=tokens.control),
        val_files=data.val_paths,
        renderer=dataset.renderer(),
        max_prompt_length=data.max_prompt_length,
        pool=dataset.score_pool,
        trainers=dataset.trainers,
        root=dataset.root,
        follow_links=data.follow_links,
    )


def _as_json(report: Report) -> dict[str, Any]:
    groups = _groups(report)
    return {
        "accepted": report.accepted,
        "total": report.total,
        "counts": {group.code: group.rows for group in groups},
        "rejected": [issue._asdict() for issue in report.rejected],
        "warnings": [issue._asdict() for issue in report.warnings],
        "stops": [issue._asdict() for issue in report.stops],
        "notes": report.notes,
        "not_read": report.manifest.passed_over,
        "named_for_validation": report.manifest.named_for_validation,
    }


class _Group(NamedTuple):
    """What was found under one code: the issues in the order of files and rows, and in how many rows."""

    code: str
    label: str
    issues: list[Issue]
    rows: int


def _groups(report: Report) -> list[_Group]:
    """The findings by code, most severe first, and of the same severity the most frequent first."""
    found: list[_Group] = []
    for label, issues in (("stops", report.stops), ("error", report.rejected), ("warning", report.warnings)):
        by_code: dict[str, list[Issue]] = {}
        for issue in issues:
            by_code.setdefault(issue.code, []).append(issue)
        groups = [
            _Group(code, label, group, len({place(issue) for issue in group}))
            for code, group in by_code.items()
        ]
        found += sorted(groups, key=lambda group: (-group.rows, group.code))
    return found


def _print(report: Report, show: int) -> None:
    console = Screen()
    groups = _groups(report)
    for group in groups:
        shown = group.issues[:show] if show else group.issues
        more = len(group.issues) - len(shown)
        (_print_group if console.is_terminal else _write_group)(console, group, shown, more)
    for note in report.notes:
        console.print(escape(f"{note}\n"), soft_wrap=not console.is_terminal)
    for note in report.manifest.notes:
        console.print(escape(f"{note[:1].upper()}{note[1:]}.\n"), soft_wrap=True)
    parts = [
        counted(report.accepted, report.total),
        f"{report.total - report.accepted:,} rejected",
        f"{len({place(issue) for issue in report.warnings}):,} with warnings",
    ]
    if report.stops:
        parts.append("[red]and the run stops before it generates[/red]")
    console.print(", ".join(parts), soft_wrap=True)


def _print_group(console: Screen, group: _Group, shown: list[Issue], more: int) -> None:
    """A code, what to do, and its first rows, for people."""
    rows = "1 row" if group.rows == 1 else f"{group.rows:,} rows"
    severity = "[red]stops the run[/red]" if group.label == "stops" else coloured(group.label)
    console.print(f"[bold]{group.code}[/bold]  {severity}  {rows}")
    console.print(Padding(escape(CODES[group.code].remedy), (0, 0, 0, 2)))
    table = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), style="dim")
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for issue in shown:
        where = f"{issue.field}: " if issue.field else ""
        table.add_row(escape(f"{issue.file}:{issue.row}"), escape(where + issue.message))
    console.print(Padding(table, (0, 0, 0, 4)))
    if more:
        console.print(f"    … and {more:,} more (--show 0 shows all)")
    console.print()


def _write_group(console: Screen, group: _Group, shown: list[Issue], more: int) -> None:
    """The same for files and programs: a line for the code, and one for each finding."""
    remedy = CODES[group.code].remedy
    console.print(escape(f"{group.code} ({group.rows:,}): {remedy}"), soft_wrap=True)
    for issue in shown:
        typer.echo(_line(group.label, issue))
    if more:
        console.print(f"… and {more:,} more of {group.code} (--show 0 shows all)", soft_wrap=True)


def _line(label: str, issue: Issue) -> str:
    """A finding on one line."""
    where = f"{issue.file}:{issue.row}: {issue.code}" + (f" {issue.field}" if issue.field else "")
    note = {"stops": " (stops the run)", "warning": " (warning)", "error": ""}[label]
    return printable(f"{where}: {issue.message}{note}".replace("\n", " "))
