"""The project's definitions, loaded so that a broken YAML costs its own dataset only.

Dagster gives up a whole project at the first YAML that does not load. Here every file is tried by itself; in
place of a broken dataset there is an asset `broken_yaml/<folder>` and a job that say what is wrong, and
`dg check defs` fails.
"""

import logging
import os
import re
from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import yaml
from dagster.components.core.component_tree import ComponentTree
from dagster.components.core.context import ComponentDeclLoadContext, ComponentLoadContext
from dagster.components.core.decl import (
    ComponentDecl,
    DefsFolderDecl,
    YamlDecl,
    build_filesystem_component_decl_from_context,
)
from dagster.components.core.defs_module import (
    EXPLICITLY_IGNORED_GLOB_PATTERNS,
    ComponentPath,
    find_defs_or_component_yaml,
)
from pydantic import ValidationError

from rl_assets.errors import InputError, first_line
from rl_assets.graph.component import DataToRollout

_CHECKING = "DAGSTER_IS_DEFS_VALIDATION_CLI"  # `dg check defs` sets it
_DATASET = re.compile(r"^\s+dataset:\s*[\"']?([A-Za-z0-9_]+)[\"']?\s*(?:#.*)?$", re.MULTILINE)
_LOG = logging.getLogger("rl_assets")


class Broken(NamedTuple):
    """A defs.yaml that does not load.

    Attributes:
        file: its path from the project's top folder.
        datasets: the names that it gives its datasets, as far as they can be read.
        error: what is wrong.
    """

    file: Path
    datasets: tuple[str, ...]
    error: InputError


class _File(NamedTuple):
    """A defs.yaml that loads, and the folder of declarations that it is in."""

    file: Path
    folder: dict[Path, ComponentDecl[Any]]


class ProjectTree(ComponentTree):
    """Dagster's tree of a project's components, without the files that do not load."""

    @cached_property
    def broken(self) -> list[Broken]:
        """What does not load; the tree is built for it."""
        self._get_filesystem_decl()
        return self._broken

    def datasets(self) -> list[DataToRollout]:
        """The components that load."""
        return self.get_all_components(of_type=DataToRollout)

    @cached_property
    def _broken(self) -> list[Broken]:
        return []

    @cached_property
    def _named(self) -> dict[str, list[_File]]:
        """The files of each dataset's name."""
        return defaultdict(list)

    def _get_filesystem_decl(self) -> ComponentDecl[Any]:
        place = ComponentPath.from_path(self.defs_module_path)
        found = self.state_tracker.get_cache_data(place).component_decl
        if found is None:
            found = self._folder(self.decl_load_context.for_component_loc(place))
            self._refuse_copies()
            self.state_tracker.set_cache_data(place, component_decl=found)
        return found

    def _folder(self, context: ComponentDeclLoadContext) -> DefsFolderDecl:
        children: dict[Path, ComponentDecl[Any]] = {}
        for path in sorted(context.path.iterdir()):
            if any(path.relative_to(context.path).match(one) for one in EXPLICITLY_IGNORED_GLOB_PATTERNS):
                continue
            inner = context.for_component_loc(ComponentPath.from_path(path))
            decl: ComponentDecl[Any] | None
            if file := find_defs_or_component_yaml(path):
                decl = self._file(file, inner, children)
            elif path.is_dir():
                folder = self._folder(inner)
                decl = folder if folder.children else None
            else:
                decl = build_filesystem_component_decl_from_context(inner)
            if decl is not None:
                children[path] = decl
        return DefsFolderDecl(
            context=context,
            loc=ComponentPath.from_path(context.path),
            children=children,
            source_tree=None,
            component_file_model=None,
        )

    def _file(
        self, file: Path, context: ComponentDeclLoadContext, folder: dict[Path, ComponentDecl[Any]]
    ) -> ComponentDecl[Any] | None:
        """The declaration of a defs.yaml of which everything loads; None where something does not."""
        shown = file.relative_to(self.project_root)
        try:
            decl = build_filesystem_component_decl_from_context(context)
            ours = _ours(decl) if decl else []
            specs = [self._load(one) for one in ours]
        except Exception as error:  # Dagster and its parsers raise many kinds for a YAML that is no component
            text = _text(file)
            problem = error if isinstance(error, InputError) else _named(error, shown, text)
            self._broken.append(Broken(shown, tuple(_DATASET.findall(text)), problem))
            return None
        for name in specs:
            self._named[name].append(_File(shown, folder))
        return decl

    def _load(self, decl: YamlDecl) -> str:
        """Load one dataset whole, down to its definitions, which are kept; its name."""
        component = DataToRollout.of(decl)
        defs = component.build_defs(ComponentLoadContext.from_decl_load_context(decl.context, decl))
        decl.get_asset_post_processor_lists()
        self.state_tracker.set_cache_data(decl.loc, component_decl=decl, component=component, defs=defs)
        return component.spec.dataset

    def _refuse_copies(self) -> None:
        """Two files of one name: neither is loaded, since nobody can say which is meant."""
        for name, files in self._named.items():
            for one in files if len(files) > 1 else ():
                others = sorted({str(other.file) for other in files if other.file != one.file})
                error = InputError(
                    file=f"{one.file}{_line_of(self.project_root / one.file, name)}",
                    field="dataset",
                    found=f"{name}, which {' and '.join(others) or 'another document of it'} has too",
                    expected="a name that no other dataset has",
                    remedy="A copied YAML needs a `dataset` of its own; until then neither is loaded.",
                )
                if one.folder.pop(self.project_root / one.file.parent, None):
                    self._broken.append(Broken(one.file, (name,), error))


