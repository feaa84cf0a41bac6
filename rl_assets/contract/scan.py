"""From what a user wrote under `train_files` and `val_files` to a manifest of raw files."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import pyarrow as pa
from upath import UPath

from rl_assets.contract import hub
from rl_assets.contract.files import RawFile, RawManifest, Split, format_of, is_url, open_raw
from rl_assets.contract.reading import count_rows
from rl_assets.errors import InputError, first_line
from rl_assets.store import digest_stream

_EXPECTED = "a file ending in .parquet, .json or .jsonl (each may be compressed: .gz, .zst)"


def scan_files(
    train_files: str | Sequence[str], val_files: str | Sequence[str] | None = None, *, root: Path
) -> RawManifest:
    """Find, digest and count the raw files.

    Args:
        train_files, val_files: one or several of: a path, a glob (`**` too), a folder (every raw file below
            it), an fsspec URL, a hub dataset (``hub://owner/name@revision#split``). Local ones are relative
            to `root`; `~` is the home folder. A file that is named twice for a split counts once.
        root: folder of the project or dataset.

    Raises:
        InputError: a file is missing or cannot be read, a glob or folder holds no raw file, a suffix is
            unknown, a parquet file has no valid footer, or there is no row at all.
    """
    found = find_files(train_files, val_files, root=root)
    files = [_scan(path, split, root, f"data.{split}_files") for split, path in found]
    manifest = RawManifest(files=files)
    if not manifest.rows:
        raise InputError(
            file=", ".join(file.path for file in files[:5]) or None,
            field="data.train_files",
            found=f"no row in {len(files)} files" if files else "no file",
            expected="at least one row",
            remedy="Name the files that hold the prompts.",
        )
    return manifest


def find_files(
    train_files: str | Sequence[str], val_files: str | Sequence[str] | None = None, *, root: Path
) -> list[tuple[Split, str]]:
    """Split and manifest path of every raw file, in the order of a manifest; none is opened.

    Takes what `scan_files` takes.

    Raises:
        InputError: a glob or folder holds no raw file.
    """
    wanted: tuple[tuple[Split, str | Sequence[str] | None], ...] = (
        ("train", train_files),
        ("val", val_files),
    )
    found: list[tuple[Split, str]] = []
    for split, entries in wanted:
        listed = [entries] if isinstance(entries, str) else list(entries or ())
        paths = {path for entry in listed for path in _expand(entry, root, f"data.{split}_files")}
        found += [(split, path) for path in sorted(paths)]
    return found


def _expand(entry: str, root: Path, setting: str) -> Iterator[str]:
    """Manifest paths of the files that one entry means."""
    if entry.startswith(hub.SCHEME):
        yield from (
            path if is_url(path) else _name(Path(path), root) for path in hub.hub_files(entry, root, setting)
        )
        return
    if is_url(entry):
        yield from _expand_url(entry, setting)
        return
    path = root / os.path.expanduser(entry)
    if path.is_dir():
        yield from _require((_name(p, root) for p in _inside(path)), entry, setting)
    elif glob.has_magic(entry) and not path.exists():
        found = (Path(p) for p in glob.glob(str(path), recursive=True))
        files = (file for p in found for file in (_matched_folder(p) if p.is_dir() else (p,)))
        yield from _require((_name(p, root) for p in files), entry, setting)
    else:
        yield _name(path, root)


def _expand_url(entry: str, setting: str) -> Iterator[str]:
    url = UPath(entry)
    if glob.has_magic(entry):
        base, pattern = url.fs, url.path
        found: Iterable[str] = (base.unstrip_protocol(path) for path in base.glob(pattern))
        yield from _require(found, entry, setting)
    elif url.is_dir():
        inside = (str(path) for path in url.rglob("*") if path.is_file() and format_of(path.name))
        yield from _require(inside, entry, setting)
    else:
        yield entry


def _inside(folder: Path) -> Iterator[Path]:
    """What bears a raw file's suffix below `folder`; links that lead nowhere too, to be refused by name."""
    for path in folder.rglob("*"):
        if format_of(path.name) and not path.is_dir() and not _is_hidden(path, folder):
            yield path


def _matched_folder(folder: Path) -> Iterator[Path]:
    """The raw files of a folder that a glob matched: of one that is named like a file, as Spark writes it."""
    return _inside(folder) if format_of(folder.name) else iter(())


def _is_hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)


def _require(paths: Iterable[str], entry: str, setting: str) -> list[str]:
    found = list(paths)
    if not found:
        raise InputError(
            file=entry,
            field=setting,
            found="no file",
            expected=_EXPECTED,
            remedy="Check the spelling; relative paths start at the project's top folder.",
        )
    return found


def _name(path: Path, root: Path) -> str:
    absolute, top = Path(os.path.abspath(path)), Path(os.path.abspath(root))
    return absolute.relative_to(top).as_posix() if absolute.is_relative_to(top) else absolute.as_posix()


def _scan(path: str, split: Split, root: Path, setting: str) -> RawFile:
    kind = format_of(path)
    if not path.isprintable():
        raise InputError(
            file=repr(path),
            field=setting,
            found="a name with characters that cannot be shown",
            remedy="Rename the file.",
        )
    try:
        with open_raw(path, root) as stream:
            if kind is None:
                raise _unknown_suffix(path, setting)
            digest = digest_stream(stream)
            size = stream.tell()
        rows = count_rows(path, kind, root)
    except FileNotFoundError:
        raise InputError(
            file=path,
            field=setting,
            found="no file of this name",
            remedy="Check the spelling; relative paths start at the project's top folder.",
        ) from None
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            file=path,
            field=setting,
            found=f"a file that cannot be read ({first_line(error).rstrip('.')})",
            expected=f"a {kind} file",
            remedy="Write the file again from its source, or remove it from the list.",
        ) from error
    return RawFile(path=path, split=split, format=kind, bytes=size, digest=digest, rows=rows)


def _unknown_suffix(path: str, setting: str) -> InputError:
    suffix = PurePosixPath(path).suffix
    return InputError(
        file=path,
        field=setting,
        found=f"the suffix {suffix!r}" if suffix else "a name without a suffix",
        expected=_EXPECTED,
        remedy="Convert the file, or narrow the glob so that it leaves the file out.",
    )
