"""Policies with all their files, of which one is damaged: an error names the file before anything is made."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rl_assets.errors import InputError
from rl_assets.graph.assets.sources import _policy, _tokenizer
from rl_assets.graph.dataset import Dataset
from rl_assets.policy.fingerprint import policy_fingerprint
from rl_assets.rollout.model import require_loadable
from rl_assets.rollout.policy import load_policy
from tests.build import failure, make_dataset, materialize, materialized, problem
from tests.rollout import tiny

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save_byte_policy(folder: Path) -> Path:
    """A tiny Llama with a token for every byte, and generation settings: quick to load many times."""
    inner = Tokenizer(
        models.BPE(
            {letter: token for token, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []
        )
    )
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>", pad_token="<|pad|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>"]})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = hf.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=None,
        **ids,
    )
    model = hf.LlamaForCausalLM(config)
    model.generation_config = hf.GenerationConfig(**ids)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_byte_policy(tmp_path_factory.mktemp("whole") / "policy")


@pytest.fixture
def dataset(saved: Path, tmp_path: Path) -> Dataset:
    """A dataset whose policy is `policy` in its folder."""
    shutil.copytree(saved, tmp_path / "policy")
    return make_dataset(tmp_path, [problem(number) for number in range(2)], policy=Path("policy"))


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def without(file: Path, key: str) -> None:
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != key}))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def more_tokens(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["zz"] = 10_000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def not_resized(folder: Path) -> None:
    """Tokens for the turns were added to the tokenizer, and the model was not told."""
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][:258].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    edit(folder / "config.json", vocab_size=258)


def narrower(folder: Path) -> None:
    edit(folder / "config.json", intermediate_size=4)


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "weights cut": (lambda f: cut(f / "model.safetensors"), "model.safetensors", "cut short or damaged"),
    "weights empty": (
        lambda f: (f / "model.safetensors").write_bytes(b""),
        "model.safetensors",
        "cut short or damaged",
    ),
    "other shapes": (narrower, "", "model.layers.0.mlp.down_proj.weight is [8, 8]"),
    "no layers": (
        lambda f: edit(f / "config.json", num_hidden_layers=0),
        "config.json",
        "found 0, expected a model with layers",
    ),
    "fewer layers": (
        lambda f: edit(f / "config.json", num_hidden_layers=1),
        "config.json",
        "a model without 9 of the weights",
    ),
    "more layers": (
        lambda f: edit(f / "config.json", num_hidden_layers=3),
        "",
        "weights without 9 of the model's parameters",
    ),
    "config no JSON": (lambda f: cut(f / "config.json"), "config.json", "found no JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "config.json", "found a JSON list"),
    "no model_type": (
        lambda f: without(f / "config.json", "model_type"),
        "config.json",
        "field `model_type`: found none",
    ),
    "unknown model_type": (
        lambda f: edit(f / "config.json", model_type="gpt9"),
        "config.json",
        "field `model_type`: found 'gpt9'",
    ),
    "heads that do not divide": (
        lambda f: edit(f / "config.json", num_attention_heads=0),
        "config.json",
        "that make no model",
    ),
    "tokenizer cut": (lambda f: cut(f / "tokenizer.json"), "tokenizer.json", "found no JSON"),
    "tokenizer empty": (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json", "does not load"),
    "tokenizer_config a list": (
        lambda f: (f / "tokenizer_config.json").write_text("[]"),
        "tokenizer_config.json",
        "found a JSON list",
    ),
    "tokenizer gone": (
        lambda f: (f / "tokenizer.json").unlink(),
        "",
        "does not load (it has none of the files of one)",
    ),
    "tokens beyond the embedding": (more_tokens, "tokenizer.json", "tokens beyond the model's embedding"),
    "tokens of turns beyond it": (not_resized, "tokenizer.json", "beyond the model's embedding"),
    "generation_config no JSON": (
        lambda f: (f / "generation_config.json").write_text("eos_token_id: 2"),
        "generation_config.json",
        "found no JSON",
    ),
    "template of wrong syntax": (
        lambda f: (f / "chat_template.jinja").write_text("{% for m in messages %}\n{{ m.content }"),
        "chat_template.jinja",
        "line 2), expected a chat template that Jinja compiles",
    ),
    "template of other bytes": (
        lambda f: (f / "chat_template.jinja").write_bytes(b"{{ messages }}\xff"),
        "chat_template.jinja",
        "found no text",
    ),
    "no template": (lambda f: (f / "chat_template.jinja").unlink(), "", "field `chat_template`: found none"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_kind_of_damage_stops_the_run_at_the_policy(dataset: Dataset, kind: str) -> None:
    damage, file, found = DAMAGE[kind]
    folder = dataset.root / "policy"
    damage(folder)
    result = materialize(dataset, "policy", "tokenizer", "reward_function")
    assert not result.success
    assert materialized(result) == []
    message = failure(result)
    assert message.startswith(f"{folder / file}: "), message
    assert found in message
    assert "\n" not in message


def test_nothing_is_rendered_or_answered_then(dataset: Dataset) -> None:
    narrower(dataset.root / "policy")
    assert not {"length_filtered", "proto_shards", "rollouts"} & set(materialized(materialize(dataset)))


def test_it_is_looked_at_again_once_it_is_repaired(dataset: Dataset, saved: Path) -> None:
    config = dataset.root / "policy/config.json"
    narrower(dataset.root / "policy")
    assert not materialize(dataset, "policy").success
    shutil.copy(saved / "config.json", config)
    assert materialize(dataset, "policy").success


def test_an_added_token_beyond_the_embedding_that_no_prompt_needs_is_allowed(dataset: Dataset) -> None:
    tokenizer = hf.AutoTokenizer.from_pretrained(dataset.root / "policy")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    tokenizer.save_pretrained(dataset.root / "policy")
    assert materialize(dataset, "policy").success


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gemma3", "qwen2_5_vl", "qwen3_vl"])
def test_models_of_all_kinds_are_found_whole_by_their_headers(tmp_path: Path, kind: str) -> None:
    assert require_loadable(tiny.save(kind, tmp_path / kind)) == tiny.VOCAB


def test_weights_of_the_older_format_are_looked_at_too(llama_folder: Path) -> None:
    torch.save(load_file(llama_folder / "model.safetensors"), llama_folder / "pytorch_model.bin")
    (llama_folder / "model.safetensors").unlink()
    assert require_loadable(llama_folder) == tiny.VOCAB
    cut(llama_folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="make no model"):
        require_loadable(llama_folder)


# Damage that nobody thought of.

_ODD = st.sampled_from([None, True, -1, 0, 1, 0.5, "", "x", [], [[]], {}, {"x": 1}, ["x", -1], 2**40])


@st.composite
def damaged(draw: st.DrawFn, content: bytes, name: str) -> bytes:
    """Other bytes for a file: cut, written over, grown, or, of JSON, with an odd value somewhere."""
    ways = ["cut", "write", "insert", *(["value", "value"] if name.endswith(".json") else [])]
    way = draw(st.sampled_from(ways))
    # Headers are where a file is most easily hurt.
    at = draw(st.integers(0, len(content) - 1) | st.integers(0, min(200, len(content) - 1)))
    some = draw(st.binary(min_size=1, max_size=4) | st.sampled_from([b"{", b"]", b",", b'"', b"0", b"-"]))
    if way == "cut":
        return content[:at]
    if way == "write":
        return content[:at] + some + content[at + len(some) :]
    if way == "insert":
        return content[:at] + some + content[at:]
    value = json.loads(content)
    place, within = value, True
    while within:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        within = isinstance(place[key], (dict, list)) and bool(place[key]) and draw(st.booleans())
        if within:
            place = place[key]
    if isinstance(place, dict) and draw(st.booleans()):
        del place[key]
    else:
        place[key] = draw(_ODD)
    return json.dumps(value).encode()


@pytest.fixture(scope="module")
def workplace(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = tmp_path_factory.mktemp("workplace")
    shutil.copytree(saved, root / "policy")
    return make_dataset(root, [problem(1)], policy=Path("policy"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_damage_is_named_or_makes_another_policy(
    saved: Path, workplace: Dataset, data: st.DataObject
) -> None:
    """What passes is a policy of another fingerprint, which loads as it was said to."""
    folder = workplace.root / "policy"
    name = data.draw(st.sampled_from(sorted(file.name for file in saved.iterdir())))
    content = (saved / name).read_bytes()
    (folder / name).write_bytes(other := data.draw(damaged(content, name)))
    refused: InputError | None = None
    try:
        source, _ = _policy(workplace)
        _tokenizer(workplace)
        load_policy(folder).close()
    except InputError as error:
        refused = error
    finally:
        (folder / name).write_bytes(content)
    if refused is None:
        assert (source.digest == policy_fingerprint(saved)) == (other == content)
    else:
        assert str(folder) in str(refused.file)
        assert len(str(refused).splitlines()) == 1
        assert refused.remedy
