"""From what a user wrote under `train_files` and `val_files` to a manifest of raw files."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pyarrow as pa

from rl_assets.base.digests import digest_stream
from rl_assets.contract.files.find import EXPECTED, find_files
from rl_assets.contract.files.manifest import (
    PARQUET,
    RawFile,
    RawManifest,
    Split,
    format_of,
    named_for_validation,
    open_raw,
)
from rl_assets.contract.files.reading import count_rows
from rl_assets.errors import InputError, first_line


def scan_files(
    train_files: str | Sequence[str],
    val_files: str | Sequence[str] | None = None,
    *,
    root: Path,
    follow_links: bool = False,
) -> RawManifest:
    """Find, digest and count the raw files.

    Args:
        train_files, val_files: one or several of: a path, a glob (`**` too), a folder (every raw file below
            it), an fsspec URL, a hub dataset (``hub://owner/name@revision#split``). Local ones are relative
            to `root`; `~` is the home folder. A file that is named twice for a split counts once.
        root: folder of the project or dataset.
        follow_links: True reads files to which a link leads out of `root`, or out of the folder that an
            entry outside of `root` names.

    Raises:
        InputError: a file is missing or cannot be read, a glob or folder holds no raw file, a suffix is
            unknown, a link leads out, a parquet file has no valid footer, or there is no row at all.
    """
    found, passed_over = find_files(train_files, val_files, root=root, follow_links=follow_links)
    files = [_scan(path, split, root, f"data.{split}_files") for split, path in found]
    listed = {train_files} if isinstance(train_files, str) else set(train_files)
    doubtful = [path for split, path in found if split == "train" and named_for_validation(path)]
    manifest = RawManifest(
        files=files,
        passed_over=passed_over,
        named_for_validation=[path for path in doubtful if path not in listed],
    )
    if not manifest.rows:
        raise InputError(
            file=", ".join(file.path for file in files[:5]) or None,
            field="data.train_files",
            found=f"no row in {len(files)} files" if files else "no file",
            expected="at least one row",
            remedy="Name the files that hold the prompts.",
        )
    return manifest


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
            if stream.read(len(PARQUET)) == PARQUET:
                kind = "parquet"
            stream.seek(0)
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
        expected=EXPECTED,
        remedy="Convert the file, or narrow the glob so that it leaves the file out.",
    )
