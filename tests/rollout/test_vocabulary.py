"""Which tokens end a response, which are never drawn, and that the policy that is named has answered."""

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
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import rl_assets.rollout.policy
from rl_assets.errors import InputError
from rl_assets.policy.checkpoint import load_tokenizer
from rl_assets.policy.fingerprint import policy_fingerprint
from rl_assets.policy.vocabulary import Vocabulary, read_vocabulary
from rl_assets.rollout.engine import generate_rollouts
from rl_assets.rollout.journal import Journal
from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.policy import Policy, load_policy
from rl_assets.rollout.requests import Response
from tests.rollout import tiny
from tests.rollout.test_shards import prompt_shards, roll_out

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END, START, STOP)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_policy(
    folder: Path,
    template: str | None = CHATML,
    special: tuple[str, ...] = SPECIAL,
    eos: str | None = STOP,
    generation_eos: Any = None,
    rows_without_token: int = 0,
) -> Path:
    """A random Llama with a tokenizer of bytes; special tokens have the ids from 256 on."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=eos, pad_token=END)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    ids = {"eos_token_id": generation_eos, "pad_token_id": 256, "bos_token_id": None}
    config = hf.LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=len(tokenizer) + rows_without_token,
        max_position_embeddings=512,
        **ids,
    )
    model = hf.LlamaForCausalLM(config)
    model.generation_config = hf.GenerationConfig(**ids)
    model.save_pretrained(folder)
    return folder


def vocabulary(folder: Path) -> Vocabulary:
    return read_vocabulary(folder, load_tokenizer(folder))


def ends(found: Vocabulary) -> set[str]:
    return {found.names[token] for token in found.eos_token_ids}


# --- the end of a turn ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "eos", "generation_eos", "expected"),
    [
        (CHATML, STOP, 258, {STOP}),
        (CHATML, STOP, 256, {STOP, END}),
        (CHATML, END, 256, {STOP, END}),
        (CHATML, END, [256, 258], {STOP, END}),
        (CHATML, STOP, None, {STOP}),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", END, 256, {END}),
        ("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}", END, None, {END}),
        ("{{ raise_exception('no prompt suits it') }}", END, 256, {END}),
        (None, END, 256, {END}),
        (CHATML.replace("{{ m.content }}", "{{ m.content | trim }}"), END, 256, {STOP, END}),
    ],
)
def test_a_response_ends_at_every_token_that_ends_a_turn(
    tmp_path: Path, template: str | None, eos: str, generation_eos: Any, expected: set[str]
) -> None:
    folder = chat_policy(tmp_path / "policy", template, eos=eos, generation_eos=generation_eos)
    assert ends(vocabulary(folder)) == expected


def test_sources_that_disagree_are_named_once(tmp_path: Path) -> None:
    found = vocabulary(chat_policy(tmp_path / "p", generation_eos=256))
    (remark,) = found.remarks()
    assert "<|endoftext|> (256), <|im_end|> (258)" in remark
    assert "generation_config.json: <|endoftext|>" in remark
    assert list(vocabulary(chat_policy(tmp_path / "agreed", generation_eos=258)).remarks()) == []


def test_a_turn_that_no_token_ends_is_remarked_on(tmp_path: Path) -> None:
    template = CHATML.replace("<|im_end|>", "[/turn]")
    (remark,) = vocabulary(chat_policy(tmp_path / "p", template, eos=END, generation_eos=256)).remarks()
    assert "'[/turn]'" in remark


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    generation=st.none() | st.integers(-1, 300) | st.lists(st.integers(0, 300), max_size=3),
    config=st.none() | st.integers(0, 300) | st.lists(st.integers(0, 300), max_size=3),
)
def test_the_ends_are_those_of_all_sources_that_have_a_token(
    tmp_path_factory: pytest.TempPathFactory, chat_folder: Path, generation: Any, config: Any
) -> None:
    folder = tmp_path_factory.mktemp("p")
    for file in chat_folder.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, folder)
    for name, value in (("generation_config.json", generation), ("config.json", config)):
        settings_ = json.loads((folder / name).read_bytes())
        (folder / name).write_text(json.dumps({**settings_, "eos_token_id": value}))
    found = vocabulary(folder)
    said = {258}
    for value in (generation, config):
        said |= set(value if isinstance(value, list) else [value]) - {None}
    assert set(found.eos_token_ids) == {token for token in said if 0 <= token < 259}


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_policy(tmp_path_factory.mktemp("chat") / "policy", generation_eos=256, rows_without_token=60)


@pytest.fixture(scope="module")
def chat(chat_folder: Path) -> Policy:
    """Its template ends turns with another token than its generation_config; 60 ids have no token."""
    return load_policy(chat_folder, device="cpu")


def answered(policy: Policy, sampling: SamplingParams, length: int = 200) -> list[list[int]]:
    ids = [[72 + row, 105, 33] for row in range(6)]
    made = generate_rollouts(
        policy, tiny.batch(ids), sampling, prompt_length=4, response_length=length, log=lambda line: None
    )
    masks = made.batch["response_mask"].bool()
    return [row[mask].tolist() for row, mask in zip(made.batch["responses"], masks, strict=True)]


def test_no_response_runs_on_past_the_end_of_its_turn(chat: Policy) -> None:
    responses = answered(chat, SamplingParams(n=8, temperature=3.0))
    assert all(not {256, 258} & set(tokens[:-1]) for tokens in responses)
    assert {tokens[-1] for tokens in responses} >= {256, 258}


def test_a_policy_whose_files_agree_keeps_the_responses_of_earlier_releases(tmp_path: Path) -> None:
    agreed = chat_policy(tmp_path / "agreed", generation_eos=258)
    padded = chat_policy(tmp_path / "padded", generation_eos=258, rows_without_token=8)
    other_ends = chat_policy(tmp_path / "other", generation_eos=256)
    assert [bool(vocabulary(folder).key) for folder in (agreed, padded, other_ends)] == [False, True, True]


# --- ids that are never drawn ---------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [SamplingParams(n=8, temperature=50.0), SamplingParams(do_sample=False)])
def test_no_id_without_a_token_is_drawn(chat: Policy, sampling: SamplingParams) -> None:
    responses = answered(chat, sampling)
    assert max(map(max, responses)) < 259
    text = chat.tokenizer.batch_decode(responses)
    assert len(text) == len(responses)


def test_greedy_equals_generate_with_these_tokens_suppressed(chat: Policy) -> None:
    for number, tokens in enumerate(answered(chat, SamplingParams(do_sample=False), length=40)):
        out = chat.model.generate(
            torch.tensor([[72 + number, 105, 33]]),
            attention_mask=torch.ones(1, 3, dtype=torch.long),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=list(chat.eos_token_ids),
            suppress_tokens=list(chat.blocked_token_ids),
            pad_token_id=chat.pad_token_id,
        )
        assert out[0, 3:].tolist() == tokens


def test_holes_of_a_vocabulary_are_never_drawn(chat_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(chat_folder, folder)
    file = json.loads((folder / "tokenizer.json").read_bytes())
    del file["model"]["vocab"]["Z"]
    (folder / "tokenizer.json").write_text(json.dumps(file))
    found = vocabulary(folder)
    with_token = set(load_tokenizer(folder).get_vocab().values())
    (hole,) = set(range(max(with_token))) - with_token
    assert found.blocked(300) == tuple(sorted(set(range(300)) - with_token))
    with load_policy(folder, device="cpu") as policy:
        assert hole in policy.blocked_token_ids
        assert all(hole not in tokens for tokens in answered(policy, SamplingParams(n=8, temperature=50.0)))


def test_a_tokenizer_of_the_policys_own_code_reads_the_stop_strings(tmp_path: Path) -> None:
    folder = chat_policy(tmp_path / "policy")
    (folder / "own.py").write_text(
        "from transformers import PreTrainedTokenizerFast\nclass Own(PreTrainedTokenizerFast): pass\n"
    )
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with load_policy(folder, device="cpu", trust_remote_code=True) as policy:
        assert type(policy.tokenizer).__module__.startswith("transformers_modules")
        assert answered(policy, SamplingParams(stop="e"), length=20)


def test_other_ends_are_other_responses(chat_folder: Path, tmp_path: Path) -> None:
    """A response that another set of ends made is not taken from the journal or the store."""
    shards = prompt_shards(tmp_path / "prompts", [[[72, 105, 33]]])
    one = vocabulary(chat_folder)
    other = read_vocabulary(chat_folder)
    assert one.key != other.key
    first = roll_out(shards, tmp_path, chat_folder, vocabulary=one)
    second = roll_out(shards, tmp_path, chat_folder, vocabulary=other)
    assert (first.stats.generated, second.stats.generated) == (3, 3)


# --- a policy that is broken, or not the one that is named ----------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_stop_the_run_by_the_policys_name(
    llama_folder: Path, tmp_path: Path, value: float
) -> None:
    weights = load_file(llama_folder / "model.safetensors")
    weights["model.norm.weight"][0] = value
    save_file(weights, llama_folder / "model.safetensors", metadata={"format": "pt"})
    shards = prompt_shards(tmp_path / "prompts", [[[72, 105, 33]]])
    with pytest.raises(InputError, match="logits that are not finite") as refusal:
        roll_out(shards, tmp_path, llama_folder)
    assert refusal.value.file == str(llama_folder)
    assert refusal.value.field == "policy.path"


def replace_weights(folder: Path) -> None:
    """Other weights under the same name, as a trainer that saves over its last checkpoint leaves them."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file(
        {name: tensor + 1 for name, tensor in weights.items()}, folder / "new", metadata={"format": "pt"}
    )
    (folder / "new").rename(path)


