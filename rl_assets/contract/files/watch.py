"""Whether raw files changed, at the price of a stat: bytes are read only where size or time differ."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from stat import S_ISREG

from pydantic import BaseModel, ConfigDict

from rl_assets.base.digests import digest_stream
from rl_assets.base.files import is_url
from rl_assets.contract.files.find import find_files
from rl_assets.contract.files.hub import SCHEME
from rl_assets.contract.files.manifest import Split, content_digest, locate, open_raw
from rl_assets.errors import InputError, first_line


class SeenFile(BaseModel):
    """One raw file as it was when it was last looked at.

    Attributes:
        path, split: as in the manifest.
        bytes: size on disk.
        modified: modification time in nanoseconds since 1970; 0 where the file system keeps none.
        digest: BLAKE2b of the bytes, or None while the file may still be being written.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    split: Split
    bytes: int
    modified: int
    digest: str | None


class Sighting(BaseModel):
    """All raw files of a dataset as they were when they were last looked at."""

    model_config = ConfigDict(frozen=True)

    files: list[SeenFile] = []

    @property
    def unsettled(self) -> list[str]:
        """Paths of files that were new or other than the time before."""
        return [file.path for file in self.files if file.digest is None]

    @property
    def digest(self) -> str:
        """The `RawManifest.digest` of these files."""
        return content_digest((file.path, file.split, file.digest or "") for file in self.files)

    def __str__(self) -> str:
        return f"{len(self.files)} files of {sum(file.bytes for file in self.files):,} bytes"


def look(
    train_files: Sequence[str],
    val_files: Sequence[str],
    *,
    root: Path,
    before: Sighting,
    follow_links: bool = False,
) -> Sighting:
    """Look at the raw files again.

    A file whose size or time is not what it was `before` gets no digest yet: somebody may be writing it. The
    next look, if it finds the file unchanged, reads it and gives it one. Hub datasets are pinned by their
    revision and are not looked at.

    Args:
        train_files, val_files: as in `scan_files`.
        root: folder of the project or dataset.
        before: what the last look returned, or an empty one.
        follow_links: as in `scan_files`.

    Raises:
        InputError: a pattern matches nothing, or a file is not there, cannot be read, or is no regular one.
    """
    known = {(file.split, file.path): file for file in before.files}
    found = find_files(
        _without_hub(train_files), _without_hub(val_files), root=root, follow_links=follow_links
    )
    return Sighting(files=[_look(path, split, root, known.get((split, path))) for split, path in found.files])


def _without_hub(entries: Iterable[str]) -> list[str]:
    return [entry for entry in entries if not entry.startswith(SCHEME)]


def _look(path: str, split: Split, root: Path, before: SeenFile | None) -> SeenFile:
    place = locate(path, root)
    try:
        stat = place.stat()
        if not is_url(path) and not S_ISREG(stat.st_mode):
            open_raw(path, root).close()  # says what it is
        now = SeenFile(
            path=path,
            split=split,
            bytes=stat.st_size,
            modified=getattr(stat, "st_mtime_ns", 0),
            digest=None,
        )
        if before is None or before.model_copy(update={"digest": None}) != now:
            return now
        return before if before.digest else now.model_copy(update={"digest": _digest(path, root)})
    except FileNotFoundError:
        raise InputError(
            file=path,
            field=f"data.{split}_files",
            found="no file of this name",
            remedy="Put it back, or take it out of the list.",
        ) from None
    except OSError as error:
        raise InputError(
            file=path,
            field=f"data.{split}_files",
            found=f"a file that cannot be read ({first_line(error)})",
            remedy="Make it a regular file that this process may read, or take it out of the list.",
        ) from error


def _digest(path: str, root: Path) -> str:
    with open_raw(path, root) as stream:
        return digest_stream(stream)
