"""Where a policy's files lie and what they are: a changed checkpoint has a changed fingerprint."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from rl_assets.errors import InputError, first_line
from rl_assets.store import digest_file, digest_json

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
    of an unchanged file (same path, inode, size and modification time) are read once per process.

    Raises:
        InputError: the folder is missing, or holds no config.json or no weights.
    """
    return digest_json(file_digests(policy_files(policy_folder(path))))


def policy_files(folder: Path) -> dict[str, Path]:
    """The files that make up a policy, by name within its folder: settings, tokenizer, weights.

    Raises:
        InputError: the folder holds no config.json or no weights.
    """
    files = _files(folder, _SETTINGS)
    if folder / "config.json" not in files:
        raise InputError(
            file=folder,
            found="no config.json",
            expected="a checkpoint as transformers saves it",
            remedy="Save the policy with `model.save_pretrained` and `tokenizer.save_pretrained`.",
        )
    weights = _files(folder, _WEIGHTS)
    if not any(file.suffix == ".safetensors" for file in weights):
        weights = _files(folder, _OLD_WEIGHTS)
    if not weights:
        raise InputError(
            file=folder,
            found="no weights",
            expected="*.safetensors (or pytorch_model*.bin)",
            remedy="Save the policy with `model.save_pretrained`; a download may have been cut short.",
        )
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
    stat = file.stat()
    return _digest_as_of(file.resolve(), stat.st_ino, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _digest_as_of(file: Path, inode: int, size: int, mtime_ns: int) -> str:
    return digest_file(file)


def brief(error: Exception) -> str:
    """The first line of an error's message, cut to a readable length."""
    return first_line(error)[:300]
