"""What a folder is that holds no whole policy, and how a whole one is made of it."""

from collections.abc import Iterable
from pathlib import Path

from rl_assets.errors import InputError
from rl_assets.policy.readable import read_object

_FSDP, _MEGATRON = "model_world_size_*_rank_*.pt", "dist_ckpt"
_ADAPTER = "adapter_config.json"
_NAMED = 5


def refuse_adapter(folder: Path) -> None:
    """Refuse a LoRA adapter, also one beside whole weights: whether it would be applied to them depends on
    which packages are installed.

    Raises:
        InputError: there is one.
    """
    if (folder / _ADAPTER).is_file():
        base = _base_of(folder / _ADAPTER)
        raise _refusal(
            folder,
            f"a LoRA adapter ({_ADAPTER}), which is no policy without its base{f' {base!r}' if base else ''}",
            "Merge it into its base with peft (`merge_and_unload`), save model and tokenizer with "
            "`save_pretrained`, and name that folder.",
        )


def refuse_missing_weights(folder: Path, weights: Iterable[Path]) -> None:
    """Refuse weights of which a file is missing that their index names.

    Raises:
        InputError: one is.
    """
    for index in (file for file in weights if file.name.endswith(".index.json")):
        try:
            named = set(read_object(index)["weight_map"].values())
            missing = sorted(name for name in named if not (folder / name).is_file())
        except (KeyError, TypeError, ValueError, AttributeError):
            named, missing = set(), []
        if not named:
            raise InputError(
                file=index,
                field="weight_map",
                found="no object that names the file of each weight",
                remedy="Save the policy again; a download may have been cut short.",
            )
        if missing:
            raise InputError(
                file=index,
                found=f"{len(missing)} of {len(named)} files of weights missing ({_some(missing)})",
                expected="every file that the index names",
                remedy="Save the policy again, or finish its download.",
            )


def without(folder: Path, what: str) -> InputError:
    """The error for a folder without `what` (config.json or weights), which says what the folder is.

    Checkpoints of trainers are known by their files: FSDP and Megatron of verl, ZeRO of DeepSpeed.
    """
    inside = (folder, folder / "actor")
    for checkpoint in (*inside, folder.parent, folder.parent.parent):
        for backend, pattern in (("fsdp", _FSDP), ("megatron", _MEGATRON)):
            if found := sorted(file.name for file in checkpoint.glob(pattern)):
                if checkpoint in inside:
                    kind = f"a checkpoint of verl's trainer in parts ({_some(found)})"
                elif folder.name == "huggingface":
                    kind = f"config and tokenizer of a checkpoint of verl's trainer, {what}"
                else:
                    continue
                merge = f"python -m verl.model_merger merge --backend {backend} --local_dir {checkpoint}"
                return _refusal(
                    folder,
                    kind,
                    f"Merge it: `{merge} --target_dir FOLDER`, with verl installed, and name that folder.",
                )
    if (folder / "zero_to_fp32.py").is_file():
        return _refusal(
            folder,
            "a ZeRO checkpoint of DeepSpeed in parts",
            "Merge it with the zero_to_fp32.py inside, beside its config and tokenizer.",
        )
    names = sorted(file.name for file in folder.iterdir())
    return _refusal(
        folder,
        f"{what}; it holds {_some(names) or 'nothing'}",
        "Save the policy with `model.save_pretrained` and `tokenizer.save_pretrained`; a download may have "
        "been cut short.",
    )


def _refusal(folder: Path, found: str, remedy: str) -> InputError:
    return InputError(
        file=folder,
        field="policy.path",
        found=found,
        expected="a whole policy: config.json, *.safetensors (or pytorch_model*.bin) and tokenizer",
        remedy=remedy,
    )


def _base_of(config: Path) -> str:
    try:
        return str(read_object(config).get("base_model_name_or_path") or "")
    except InputError:
        return ""


def _some(names: list[str]) -> str:
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
