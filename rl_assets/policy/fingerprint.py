"""Where a policy's files lie and what they are: a changed checkpoint has a changed fingerprint."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rl_assets.base.digests import digest_file, digest_json
from rl_assets.errors import InputError, first_line
from rl_assets.policy.not_whole import refuse_adapter, refuse_missing_weights, without

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

# What transformers reads of a checkpoint folder. Optimizer states, logs and notes beside it do not count.
_RENDERING = (
    "config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "additional_chat_templates/*",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "*.py",
)
_SETTINGS = (*_RENDERING, "generation_config.json")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_OLD_WEIGHTS = ("pytorch_model*.bin", "pytorch_model.bin.index.json")


def policy_folder(path: str | Path) -> Path:
    """The local folder of a policy, given as a folder or as a hub id (``org/name``).

    A hub id resolves through `huggingface_hub`'s snapshot: downloaded where that is allowed, taken from
    its cache otherwise.

    Raises:
        InputError: no such folder, and no hub id that can be fetched.
    """
    folder = Path(path)
    if folder.is_dir():
        return folder
    if not _HUB_ID.fullmatch(str(path)):
        raise InputError(
            file=folder,
            field="policy.path",
            found="no such folder" if not folder.exists() else "a file",
            expected="a folder with config.json, weights and tokenizer, or a hub id such as `org/name`",
            remedy="Correct the policy's path.",
        )
    # Lazy: resolving a local folder needs no hub client.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = [*_SETTINGS, *_WEIGHTS]
    try:
        return Path(snapshot_download(str(path), allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise InputError(
            file=str(path),
            found=f"neither a local folder nor a hub repository that can be fetched ({brief(error)})",
            remedy="Correct the path, or check the network and the access token (HF_TOKEN).",
        ) from error


def policy_fingerprint(path: str | Path) -> str:
    """Digest (32 hex digits) of a policy's config, weights, tokenizer and template files.

    It depends on the files' names within the folder and their bytes, not on where the folder lies. Bytes
    of an unchanged file (same path, inode, size and times) are read once per process.

    Raises:
        InputError: the folder is missing, or holds no config.json or no weights.
    """
    return PolicyFiles.read(policy_folder(path)).fingerprint


_Mark = tuple[int, int, int, int] | None


@dataclass(eq=False)
class PolicyFiles:
    """A policy's files as they were when they were digested.

    Attributes:
        folder: where they are.
        fingerprint: their digest, see `policy_fingerprint`.
        marks: by file, what changes when it is written or replaced: inode, size, and times.
    """

    folder: Path
    fingerprint: str
    marks: dict[Path, _Mark]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Digest the files.

        Raises:
            InputError: the folder holds no config.json or no weights, or a file changes meanwhile.
        """
        files = policy_files(folder)
        marks = {file: _mark(file) for file in files.values()}
        made = cls(folder, digest_json(file_digests(files)), marks)
        if made.marks != {file: _mark(file) for file in marks}:
            raise made.changed("while it was read")
        return made

    def require_untouched(self) -> None:
        """Refuse files of which one was added, replaced or written to since.

        Raises:
            InputError: it was, be it with the same bytes.
        """
        if self.marks != {file: _mark(file) for file in policy_files(self.folder).values()}:
            raise self.changed("while it was loaded")

    def require_same(self) -> None:
        """Refuse files that hold something else now. They are read again only where one was touched.

        Raises:
            InputError: they do, or one is gone.
        """
        if all(_mark(file) == mark for file, mark in self.marks.items()):
            return
        now = PolicyFiles.read(self.folder)
        if now.fingerprint != self.fingerprint:
            raise self.changed("while it answered")
        self.marks = now.marks

    def changed(self, when: str) -> InputError:
        """The policy is not the one that it was."""
        return InputError(
            file=self.folder,
            field="policy.path",
            found=f"files that changed {when}",
            expected=f"the policy of fingerprint {self.fingerprint} from the beginning of a run to its end",
            remedy="Run again when nothing writes there; give each checkpoint a folder of its own.",
        )


def other_policy(path: Path | str, found: str, expected: str | None) -> InputError:
    """The policy at `path` is another than the one that a run was begun for."""
    return InputError(
        file=str(path),
        field="policy.path",
        found=f"a policy of fingerprint {found}",
        expected=f"{expected}, which the run was begun with",
        remedy="It was replaced meanwhile: run the job again, which looks at the policy first.",
    )


def _mark(file: Path) -> _Mark:
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def policy_files(folder: Path) -> dict[str, Path]:
    """The files that make up a policy, by name within its folder: settings, tokenizer, weights.

    Raises:
        InputError: the folder holds no config.json or no weights, or is an adapter or a part of a checkpoint;
            the message says which.
    """
    refuse_adapter(folder)
    files = _files(folder, _SETTINGS)
    if folder / "config.json" not in files:
        raise without(folder, "no config.json")
    weights = _files(folder, _WEIGHTS)
    if not any(file.suffix == ".safetensors" for file in weights):
        weights = _files(folder, _OLD_WEIGHTS)
    if not any(file.suffix != ".json" for file in weights):
        raise without(folder, "no weights")
    refuse_missing_weights(folder, weights)
    return {file.relative_to(folder).as_posix(): file for file in sorted(files | weights)}


def rendering_files(folder: Path) -> dict[str, Path]:
    """The files of a policy's folder that decide how a prompt is rendered and a response is read: tokenizer,
    chat template, processor, and config.json, which names their classes."""
    return {file.relative_to(folder).as_posix(): file for file in sorted(_files(folder, _RENDERING))}


def file_digests(files: Mapping[str, Path]) -> dict[str, str]:
    """Digest of each file's bytes, by name."""
    return {name: _digest(file) for name, file in files.items()}


def _files(folder: Path, patterns: tuple[str, ...]) -> set[Path]:
    return {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}


def _digest(file: Path) -> str:
    return _digest_as_of(file.resolve(), _mark(file))


@functools.lru_cache(maxsize=1024)
def _digest_as_of(file: Path, mark: _Mark) -> str:
    return digest_file(file)


def brief(error: Exception) -> str:
    """The first line of an error's message, cut to a readable length."""
    return first_line(error)[:300]
