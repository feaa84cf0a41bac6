"""A scorer gets the tags that it reads, and the self-test sees what a response of the policy can hold."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_assets.policy.checkpoint import load_tokenizer
from rl_assets.rewards.function import RewardFunction
from rl_assets.rewards.pool import ScorePool
from rl_assets.rewards.selftest import failing_answers
from rl_assets.rewards.solution import Writer, content_tags, decode_responses
from tests.rollout.test_vocabulary import CHATML, SPECIAL, chat_policy

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
ASSISTANT = "<|im_start|>assistant\n"


def tokenizer(folder: Path, template: str = CHATML, special: tuple[str, ...] = SPECIAL) -> Any:
    return load_tokenizer(chat_policy(folder, template, special))


def prefilling(text: str) -> str:
    return CHATML.replace(ASSISTANT, ASSISTANT + text)


def ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def geo3k(tokenizer: Any) -> list[str]:
    row = {"data_source": "hiyouga/geometry3k", "ground_truth": "4", "extra_info": {}}
    pool = ScorePool(RewardFunction())
    return [failing.problem for failing in failing_answers([row], pool, Writer(tokenizer))]


def test_tags_that_are_special_tokens_reach_the_scorer_and_control_tokens_do_not(tmp_path: Path) -> None:
    policy = tokenizer(tmp_path, special=(*SPECIAL, *TAGS))
    response = ids(policy, "<think>so</think><answer>Rome</answer><|im_end|><|endoftext|>")
    assert decode_responses(policy, [response, []]) == ["<think>so</think><answer>Rome</answer>", ""]
    assert policy.decode(response, skip_special_tokens=True) == "soRome"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(responses=st.lists(st.lists(st.integers(0, 258), max_size=20), max_size=4))
def test_a_policy_without_such_tags_is_decoded_as_verl_decodes(
    tmp_path: Path, responses: list[list[int]]
) -> None:
    policy = load_tokenizer(tmp_path) if (tmp_path / "config.json").exists() else tokenizer(tmp_path)
    verl = [policy.decode(response, skip_special_tokens=True) for response in responses]
    assert decode_responses(policy, responses) == verl


@pytest.mark.parametrize(
    "pair",
    [("<reflect>", "</reflect>"), ("[THINK]", "[/THINK]"), ("<|begin_of_box|>", "<|end_of_box|>")],
)
def test_whatever_comes_in_pairs_is_a_tag(tmp_path: Path, pair: tuple[str, str]) -> None:
    policy = tokenizer(tmp_path, special=(*SPECIAL, *pair))
    assert tuple(content_tags(policy).values()) == pair


@pytest.mark.parametrize(
    "pair",
    [
        ("<s>", "</s>"),
        ("[INST]", "[/INST]"),
        ("<assistant>", "</assistant>"),
        ("<|begin_of_text|>", "<|end_of_text|>"),
        ("<img>", "</img>"),
        ("<vision>", "</vision>"),
        ("<alone>", "<other>"),
    ],
)
def test_what_is_around_a_turn_a_text_or_media_is_none(tmp_path: Path, pair: tuple[str, str]) -> None:
    assert content_tags(tokenizer(tmp_path, special=(*SPECIAL, *pair))) == {}


def test_a_pair_that_the_template_closes_a_turn_with_is_none(tmp_path: Path) -> None:
    template = "{% for m in messages %}<reply>{{ m.content }}</reply>{% endfor %}"
    assert content_tags(tokenizer(tmp_path, template, (*SPECIAL, "<reply>", "</reply>"))) == {}


@pytest.mark.parametrize(
    ("prefilled", "answer", "written"),
    [
        ("", "<think></think>4", "<think></think>4"),
        ("<think>\n", "<think></think>4", "</think>4"),
        ("<think>\n", "#### 4", "</think>\n#### 4"),
        ("<think>\n\n</think>\n\n", "<think></think>4", "4"),
        ("<think>\n\n</think>\n\n", "#### 4", "#### 4"),
    ],
)
@pytest.mark.parametrize("special", [SPECIAL, (*SPECIAL, *TAGS)])
def test_an_answer_goes_on_after_what_the_template_writes(
    tmp_path: Path, prefilled: str, answer: str, written: str, special: tuple[str, ...]
) -> None:
    policy = tokenizer(tmp_path, prefilling(prefilled), special)
    assert Writer(policy).write(answer).solution == written


def test_a_format_that_a_prefilling_template_puts_out_of_reach_is_named(tmp_path: Path) -> None:
    (problem,) = geo3k(tokenizer(tmp_path, prefilling("<think>\n")))
    assert "scores 0.9, not 1.0" in problem
    assert "the chat template writes <think> itself, so the response is '</think>\\\\boxed{4}'" in problem


def test_a_format_that_can_be_reached_passes(tmp_path: Path) -> None:
    assert geo3k(tokenizer(tmp_path)) == []


def test_an_answer_that_the_tokenizer_does_not_give_back_is_named(tmp_path: Path) -> None:
    policy = tokenizer(tmp_path, special=(*SPECIAL, "<think>"))
    (problem,) = geo3k(policy)
    assert "the policy's tokenizer gives back '</think>\\\\boxed{4}'" in problem


def test_rows_are_taken_only_as_scoring_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text("def compute_score(solution_str, **_): return float(solution_str != '')")
    pool = ScorePool(RewardFunction(str(path)), workers=1)
    taken = []

    def rows() -> Any:
        for number in range(3):
            taken.append(number)
            yield {"data_source": "mine", "ground_truth": "4", "extra_info": {}}

    assert list(failing_answers(rows(), pool, Writer(tokenizer(tmp_path / "policy")))) == []
    assert taken == [0, 1, 2]
