"""A policy ready to generate: the model on its device, and the token ids that generation needs to know."""

import contextlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch

from rl_assets.base.progress import Log
from rl_assets.errors import InputError
from rl_assets.policy.checkpoint import load_tokenizer
from rl_assets.policy.fingerprint import PolicyFiles, brief, other_policy, policy_folder
from rl_assets.policy.vocabulary import Vocabulary, read_vocabulary
from rl_assets.rollout.attention import row_multiple, use_row_attention
from rl_assets.rollout.devices import device_lock, release_memory
from rl_assets.rollout.model import load_model

# Attributes of a config that name a placeholder which stands for media in a prompt.
_MEDIA_TOKENS = tuple(
    f"{modality}_token_{kind}" for modality in ("image", "video", "audio") for kind in ("id", "index")
)


@dataclass
class Policy:
    """A loaded policy. Close it (or use it as a context manager) to free its memory and its device.

    Attributes:
        model: a `transformers` model with a language-model head, in eval mode, on `device`.
        files: its files, as they were when it was loaded.
        device: where it computes.
        dtype: of its weights.
        vocabulary: what its token ids are.
        eos_token_ids: each of these ends a response.
        pad_token_id: fills rows up; may be one of the EOS ids.
        blocked_token_ids: never sampled: ids without a token, and tokens that stand for media or begin or
            end them.
        trust_remote_code: whether Python code in the folder may be run.
        placeholder_token_ids: those that stand for media in a prompt.
        mrope: whether positions have three rows (time, height, width), as in Qwen's VL models.
        row_multiple: a batch has a multiple of so many rows (see `rl_assets.rollout.attention`).
        verified: whether the decoding loop was checked against this policy's plain forward pass.
        plain: whether the two differ, so that tokens come from plain passes.
    """

    model: Any
    files: PolicyFiles
    device: torch.device
    dtype: torch.dtype
    vocabulary: Vocabulary
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    blocked_token_ids: tuple[int, ...] = ()
    trust_remote_code: bool = False
    placeholder_token_ids: tuple[int, ...] = ()
    mrope: bool = False
    row_multiple: int = 1
    verified: bool = False
    plain: bool = False
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.files.folder

    @property
    def fingerprint(self) -> str:
        """Digest of its files, see `policy_fingerprint`."""
        return self.files.fingerprint

    @cached_property
    def tokenizer(self) -> Any:
        """The policy's tokenizer, loaded on first use.

        Raises:
            InputError: the folder holds none that loads.
        """
        return load_tokenizer(self.folder, trust_remote_code=self.trust_remote_code)

    @property
    def text_config(self) -> Any:
        """The config of the language model, also within a vision-language model."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def vocab_size(self) -> int:
        """How many token ids the model knows."""
        return self.text_config.vocab_size

    def close(self) -> None:
        """Let go of the model and of its device's lock."""
        self.model = None
        release_memory(self.device)
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_policy(
    path: str | Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    attn_implementation: str = "auto",
    trust_remote_code: bool = False,
    vocabulary: Vocabulary | None = None,
    fingerprint: str | None = None,
    log: Log | None = None,
) -> Policy:
    """Load a policy for generation.

    On a CUDA device it waits until no other process holds the device (see `device_lock`), and holds it
    until the policy is closed.

    Args:
        path: a local folder, or a hub id.
        device: ``auto`` (CUDA where there is one, else CPU) or a torch device such as ``cuda:1``.
        dtype: ``auto`` (bfloat16 on CUDA, float32 on CPU) or the name of a torch dtype.
        attn_implementation: ``auto`` (``sdpa`` where the model has it, else ``eager``; on a CPU, ``sdpa``
            row by row), or another that transformers has. What it computes is checked on the first response.
        trust_remote_code: whether Python code in the folder may be run.
        vocabulary: what its token ids are; None reads it from the folder.
        fingerprint: the policy that is wanted; None takes whatever is there.
        log: told when it waits for a device.

    Raises:
        InputError: anything that is wrong with the folder, its files, or a setting; it is not the policy that
            is wanted, or its files change while they are loaded.
    """
    where = _device(device)
    precision = _dtype(dtype, where)
    folder = policy_folder(path)
    with contextlib.ExitStack() as held:
        held.enter_context(device_lock(where, log))
        files = PolicyFiles.read(folder)
        if fingerprint not in (None, files.fingerprint):
            raise other_policy(folder, files.fingerprint, fingerprint)
        model = load_model(folder, precision, attn_implementation, trust_remote_code)
        try:
            model = model.eval().requires_grad_(False).to(where)
        except torch.OutOfMemoryError as error:
            raise _unusable(folder, error, "Free the device, or use a larger one.") from error
        if where.type == "cpu" and attn_implementation == "auto":
            use_row_attention(model)
        vocabulary = vocabulary or _vocabulary(folder, trust_remote_code)
        files.require_untouched()
        config = model.config
        rows = config.get_text_config(decoder=True).vocab_size
        named = (getattr(config, name, None) for name in _MEDIA_TOKENS)
        placeholders = {token for token in named if token is not None}
        ends = tuple(token for token in vocabulary.eos_token_ids if token < rows)
        if not ends:
            raise InputError(
                file=folder / "config.json",
                field="vocab_size",
                found=f"{rows}, and {vocabulary.ends()} as the end of a response",
                expected="a model that knows the token which ends a response",
                remedy="Save the tokenizer that belongs to the model.",
            )
        return Policy(
            model=model,
            files=files,
            device=where,
            dtype=precision,
            vocabulary=vocabulary,
            trust_remote_code=trust_remote_code,
            eos_token_ids=ends,
            pad_token_id=vocabulary.pad_token_id if vocabulary.pad_token_id < rows else ends[0],
            blocked_token_ids=tuple(sorted({*vocabulary.blocked(rows), *placeholders} - set(ends))),
            placeholder_token_ids=tuple(sorted(placeholders)),
            mrope="mrope_section" in (getattr(config.get_text_config(), "rope_parameters", None) or {}),
            row_multiple=row_multiple(model) if where.type == "cpu" else 1,
            _held=held.pop_all(),
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
        if device.type == "cuda":
            device = torch.device("cuda", device.index or 0)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            field="policy.device",
            found=f"{name!r} ({brief(error)})",
            expected="auto, cpu, or a CUDA device that this machine has",
            remedy="Correct the device.",
        ) from error
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(
            field="policy.dtype",
            found=repr(name),
            expected="auto, float32, bfloat16 or float16",
            remedy="Correct the dtype.",
        )
    return dtype


def _vocabulary(folder: Path, trust_remote_code: bool) -> Vocabulary:
    """What the folder says by itself; models are loaded without a tokenizer too."""
    named = any(file.is_file() for pattern in ("tokenizer*", "vocab*") for file in folder.glob(pattern))
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code) if named else None
    return read_vocabulary(folder, tokenizer)


def _unusable(folder: Path, error: Exception, remedy: str) -> InputError:
    return InputError(file=folder, found=f"{type(error).__name__}: {brief(error)}", remedy=remedy)
