"""`rl-assets trace`: a row followed from its file to its scores."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from rl_assets.cli.console import Screen, refusals, warn_of

if TYPE_CHECKING:
    from rl_assets.cli.traced import Problem, Trace

_INDENT = 4


def trace(
    target: Annotated[
        str,
        typer.Argument(
            metavar="UID", help="The uid, or the beginning of one; or FILE:ROW.", show_default=False
        ),
    ],
    dataset: Annotated[
        str | None, typer.Option(help="Look in this dataset only.", show_default="all")
    ] = None,
    defs: Annotated[
        Path, typer.Option(help="The project's folder, or one below it.", show_default="this folder")
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Follow a row: file, verdict, rendered prompt, shard, responses, scores, and the runs that made them.

    Exit status: 0, or 2 when there is no such row, or more than one.
    """
    with refusals():
        from rl_assets.cli.trace_row import find_row, trace_row
        from rl_assets.graph.history import run_history
        from rl_assets.graph.project import load_datasets, stores

        project = load_datasets(defs)
        datasets = project.chosen(dataset)
        warn_of(project.broken)
        found, place = find_row([part for one in datasets for part in stores(one)], target)
        with run_history(found.root) as history:
            result = trace_row(found, place, history)
    if as_json:
        typer.echo(result.model_dump_json(indent=2))
    else:
        Screen().print(_view(result))


def _view(trace: "Trace") -> RenderableType:
    part = f"[{trace.partition}]" if trace.partition else ""
    where = f"  {trace.source_file}, row {trace.source_row}"
    head = Text.assemble((trace.dataset + part, "bold"), where)
    lines: list[RenderableType] = [head, Text(f"uid {trace.uid or '(none: refused before it had one)'}")]
    lines += [Text(note, style="yellow") for note in trace.notes]
    if not trace.history:
        lines.append(
            Text("No run history: DAGSTER_HOME is not set, and there is no dagster.yaml here.", style="dim")
        )
    reached = True
    for stage in (_contract, _prompt, _shard, _responses, _difficulty, _training):
        shown = stage(trace)
        if reached or len(shown) > 1:  # no empty lines between the stages that the row did not come to
            lines.append("")
        reached = len(shown) > 1
        lines += shown
    return Group(*lines)


def _stage(trace: "Trace", asset: str, good: bool | None, verdict: str) -> RenderableType:
    """A stage's line: what became of the row there, and the run that made the asset."""
    mark, style = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "dim")}[good]
    made = trace.made.get(asset)
    when = ""
    if made and made.run_id and made.time:
        when = f"run {made.run_id[:8]}  {made.time.astimezone():%Y-%m-%d %H:%M:%S}"
    line = RichTable.grid(expand=True, padding=(0, 1))
    line.add_column(width=1)
    line.add_column(width=17)
    line.add_column(ratio=1)
    line.add_column(justify="right", no_wrap=True)
    line.add_row(Text(mark, style), Text(asset, "bold"), Text(verdict, style), Text(when, "dim"))
    return line


def _not_there(trace: "Trace", asset: str) -> list[RenderableType]:
    line = RichTable.grid(padding=(0, 1))
    line.add_column(width=1)
    line.add_column(width=17)
    line.add_row("·", asset, "did not come here" if asset in trace.made else "not made yet", style="dim")
    return [line]


def _contract(trace: "Trace") -> list[RenderableType]:
    contract = trace.contract
    if contract is None:
        return _not_there(trace, "field_contract")
    if contract.verdict == "rejected":
        row = Panel(Text(contract.row or ""), title="the row", title_align="left", border_style="dim")
        return [
            _stage(trace, "rejected_rows", False, "rejected by the field contract"),
            _problems(contract.problems),
            Padding(row, (0, 0, 0, _INDENT)),
        ]
    fields = {
        "split": trace.split,
        "data_source": contract.data_source,
        "ability": contract.ability,
        "ground_truth": _json(contract.ground_truth),
        "extra_info": _json(contract.extra_info),
        "tools": contract.tools and f"{', '.join(contract.tools.names)} (from {contract.tools.source})",
    }
    return [
        _stage(trace, "field_contract", True, "accepted"),
        _pairs(fields),
        *_warnings(contract.warnings),
    ]


