"""`rl-assets init`: a defs.yaml for raw files that are there."""

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from rl_assets.cli.console import REJECTED, Screen, called, counted, print_remedies, refusals

if TYPE_CHECKING:
    from rl_assets.cli.lint import Report
    from rl_assets.dataset.scaffold import Draft

_DEFAULTS = {
    "data.prompt_key": "prompt",
    "data.reward_fn_key": "data_source",
    "data.image_key": "images",
    "data.video_key": "videos",
    "data.audio_key": "audios",
    "contract.prompt_format": "messages",
}


def init(
    path: Annotated[str, typer.Argument(help="Folder, file or glob of the raw files.", show_default=False)],
    name: Annotated[
        str | None, typer.Option(help="Name of the dataset.", show_default="that of the folder")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Folder or hub id of the policy.", show_default="the one in data/policies"),
    ] = None,
    defs: Annotated[
        Path, typer.Option(help="The project's folder, or one below it.", show_default="this folder")
    ] = Path(),
) -> None:
    """Look at raw files, guess what their YAML has to say, show the guess, and write it.

    A file that is there is never overwritten. Exit status: 0, 1 when no row would be accepted (the YAML is
    written all the same), or 2 when nothing could be written.
    """
    console = Screen()
    with refusals():
        from rl_assets.cli.lint import lint
        from rl_assets.dataset.scaffold import draft_dataset, write_new, yaml_text
        from rl_assets.graph.project import project_root

        root = project_root(defs)
        draft = draft_dataset(path, root, name=name, policy=policy, small=not _has_gpu())
        target = _defs_folder(root) / draft.name / "defs.yaml"
        data = draft.settings("data")
        files = {
            key: [found] if isinstance(found, str) else found for key, found in data.items() if "files" in key
        }
        report = lint(
            files.get("train_files", []), draft.options(), val_files=files.get("val_files"), root=root
        )
        write_new(target, yaml_text(draft))
    folder = target.parent.relative_to(root)
    if not report.accepted:
        counts = Counter(issue.code for issue in report.rejected).most_common(3)
        why = ", ".join(f"{code} ({count:,})" for code, count in counts) or "the files have no rows"
        console.print(f"[red]no row would be accepted as it is[/red]: {why}\n", soft_wrap=True)
    console.print(_table(draft))
    _print_unused(console, draft)
    _print_verdict(console, report)
    console.print(f"\nwritten: [bold]{escape(str(target.relative_to(root)))}[/bold]", soft_wrap=True)
    steps = [
        f"{called('dg')} check yaml {folder}",
        f"{called('rl-assets')} check --dataset {draft.name}",
    ]
    if report.accepted:
        steps.append(f"{called('dg')} launch --job {draft.name}_rebuild")
    console.print("\n  ".join(["next: look at it, then", *steps]), soft_wrap=True, highlight=False)
    if not report.accepted:
        raise typer.Exit(REJECTED)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _defs_folder(root: Path) -> Path:
    """The folder of the project's definitions, as its pyproject.toml or dg.toml names it."""
    file = root / "dg.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text()).get("project", {})
    else:
        text = (root / "pyproject.toml").read_text()
        project = tomllib.loads(text).get("tool", {}).get("dg", {}).get("project", {})
    module = project.get("defs_module") or f"{project.get('root_module', 'rl_assets')}.defs"
    inside = module.replace(".", "/")
    return next((root / top / inside for top in ("", "src") if (root / top / inside).is_dir()), root / inside)


def _table(draft: "Draft") -> RichTable:
    table = RichTable("setting", "guess", "because", box=None, header_style="dim", pad_edge=False)
    table.columns[0].no_wrap = True
    table.add_row("dataset", draft.name, "by the folder or file")
    for guess in draft.guesses:
        value = guess.value if guess.value is not None else _DEFAULTS.get(guess.key, "")
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        why = escape(guess.why) if guess.sure else f"[yellow]{escape(guess.why)}: please look[/yellow]"
        table.add_row(guess.key, escape(shown), why)
    return table


def _print_verdict(console: Console, report: "Report") -> None:
    """How many rows the contract takes under these settings, and what it has against the others."""
    console.print(f"\n{counted(report.accepted, report.total)} with these settings")
    if report.rejected:
        print_remedies(console, Counter(issue.code for issue in report.rejected).most_common())
    if not report.accepted:
        console.print("Correct the rows, or the settings, before you start a run.")


def _print_unused(console: Console, draft: "Draft") -> None:
    """The files and columns that were seen and that nothing uses."""
    lines = []
    if draft.passed_over:
        files = ", ".join(draft.passed_over)
        lines.append(f"[yellow]not read[/yellow], since they are no parquet, json or jsonl: {escape(files)}")
    lines += [
        f"[yellow]nothing reads the column[/yellow] {escape(name)}: {escape(meant)}"
        for name, meant in draft.unread.items()
        if meant
    ]
    if others := [name for name, meant in draft.unread.items() if not meant]:
        lines.append(f"carried along, and read by nothing: {escape(', '.join(others))}")
    if lines:
        console.print("\n" + "\n".join(lines), soft_wrap=True, highlight=False)
