"""Folders that hold no whole policy: each is named for what it is, with the way to make a whole one of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_assets.errors import InputError
from rl_assets.policy.fingerprint import policy_files
from rl_assets.rollout.policy import load_policy
from tests.rollout import tiny


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("llama", tmp_path_factory.mktemp("whole") / "llama")


@pytest.fixture
def step(saved: Path, tmp_path: Path) -> Path:
    """A step of a training, with the config of its policy where verl's trainer puts it."""
    folder = tmp_path / "global_step_100"
    (folder / "actor/huggingface").mkdir(parents=True)
    for name in ("config.json", "generation_config.json"):
        shutil.copy(saved / name, folder / "actor/huggingface" / name)
    return folder


def fsdp(step: Path) -> None:
    for rank in range(2):
        (step / f"actor/model_world_size_2_rank_{rank}.pt").write_bytes(b"\x80")


def megatron(step: Path) -> None:
    (step / "actor/dist_ckpt").mkdir()


def refusal(folder: Path) -> InputError:
    """What is said of the folder, which is the same whoever asks."""
    with pytest.raises(InputError) as refused:
        policy_files(folder)
    with pytest.raises(InputError) as loading:
        load_policy(folder)
    assert str(loading.value) == str(refused.value)
    assert "\n" not in str(refused.value)
    return refused.value


@pytest.mark.parametrize(("save", "backend"), [(fsdp, "fsdp"), (megatron, "megatron")])
@pytest.mark.parametrize(
    ("named", "kind"),
    [
        ("", "a checkpoint of verl's trainer in parts"),
        ("actor", "a checkpoint of verl's trainer in parts"),
        ("actor/huggingface", "config and tokenizer of a checkpoint of verl's trainer, no weights"),
    ],
    ids=["step", "actor", "huggingface"],
)
def test_a_checkpoint_of_verls_trainer_comes_with_the_command_that_merges_it(
    step: Path, save: Callable[[Path], None], backend: str, named: str, kind: str
) -> None:
    save(step)
    error = refusal(step / named)
    assert error.file == str(step / named)
    assert error.field == "policy.path"
    assert error.found.startswith(kind)
    merge = f"python -m verl.model_merger merge --backend {backend} --local_dir {step / 'actor'} --target_dir"
    assert merge in error.remedy


def test_weights_that_were_merged_into_the_folder_of_the_config_are_whole(step: Path, saved: Path) -> None:
    fsdp(step)
    shutil.copy(saved / "model.safetensors", step / "actor/huggingface")
    assert "model.safetensors" in policy_files(step / "actor/huggingface")


def test_a_zero_checkpoint_is_named(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-100"
    (folder / "global_step100").mkdir(parents=True)
    (folder / "zero_to_fp32.py").touch()
    shutil.copy(saved / "config.json", folder)
    error = refusal(folder)
    assert error.found == "a ZeRO checkpoint of DeepSpeed in parts"
    assert "zero_to_fp32.py" in error.remedy


@pytest.mark.parametrize("beside_weights", [False, True])
@pytest.mark.parametrize(
    ("config", "base"),
    [
        ('{"base_model_name_or_path": "org/base", "peft_type": "LORA"}', " 'org/base'"),
        ('{"peft_type": "LORA"}', ""),
        ('{"base_mod', ""),
        ("[]", ""),
        ("\udcff", ""),
    ],
    ids=["base", "no base", "cut", "list", "bytes"],
)
def test_an_adapter_is_to_be_merged_into_its_base(
    saved: Path, tmp_path: Path, beside_weights: bool, config: str, base: str
) -> None:
    folder = tmp_path / "lora_adapter"
    if beside_weights:
        shutil.copytree(saved, folder)
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_bytes(config.encode("utf-8", "surrogateescape"))
    (folder / "adapter_model.safetensors").touch()
    error = refusal(folder)
    assert error.found == f"a LoRA adapter (adapter_config.json), which is no policy without its base{base}"
    assert "merge_and_unload" in error.remedy


def test_an_empty_folder_and_one_without_weights_say_what_they_hold(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty").found == "no config.json; it holds nothing"
    (tmp_path / "bare").mkdir()
    shutil.copy(saved / "config.json", tmp_path / "bare")
    assert refusal(tmp_path / "bare").found == "no weights; it holds config.json"


@pytest.fixture
def sharded(saved: Path, tmp_path: Path) -> Path:
    """The policy, its weights in two files with an index."""
    import transformers as hf

    folder = tmp_path / "sharded"
    hf.AutoModelForCausalLM.from_pretrained(saved).save_pretrained(folder, max_shard_size="60KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    return folder


def test_a_file_of_weights_that_is_missing_is_named(sharded: Path) -> None:
    first, *others = sorted(sharded.glob("model-*.safetensors"))
    first.unlink()
    error = refusal(sharded)
    assert error.file == str(sharded / "model.safetensors.index.json")
    assert error.found == f"1 of {1 + len(others)} files of weights missing ({first.name})"


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {}}',
        b'{"weight_map": {"a": 3}}',
        b'{"weight_map": {"a": null, "b": "c"}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_an_index_that_cannot_be_read_is_named(sharded: Path, index: bytes) -> None:
    (sharded / "model.safetensors.index.json").write_bytes(index)
    error = refusal(sharded)
    assert error.file == str(sharded / "model.safetensors.index.json")
    assert error.found.startswith("no ") or error.found == "a JSON list"


def test_a_name_in_an_index_that_no_file_can_have_is_a_missing_file(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x\\u0000y"}}')
    assert refusal(sharded).found == "1 of 1 files of weights missing (x\0y)"


def test_a_tokenizer_that_is_missing_is_named_when_one_is_needed(saved: Path) -> None:
    with load_policy(saved) as policy, pytest.raises(InputError) as refused:
        _ = policy.tokenizer
    assert refused.value.file == str(saved)
    assert json.loads((saved / "config.json").read_text())["model_type"] == "llama"
    assert "tokenizer" in refused.value.found