def test_a_policy_other_than_the_one_that_was_looked_at_is_refused(
    llama_folder: Path, tmp_path: Path
) -> None:
    wanted = policy_fingerprint(llama_folder)
    shards = prompt_shards(tmp_path / "prompts", [[[72, 105, 33]]])
    replace_weights(llama_folder)
    with pytest.raises(InputError, match="replaced meanwhile"):
        roll_out(shards, tmp_path, llama_folder, fingerprint=wanted)
    with pytest.raises(InputError, match="replaced meanwhile"):
        load_policy(llama_folder, fingerprint=wanted)
    assert not (tmp_path / "rollouts").exists()


def test_a_policy_that_is_replaced_while_it_is_loaded_is_refused(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = rl_assets.rollout.policy.load_model

    def load_and_replace(folder: Path, *arguments: Any) -> Any:
        model = load(folder, *arguments)
        replace_weights(folder)
        return model

    monkeypatch.setattr(rl_assets.rollout.policy, "load_model", load_and_replace)
    with pytest.raises(InputError, match="changed while it was loaded"):
        load_policy(llama_folder)


class _Replacing(Journal):
    """Replaces the policy's weights after the first response is kept."""

    def __init__(self, folder: Path, change: Callable[[], None]) -> None:
        super().__init__(folder)
        self.change: Callable[[], None] | None = change

    def add(self, key: str, response: Response) -> None:
        super().add(key, response)
        if self.change:
            self.change()
            self.change = None


@pytest.mark.parametrize("same_bytes", [False, True])
def test_a_policy_that_changes_while_it_answers_stops_the_run(
    llama_folder: Path, tmp_path: Path, same_bytes: bool
) -> None:
    def change() -> None:
        if same_bytes:  # a copy that is renamed into place, or a touch
            shutil.copy(llama_folder / "config.json", llama_folder / "copy")
            (llama_folder / "copy").rename(llama_folder / "config.json")
        else:
            replace_weights(llama_folder)

    with (
        load_policy(llama_folder, device="cpu") as policy,
        _Replacing(tmp_path / "journal", change) as journal,
    ):

        def answer() -> None:
            generate_rollouts(
                policy,
                tiny.batch(tiny.text_ids(4, 9)),
                SamplingParams(),
                prompt_length=9,
                response_length=9,
                log=lambda line: None,
                journal=journal,
            )

        if same_bytes:
            answer()
            assert len(journal) == 4
        else:
            with pytest.raises(InputError, match="changed while it answered"):
                answer()
            assert len(journal) == 1
