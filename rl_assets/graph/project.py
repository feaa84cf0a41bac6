"""A project from its command line: its datasets, and what Dagster remembers of its runs."""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import dagster as dg

from rl_assets.base.files import storage_root
from rl_assets.errors import InputError, first_line
from rl_assets.graph.dataset import GraphDataset

if TYPE_CHECKING:
    from rl_assets.graph.loading import Broken


def project_root(place: Path) -> Path:
    """The top folder of the Dagster project that `place` lies in.

    Raises:
        InputError: neither `place` nor a folder above it has a pyproject.toml or dg.toml.
    """
    place = Path(os.path.abspath(place))
    for folder in (place, *place.parents):
        if (folder / "dg.toml").is_file() or (folder / "pyproject.toml").is_file():
            return folder
    raise InputError(
        file=place,
        found="no Dagster project",
        expected="a folder with a pyproject.toml, or one below it",
        remedy="Call the command from the project's top folder, or name it with --defs.",
    )


class Datasets(NamedTuple):
    """The datasets of a project.

    Attributes:
        loaded: those whose YAML loads, by name.
        broken: the files that do not load.
    """

    loaded: list[GraphDataset]
    broken: list["Broken"]

    def chosen(self, name: str | None) -> list[GraphDataset]:
        """All that load, or the one called `name`.

        Raises:
            InputError: none is, or its YAML does not load.
        """
        if name is None:
            return self.loaded
        found = [dataset for dataset in self.loaded if dataset.name == name]
        for one in self.broken if not found else ():
            if name in one.datasets or name == one.file.parent.name:
                raise one.error
        if not found:
            raise InputError(
                field="--dataset",
                found=repr(name),
                expected=" or ".join(dataset.name for dataset in self.loaded),
                remedy="Check the spelling.",
            )
        return found


def load_datasets(place: Path) -> Datasets:
    """The datasets of the project in which `place` lies.

    Args:
        place: the project's folder, or any folder or file of its definitions.

    Raises:
        InputError: there is no project, it does not load, or it has no dataset that does.
    """
    from rl_assets.graph.loading import ProjectTree, together

    root = project_root(place)
    try:
        with warnings.catch_warnings():
            # Dagster says of its own functions which may still change; a command's output is the user's.
            warnings.simplefilter("ignore", dg.PreviewWarning)
            warnings.simplefilter("ignore", dg.BetaWarning)
            tree = ProjectTree.for_project(root)
            components = tree.datasets()
    except Exception as error:  # Dagster wraps whatever a module of the user's raises.
        raise InputError(
            file=root,
            found=f"definitions that do not load ({first_line(error.__cause__ or error)})",
            remedy="`dg check yaml FOLDER` and `dg check defs` say where.",
        ) from error
    if not components and tree.broken:
        raise together(tree.broken)
    if not components:
        raise InputError(
            file=root,
            found="no dataset",
            expected="a defs.yaml of the type rl_assets.DataToRollout",
            remedy="`rl-assets init PATH` writes one.",
        )
    loaded = (GraphDataset(one.spec, root) for one in components)
    return Datasets(sorted(loaded, key=lambda dataset: dataset.name), tree.broken)


def stores(dataset: GraphDataset) -> list[GraphDataset]:
    """The dataset as its parts are stored: bound to each partition that was ever built, or itself."""
    if dataset.spec.partition_by is None:
        return [dataset]
    folder = storage_root(dataset.root) / dataset.name
    keys = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.exists() else []
    return [dataset.at(key) for key in keys if not key.startswith(".")]
