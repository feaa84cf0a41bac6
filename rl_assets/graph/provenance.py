"""Which code made an asset: the sources that its step uses, the libraries they compute with, the commit."""

import functools
import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rl_assets.base.digests import digest_bytes, digest_json

_PACKAGE = Path(__file__).parent.parent
_LIBRARIES = ("datasets", "math-verify", "pyarrow", "tokenizers", "torch", "transformers")
_SETTINGS = ("rl_assets.dataset.dataset", "rl_assets.graph.dataset")
"""They hand the YAML's settings to every step. What they import for other steps does not count."""
_OUTER = re.compile(r"rl_assets\.(graph|cli|definitions)\b")
_FOR_TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:(?: {4}.*)?\n)+", re.MULTILINE)
_IMPORT = re.compile(r"^ *(?:from (rl_assets\S*) import (\([^)]*\)|.+)|import (rl_assets\S*))", re.MULTILINE)


@functools.cache
def code_digest(module: str) -> str:
    """Digest of the code with which `module` makes what it makes.

    It covers the module, what it imports of the inner rooms and of its own package (late imports too), and
    the versions of the libraries that decide a result. An edit of any of these files changes it, so that
    what an older version made is not taken for what this one would make. Other modules of `graph` and `cli`
    do not count: they hand data on and show it.

    Args:
        module: such as `rl_assets.graph.assets.rollouts`.
    """
    sources = {name: digest_bytes(_source(name).encode()) for name in sorted(_used(module))}
    return digest_json({"sources": sources, "libraries": {name: _version(name) for name in _LIBRARIES}})


def _used(module: str) -> set[str]:
    """The module, those it reaches by imports, and those that hand it its settings."""
    package = module if _path(module).name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [
                used
                for used in imported(name)
                if used not in _SETTINGS and (not _OUTER.match(used) or used.startswith(f"{package}."))
            ]
    return found | set(_SETTINGS)


@functools.cache
def imported(module: str) -> frozenset[str]:
    """The modules of this package that a module imports, late imports included, those for types not."""
    return frozenset(_imported(_FOR_TYPES.sub("", _source(module))))


def _imported(source: str) -> Iterator[str]:
    for origin, names, whole in _IMPORT.findall(source):
        yield origin or whole
        for name in re.findall(r"\w+", names):
            if _path(inner := f"{origin}.{name}").is_file():
                yield inner


@functools.cache
def _source(module: str) -> str:
    return _path(module).read_text(encoding="utf-8")


def _path(module: str) -> Path:
    place = _PACKAGE.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def package_version(module: str) -> str:
    """Version of this package and the first digits of `code_digest`, such as `0.1.0 (1f0c9a2b)`."""
    return f"{_version('rl-assets')} ({code_digest(module)[:8]})"


@functools.cache
def git_commit(root: Path) -> str | None:
    """Commit of the checkout that holds the folder `root`, with `-dirty` where tracked files differ.

    None where `root` is in no checkout, where it has no commit yet, or where there is no git.
    """
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"
