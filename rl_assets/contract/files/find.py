"""From what a user wrote under `train_files` and `val_files` to paths of raw files; no row is read."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

from upath import UPath

from rl_assets.base.files import is_url
from rl_assets.contract.files import hub
from rl_assets.contract.files.manifest import Split, begins_as_parquet, format_of
from rl_assets.errors import InputError

Name = TypeVar("Name", str, Path)

EXPECTED = "a file ending in .parquet, .json or .jsonl (each may be compressed: .gz, .zst)"

# What `datasets` and the hub write beside the rows.
_BOOKKEEPING = frozenset({"dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json"})
_IMAGES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
_MEDIA = _IMAGES | {".flac", ".m4a", ".mkv", ".mov", ".mp3", ".mp4", ".ogg", ".wav", ".webm"}
_NAMED = 5


class Found(NamedTuple):
    """What a dataset's settings mean.

    Attributes:
        files: split and manifest path of every raw file, in the order of a manifest.
        passed_over: what else is in the folders that were named, in words, such as `data/x/notes.csv` or
            `260 files ending in .png`.
    """

    files: list[tuple[Split, str]]
    passed_over: list[str]


def find_files(
    train_files: str | Sequence[str],
    val_files: str | Sequence[str] | None = None,
    *,
    root: Path,
    follow_links: bool = False,
) -> Found:
    """The raw files, in folders those that have a raw file's suffix or begin as a parquet file does.

    Takes what `scan_files` takes.

    Raises:
        InputError: a glob or folder holds no raw file, or a link leads out.
    """
    wanted: tuple[tuple[Split, str | Sequence[str] | None], ...] = (
        ("train", train_files),
        ("val", val_files),
    )
    found: list[tuple[Split, str]] = []
    others: set[str] = set()
    for split, entries in wanted:
        listed = [entries] if isinstance(entries, str) else list(entries or ())
        search = _Search(root, f"data.{split}_files", follow_links)
        paths = {path for entry in listed for path in search.expand(entry)}
        found += [(split, path) for path in sorted(paths)]
        others |= search.passed_over
    return Found(found, _in_words(others - {path for _, path in found}))


def leads_out(path: Path, top: Path) -> bool:
    """Whether `path` is reached through a link that leads out of the folder `top`."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(top))


class _Search:
    """One pass over the entries of a setting; `passed_over` are the names of what was not taken."""

    def __init__(self, root: Path, setting: str, follow_links: bool) -> None:
        self._root = Path(os.path.abspath(root))
        self._setting = setting
        self._follow = follow_links
        self.passed_over: set[str] = set()

    def expand(self, entry: str) -> Iterator[str]:
        """Manifest paths of the files that one entry means."""
        if is_url(entry) and not entry.startswith(hub.SCHEME):
            yield from self._expand_url(entry)
            return
        for path in self._local(entry):
            if isinstance(path, str):
                yield path
                continue
            self._require_within(path, self._top(entry))
            yield self._name(path)

    def _local(self, entry: str) -> Iterator[Path | str]:
        if entry.startswith(hub.SCHEME):
            for found in hub.hub_files(entry, self._root, self._setting):
                yield found if is_url(found) else Path(found)
            return
        path = self._root / os.path.expanduser(entry)
        if path.is_dir():
            self._require_within(path, self._top(entry))
            yield from self._require(self._inside(path), entry)
        elif glob.has_magic(entry) and not path.exists():
            yield from self._require(self._matched(glob.glob(str(path), recursive=True)), entry)
        else:
            yield path

    def _top(self, entry: str) -> Path:
        """What links may not lead out of: the project, or the folder of an entry that is outside of it."""
        path = Path(os.path.abspath(self._root / os.path.expanduser(entry.removeprefix(hub.SCHEME))))
        if path.is_relative_to(self._root):
            return self._root
        while glob.has_magic(str(path)) and not path.exists():
            path = path.parent
        return path if path.is_dir() else path.parent

    def _require_within(self, path: Path, top: Path) -> None:
        if not self._follow and leads_out(path, top):
            raise InputError(
                file=self._name(path),
                field=self._setting,
                found=f"a link that leads to {os.path.realpath(path)}",
                expected=f"a file below {os.path.realpath(top)}",
                remedy="Set `data.follow_links: true` if it shall be read and kept, or copy the file.",
            )

    def _inside(self, folder: Path) -> Iterator[Path]:
        """The raw files below `folder`; links that lead nowhere too, to be refused by name."""
        seen: set[str] = set()
        for here, folders, names in os.walk(folder, followlinks=self._follow):
            real = os.path.realpath(here)
            if real in seen:  # a link to a folder above it
                folders.clear()
                continue
            seen.add(real)
            for name in list(folders):
                linked = not self._follow and os.path.islink(os.path.join(here, name))
                if linked or name.startswith((".", "_")):
                    folders.remove(name)
                    self.passed_over.add(self._name(Path(here, name)) + "/")
            for name in names:
                path = Path(here, name)
                if _is_taken(path):
                    yield path
                else:
                    self.passed_over.add(self._name(path))

    def _matched(self, found: Iterable[str]) -> Iterator[Path]:
        """What a glob matched. Of a folder that is named like a file, as Spark writes it, what is inside."""
        for path in map(Path, found):
            if path.is_dir():
                yield from self._inside(path) if format_of(path.name) else ()
            elif path.name in _BOOKKEEPING:
                self.passed_over.add(self._name(path))
            else:
                yield path

    def _expand_url(self, entry: str) -> Iterator[str]:
        url = UPath(entry)
        if glob.has_magic(entry):
            base, pattern = url.fs, url.path
            yield from self._require((base.unstrip_protocol(path) for path in base.glob(pattern)), entry)
        elif url.is_dir():
            inside = [path for path in url.rglob("*") if path.is_file()]
            taken = [path for path in inside if format_of(path.name) and path.name not in _BOOKKEEPING]
            self.passed_over |= {str(path) for path in inside if path not in taken}
            yield from self._require(map(str, taken), entry)
        else:
            yield entry

    def _require(self, paths: Iterable[Name], entry: str) -> list[Name]:
        found = list(paths)
        if not found:
            others = ", ".join(_in_words(self.passed_over))
            raise InputError(
                file=entry,
                field=self._setting,
                found=f"no raw file, only {others}" if others else "no file",
                expected=EXPECTED,
                remedy="Check the spelling; relative paths start at the project's top folder.",
            )
        return found

    def _name(self, path: Path) -> str:
        absolute = Path(os.path.abspath(path))
        inside = absolute.is_relative_to(self._root)
        return (absolute.relative_to(self._root) if inside else absolute).as_posix()


def _is_taken(path: Path) -> bool:
    if path.name in _BOOKKEEPING or path.name.startswith((".", "_")):
        return False
    if format_of(path.name):
        return True
    return path.suffix.lower() not in _MEDIA and begins_as_parquet(path)


def _in_words(paths: Iterable[str]) -> list[str]:
    """Names, or how many end alike where they are many."""
    by_suffix: dict[str, list[str]] = {}
    for path in sorted(paths):
        by_suffix.setdefault(PurePosixPath(path).suffix.lower() or path, []).append(path)
    words: list[str] = []
    for suffix, names in by_suffix.items():
        words += names if len(names) <= _NAMED else [f"{len(names):,} files ending in {suffix}"]
    return words