def load_project(place: Path) -> dg.Definitions:
    """Every dataset of the project in which `place` lies.

    A YAML that does not load is logged as an error and has a stand-in.

    Raises:
        InputError: the definitions are being checked (`dg check defs`), and a YAML does not load.
    """
    tree = ProjectTree.for_project(place)
    defs = tree.build_defs()
    if not tree.broken:
        return defs
    for one in tree.broken:
        _LOG.error(f"{one.error}")
    if os.environ.get(_CHECKING):
        raise together(tree.broken)
    loaded = {component.spec.dataset for component in tree.datasets()}
    return dg.Definitions.merge(defs, _stand_ins(tree.broken, loaded))


def together(broken: list[Broken]) -> InputError:
    """One error for all files that do not load."""
    lines = "\n".join(f"  {one.error}" for one in broken)
    return InputError(
        found=f"{len(broken)} defs.yaml that {'does' if len(broken) == 1 else 'do'} not load",
        remedy=f"The other datasets are not touched by it:\n{lines}",
    )


def _ours(decl: ComponentDecl[Any]) -> list[YamlDecl]:
    """The datasets among the documents of a file."""
    found = (one for one in decl.iterate_child_component_decls() if isinstance(one, YamlDecl))
    return [one for one in found if issubclass(one.component_type, DataToRollout)]


def _named(error: Exception, file: Path, text: str) -> InputError:
    """An error of Dagster's, or of its YAML parser, with the file and, where it is known, the line."""
    cause: BaseException = error
    while not isinstance(cause, (yaml.MarkedYAMLError, InputError)) and cause.__cause__:
        cause = cause.__cause__
    if isinstance(cause, InputError):
        return cause
    line, said = "", first_line(cause)
    if not text.strip():
        said = "it is empty"
    if isinstance(cause, yaml.MarkedYAMLError):
        mark = cause.problem_mark or cause.context_mark
        line = f":{mark.line + 1}" if mark else ""
        said = f"{cause.context or ''} {cause.problem or ''}".strip()
    if isinstance(cause, ValidationError):
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in cause.errors())
        said = said.replace(str(file.absolute()), file.name)
    return InputError(
        file=f"{file}{line}",
        found=f"a YAML that does not load ({said})",
        remedy="Correct it; `dg check yaml FOLDER` quotes the lines.",
    )


def _line_of(file: Path, name: str) -> str:
    """`:` and the number of the line that names a dataset; nothing where that is not plain to see."""
    text = _text(file)
    found = next((one.start(1) for one in _DATASET.finditer(text) if one.group(1) == name), None)
    return "" if found is None else f":{text.count(chr(10), 0, found) + 1}"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _stand_ins(broken: list[Broken], loaded: set[str]) -> dg.Definitions:
    """An asset for each file, which says why there is nothing else; and jobs of the usual names."""
    assets: list[dg.AssetsDefinition] = []
    jobs: dict[str, list[dg.AssetKey]] = defaultdict(list)
    for number, one in enumerate(broken):
        assets.append(_stand_in(one, number))
        for name in set(one.datasets) - loaded:
            jobs[f"{name}_rebuild"].append(assets[-1].key)
    return dg.Definitions(
        assets=assets,
        jobs=[
            dg.define_asset_job(name, selection=dg.AssetSelection.assets(*keys), description="Does not load.")
            for name, keys in jobs.items()
        ],
    )


def _stand_in(broken: Broken, number: int) -> dg.AssetsDefinition:
    said = f"**{broken.file} does not load, so what it describes is not here.**\n\n```\n{broken.error}\n```"
    folder = re.sub(r"\W+", "_", broken.file.parent.name, flags=re.ASCII)

    @dg.asset(
        name=f"{folder}_{number + 1}",
        key_prefix="broken_yaml",
        group_name="broken_yaml",
        kinds={"yaml"},
        description=said,
        metadata={"file": str(broken.file), "error": str(broken.error)},
    )
    def broken_yaml() -> None:
        raise dg.Failure(description=str(broken.error), allow_retries=False)

    return broken_yaml
