"""Loading a policy: what generation must know is found, and whatever cannot be used is refused by name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rl_assets.errors import InputError
from rl_assets.policy.fingerprint import policy_fingerprint
from rl_assets.rollout.policy import load_policy
from tests.rollout import tiny


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_policy_knows_its_device_tokens_and_fingerprint(llama_folder: Path) -> None:
    edit(llama_folder / "generation_config.json", eos_token_id=[5, 6], pad_token_id=5)
    with load_policy(llama_folder) as policy:
        assert policy.eos_token_ids == (5, 6)
        assert policy.pad_token_id == 5
        assert policy.fingerprint == policy_fingerprint(llama_folder)
        assert policy.vocab_size == tiny.VOCAB
        assert policy.dtype == (torch.bfloat16 if torch.cuda.is_available() else torch.float32)
        assert not policy.model.training
        assert not policy.mrope
    assert policy.model is None


def test_dtype_and_device_can_be_named(llama_folder: Path) -> None:
    policy = load_policy(llama_folder, device="cpu", dtype="bfloat16", attn_implementation="eager")
    assert policy.model.dtype == policy.dtype == torch.bfloat16
    assert policy.device == torch.device("cpu")


def test_without_a_pad_token_the_eos_token_pads(llama_folder: Path) -> None:
    edit(llama_folder / "generation_config.json", pad_token_id=None)
    edit(llama_folder / "config.json", pad_token_id=None)
    assert load_policy(llama_folder).pad_token_id == tiny.EOS


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"device": "warp:0"}, "policy.device"),
        ({"device": "cuda:77"}, "policy.device"),
        ({"dtype": "int8"}, "policy.dtype"),
        ({"dtype": "no_dtype"}, "policy.dtype"),
        ({"attn_implementation": "flash_attention_2"}, "policy.attn_implementation"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(llama_folder: Path, options: dict, field: str) -> None:
    with pytest.raises(InputError) as refusal:
        load_policy(llama_folder, **options)
    assert refusal.value.field == field


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as refusal:
        load_policy(folder)
    assert refusal.value.file is not None
    assert Path(refusal.value.file).is_relative_to(folder)
    return refusal.value.found


def test_a_config_that_is_not_json_is_refused(llama_folder: Path) -> None:
    (llama_folder / "config.json").write_text("{")
    assert "JSON" in refused(llama_folder)


def test_a_model_type_that_nobody_knows_is_refused(llama_folder: Path) -> None:
    edit(llama_folder / "config.json", model_type="no_such_model")
    assert "no_such_model" in refused(llama_folder)


def test_weights_cut_short_are_refused(llama_folder: Path) -> None:
    weights = llama_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "cut short or damaged" in refused(llama_folder)


def test_weights_without_a_parameter_are_refused(llama_folder: Path) -> None:
    weights = llama_folder / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    assert refused(llama_folder) == (
        "weights without 1 of the model's parameters (model.layers.1.mlp.up_proj.weight, …)"
    )


def test_weights_of_another_shape_are_refused(llama_folder: Path) -> None:
    edit(llama_folder / "config.json", intermediate_size=48)
    assert refused(llama_folder) == (
        "weights of other shapes than config.json says: model.layers.0.mlp.down_proj.weight is [32, 64], "
        "and 8 more"
    )


def test_weights_of_more_layers_than_the_config_says_are_refused(llama_folder: Path) -> None:
    edit(llama_folder / "config.json", num_hidden_layers=2)
    assert refused(llama_folder) == (
        "a model without 9 of the weights (model.layers.2.input_layernorm.weight, …)"
    )


def test_weights_that_are_no_part_of_the_model_do_not_count(llama_folder: Path) -> None:
    """Such as the head of a critic, or an index of positions that older releases saved."""
    weights = llama_folder / "model.safetensors"
    more = {"v_head.weight": torch.zeros(3), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    save_file(load_file(weights) | more, weights, metadata={"format": "pt"})
    load_policy(llama_folder).close()


def test_a_policy_without_an_end_token_is_refused(llama_folder: Path) -> None:
    edit(llama_folder / "generation_config.json", eos_token_id=None)
    edit(llama_folder / "config.json", eos_token_id=None)
    with pytest.raises(InputError, match="eos_token_id"):
        load_policy(llama_folder)


@pytest.mark.parametrize(
    ("kind", "found"),
    [("t5", "a model of type 't5'"), ("mamba", "layers of another kind (linear_attention)")],
)
def test_models_that_the_loop_cannot_serve_are_refused(tmp_path: Path, kind: str, found: str) -> None:
    assert refused(tiny.save(kind, tmp_path / kind)) == found


def test_a_policy_without_a_tokenizer_is_refused_when_one_is_needed(llama_folder: Path) -> None:
    policy = load_policy(llama_folder)
    with pytest.raises(InputError, match="tokenizer"):
        _ = policy.tokenizer