def _prompt(trace: "Trace") -> list[RenderableType]:
    prompt = trace.prompt
    if prompt is None:
        return _not_there(trace, "length_filtered")
    if prompt.verdict == "unrenderable":
        return [
            _stage(trace, "unrenderable_rows", False, "cannot be rendered"),
            _problems(prompt.problems),
        ]
    length = f"{prompt.tokens:,} tokens of at most {prompt.limit:,}"
    if prompt.verdict == "overlong":
        return [_stage(trace, "overlong_rows", False, f"overlong: {length}"), *_warnings(prompt.warnings)]
    lines = [_stage(trace, "length_filtered", True, f"fits: {length}"), *_warnings(prompt.warnings)]
    if prompt.text is not None:
        text = Panel(Text(prompt.text), title="rendered prompt", title_align="left", border_style="dim")
        lines.append(Padding(text, (0, 0, 0, _INDENT)))
    return lines


def _shard(trace: "Trace") -> list[RenderableType]:
    shard = trace.shard
    if shard is None:
        return _not_there(trace, "proto_shards")
    if shard.row is None:
        cap = "left out by the cap on samples, or not sharded since it was accepted"
        return [_stage(trace, "proto_shards", None, cap)]
    return [_stage(trace, "proto_shards", True, f"{shard.name}, row {shard.row} of {shard.rows:,}")]


def _responses(trace: "Trace") -> list[RenderableType]:
    if not trace.responses:
        return _not_there(trace, "rollouts")
    count = len(trace.responses)
    lines = [_stage(trace, "rollouts", True, f"{count} response{'s' * (count != 1)}")]
    lines += [
        _stage(trace, name, True, "") for name in ("reward_inputs", "reward_scores") if name in trace.made
    ]
    table = RichTable(box=None, header_style="dim", pad_edge=False, expand=True)
    for name, justify in (("sample", "right"), ("finish", "left"), ("tokens", "right"), ("score", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("response", ratio=1)
    for response in trace.responses:
        score = "–" if response.score is None else f"{response.score:g}"
        text = Text(response.text)
        if response.error:
            text.append(f"\n{response.error}", "red")
        if response.near_miss:
            text.append("\na kinder reading finds the right answer in it", "yellow")
        cut = "yellow" if response.finish_reason == "length" else ""
        table.add_row(
            str(response.sample_index),
            Text(response.finish_reason, cut),
            f"{response.tokens:,}",
            score,
            text,
        )
    return [*lines, Padding(table, (0, 0, 0, _INDENT))]


def _difficulty(trace: "Trace") -> list[RenderableType]:
    found = trace.difficulty
    if found is None:
        return _not_there(trace, "prompt_difficulty")
    if found["pass_rate"] is None:
        return [_stage(trace, "prompt_difficulty", None, f"none of {found['n']} responses has a score")]
    low, high = found["pass_rate_low"], found["pass_rate_high"]
    rate = f"{found['passed']} of {found['scored']} passed: {found['pass_rate']:.0%} ({low:.0%} … {high:.0%})"
    return [_stage(trace, "prompt_difficulty", True, rate)]


def _training(trace: "Trace") -> list[RenderableType]:
    training = trace.verl_dataset
    if training is None:
        return _not_there(trace, "verl_dataset")
    if training.taken:
        return [_stage(trace, "verl_dataset", True, f"taken: {training.file}")]
    return [_stage(trace, "verl_dataset", False, f"left out as {training.reason}: {training.detail}")]


def _warnings(warnings: "list[Problem]") -> list[RenderableType]:
    return [_problems(warnings, "yellow")] if warnings else []


def _problems(problems: "list[Problem]", style: str = "red") -> RenderableType:
    table = RichTable.grid(padding=(0, 2))
    for problem in problems:
        table.add_row(Text(problem.code, style), Text(problem.path or ""), Text(problem.message))
    return Padding(table, (0, 0, 0, _INDENT))


def _pairs(fields: dict[str, Any]) -> RenderableType:
    table = RichTable.grid(padding=(0, 2))
    for name, value in fields.items():
        if value is not None:
            table.add_row(Text(name, "dim"), Text(str(value)))
    return Padding(table, (0, 0, 0, _INDENT))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
