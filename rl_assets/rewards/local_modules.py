"""The Python files that a module imports from beside it, found without running any of them."""

import ast
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

_OURS = __name__.partition(".")[0]
_IMPORTERS = ("import_module", "__import__")


def local_modules(file: Path, name: str, path: Sequence[str]) -> dict[str, Path]:
    """The module itself and every local module that it imports, directly or by way of others.

    A module is local where it belongs to the same package, or is found in one of the folders `path` or in a
    folder of `sys.path` that holds neither the standard library nor installed packages. Imports are found by
    their syntax, wherever they are in a file; `importlib.import_module` too, where it is given a plain text.
    A module that is loaded in another way, and a file that is read, are not found.

    Args:
        file: of the module.
        name: of the module; its package is what stands before the last dot.
        path: folders that are looked in first.

    Returns:
        The files by the names of the modules.
    """
    search = [*path, *_local_path()]
    own = name.partition(".")[0]
    root = file.parents[name.count(".") + (file.name == "__init__.py")]
    found = {name: file}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        package = module if found[module].name == "__init__.py" else module.rpartition(".")[0]
        if module.partition(".")[0] == _OURS != own:
            continue  # a module of this project counts; what it imports is another matter
        for imported in _imported(found[module], package):
            places = [str(root)] if imported.partition(".")[0] == own else search
            for part, where in _located(imported, places):
                if part not in found:
                    found[part] = where
                    waiting.append(part)
    return dict(sorted(found.items()))


def uses_relative_imports(file: Path) -> bool:
    """Whether the file imports from its own package, and so cannot be loaded outside of it."""
    return any(name.startswith(".") for name in _names(file))


def imports_its_own_name(file: Path) -> bool:
    """Whether the file imports a module of its own name, which cannot be itself."""
    return any(name.partition(".")[0] == file.stem for name in _names(file))


def package_root(file: Path) -> Path:
    """The folder from which the package that holds the file is imported; its own where none holds it."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _local_path() -> list[str]:
    installed = {
        Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    folders = []
    for entry in sys.path:
        folder = Path(entry or ".").resolve()
        if folder.is_dir() and not any(folder.is_relative_to(place) for place in installed):
            folders.append(str(folder))
    return folders


def _imported(file: Path, package: str) -> Iterator[str]:
    """Names of all modules that a file may import, absolute; those of a `from` too, which may be modules."""
    for name in _names(file):
        level = len(name) - len(name.lstrip("."))
        if not level:
            yield name
        elif package:
            base = package.split(".")
            if level <= len(base):
                yield ".".join([*base[: len(base) - level + 1], *filter(None, [name[level:]])])


def _names(file: Path) -> tuple[str, ...]:
    stat = file.stat()
    return _parsed(str(file), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _parsed(file: str, _mtime: int, _size: int) -> tuple[str, ...]:
    """Names of imports as they are written, relative ones with their dots; none where it is no Python."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            if node.module:
                names[base] = None
            dot = "." if node.module else ""
            names.update(
                dict.fromkeys(f"{base}{dot}{alias.name}" for alias in node.names if alias.name != "*")
            )
            if not node.module:
                names[base] = None
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            first = node.args[0]
            if called in _IMPORTERS and isinstance(first, ast.Constant) and isinstance(first.value, str):
                names[first.value] = None
    return tuple(names)


def _located(name: str, search: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """The modules that are run to import `name`, packages first, with their files; none that is not local."""
    path: Sequence[str] | None = search
    dotted = ""
    for part in name.split("."):
        dotted = f"{dotted}.{part}" if dotted else part
        try:
            spec = PathFinder.find_spec(dotted, list(path or ()))
        except (ImportError, ValueError, OSError):
            return
        if spec is None:
            return
        if spec.origin and spec.has_location and spec.origin.endswith(".py"):
            yield dotted, Path(spec.origin)
        path = spec.submodule_search_locations
        if path is None:
            return
