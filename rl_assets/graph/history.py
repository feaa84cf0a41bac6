"""What Dagster remembers of a project's runs."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from rl_assets.errors import InputError, first_line
from rl_assets.graph.dataset import GraphDataset


def last_materialization(
    dataset: GraphDataset, asset: str, history: dg.DagsterInstance
) -> dg.EventLogRecord | None:
    """The last materialisation of an asset, of the dataset's partition where it has any; None before one."""
    wanted = dg.AssetRecordsFilter(
        dataset.key(asset), asset_partitions=[dataset.partition] if dataset.partition else None
    )
    return next(iter(history.fetch_materializations(wanted, limit=1).records), None)


@contextlib.contextmanager
def run_history(root: Path) -> Iterator[dg.DagsterInstance | None]:
    """What Dagster remembers of the project's runs, or None where it is not said where that lies.

    As for `dg`: `DAGSTER_HOME`, or without it the `dagster.yaml` in the project's top folder.

    Raises:
        InputError: it is said, and it cannot be opened.
    """
    home = os.environ.get("DAGSTER_HOME")
    if not home and not (root / "dagster.yaml").is_file():
        yield None
        return
    with contextlib.chdir(root):  # the paths in dagster.yaml are relative to it
        try:
            instance = dg.DagsterInstance.get() if home else dg.DagsterInstance.from_config(str(root))
        except Exception as error:  # a bad file, a folder that is not there, a database that is down
            raise InputError(
                file=home or root / "dagster.yaml",
                found=f"a run history that cannot be opened ({first_line(error)})",
                remedy="Correct DAGSTER_HOME or dagster.yaml, or unset DAGSTER_HOME.",
            ) from error
        with instance:
            yield instance
