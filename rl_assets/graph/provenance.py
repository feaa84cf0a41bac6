"""Which code made an asset: this package's sources, the libraries they compute with, the project's commit."""

import functools
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rl_assets.base.digests import digest_bytes, digest_json

_PACKAGE = Path(__file__).parent.parent
_LIBRARIES = ("datasets", "math-verify", "pyarrow", "tokenizers", "torch", "transformers")


@functools.cache
def code_digest() -> str:
    """Digest of this package's Python files and of the versions of the libraries that decide what it makes.

    Changes with every edit, so that what an older version made is not taken for what this one would make.
    Files under `defs`, the user's room, do not count.
    """
    files = {path.relative_to(_PACKAGE).as_posix(): path for path in _PACKAGE.rglob("*.py")}
    sources = {
        name: digest_bytes(path.read_bytes())
        for name, path in sorted(files.items())
        if not name.startswith("defs/")
    }
    return digest_json({"sources": sources, "libraries": {name: _version(name) for name in _LIBRARIES}})


def package_version() -> str:
    """Version of this package and the first digits of `code_digest`, such as `0.1.0 (1f0c9a2b)`."""
    return f"{_version('rl-assets')} ({code_digest()[:8]})"


@functools.cache
def git_commit(root: Path) -> str | None:
    """Commit of the checkout in which the folder `root` lies, with `-dirty` where tracked files differ.

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
