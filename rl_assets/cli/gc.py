"""`rl-assets gc`: what nothing refers to any more is deleted from the store."""

from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table as RichTable

from rl_assets.cli.console import Screen, refusals, warn_of


def gc(
    dataset: Annotated[
        str | None, typer.Option(help="Tidy the store of this dataset only.", show_default="all")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would go, and delete nothing.")
    ] = False,
    defs: Annotated[
        Path, typer.Option(help="The project's folder, or one below it.", show_default="this folder")
    ] = Path(),
) -> None:
    """Delete old shards, rollouts, media, journals and unfinished files that no asset refers to.

    What the assets hold now stays, and so does what a run that was killed can go on from. Refused while a run
    of a dataset is in progress. Exit status: 0, or 2 when it was refused.
    """
    console = Screen()
    with refusals():
        from rl_assets.cli.tidy import delete, find_garbage, require_no_run, unknown_folders
        from rl_assets.graph.history import run_history
        from rl_assets.graph.project import load_datasets, stores

        project = load_datasets(defs)
        datasets = project.chosen(dataset)
        warn_of(project.broken)
        with run_history(datasets[0].root) as history:
            if history is None:
                console.print("[yellow]No run history: whether a run is in progress cannot be seen.[/yellow]")
            else:
                for one in datasets:
                    require_no_run(one, history)
            garbage = []
            for part in (part for one in datasets for part in stores(one)):
                found = find_garbage(part)
                garbage += [(part.name, item) for item in found]
                if not dry_run:
                    delete(part, found)
        broken = {name for one in project.broken for name in one.datasets}
        unknown = [] if dataset else unknown_folders(project.loaded)
        others = [folder for folder in unknown if folder.name not in broken]
    lines: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for name, item in garbage:
        lines[name, item.kind][0] += 1
        lines[name, item.kind][1] += item.bytes
    if lines:
        table = RichTable("dataset", "what", "number", "size", box=None, header_style="dim", pad_edge=False)
        table.columns[2].justify = table.columns[3].justify = "right"
        for (name, kind), (number, size) in lines.items():
            table.add_row(name, kind, f"{number:,}", decimal(size))
        console.print(table)
    for folder in others:
        console.print(
            f"[yellow]{escape(str(folder))} belongs to no dataset of this project and stays.[/yellow]",
            soft_wrap=True,
        )
    verb = "would be freed" if dry_run else "freed"
    console.print(f"{decimal(sum(item.bytes for _, item in garbage))} {verb}")
