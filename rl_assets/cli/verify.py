"""`rl-assets verify`: the files of the store against the digests that were noted when they were written."""

from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table as RichTable

from rl_assets.cli.console import DAMAGED, Screen, refusals, warn_of


def verify(
    dataset: Annotated[
        str | None, typer.Option(help="Verify the store of this dataset only.", show_default="all")
    ] = None,
    put_aside: Annotated[
        bool,
        typer.Option("--put-aside", help="Rename what is damaged, so that the next run makes it again."),
    ] = False,
    defs: Annotated[
        Path, typer.Option(help="The project's folder, or one below it.", show_default="this folder")
    ] = Path(),
) -> None:
    """Read all that the assets wrote, and name every file that has changed since.

    A run takes a file of unchanged size and time for unchanged; this command reads the bytes. It is refused
    while a run of a dataset is in progress. Exit status: 0 when nothing is damaged, 1 when something is, 2
    when the call itself is wrong.
    """
    console = Screen()
    with refusals():
        from rl_assets.base.files import put_aside as put_file_aside
        from rl_assets.cli.tidy import require_no_run
        from rl_assets.cli.verify_store import Damage
        from rl_assets.cli.verify_store import verify as verified
        from rl_assets.graph.history import run_history
        from rl_assets.graph.project import load_datasets, stores

        project = load_datasets(defs)
        datasets = project.chosen(dataset)
        warn_of(project.broken)
        with run_history(datasets[0].root) as history:
            for one in datasets:
                if history is not None:
                    require_no_run(one, history)
        table = RichTable("asset", "files", "size", "damaged", box=None, header_style="dim", pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        damaged: list[Damage] = []
        for part in (part for one in datasets for part in stores(one)):
            for asset in verified(part):
                name = "/".join(filter(None, (part.name, part.partition, asset.asset)))
                count = f"[red]{len(asset.damaged):,}[/red]" if asset.damaged else "0"
                table.add_row(escape(name), f"{asset.files:,}", decimal(asset.bytes), count)
                damaged += asset.damaged
    if not table.rows:
        console.print("Nothing was built yet.")
        return
    console.print(table)
    for path, found in damaged:
        aside = put_file_aside(path, found) if put_aside else None
        then = f", renamed to {aside.name}" if aside else ""
        console.print(f"[red]{escape(str(path))}[/red]: found {escape(found + then)}", soft_wrap=True)
    if damaged and not put_aside:
        console.print("`rl-assets verify --put-aside` renames these files; the next run makes them again.")
    if damaged:
        raise typer.Exit(DAMAGED)
