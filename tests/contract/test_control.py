"""Control tokens of a policy in what a row says, and prompts that are rendered already."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_assets.policy.control_tokens import PolicyTokens, read_policy_tokens
from tests.build import POLICY, problem
from tests.contract.rows import codes, errors, judge, said
from tests.rollout.test_vocabulary import chat_policy

TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "</s>")
PREFILLED = (
    "<|im_start|>user\nUsing 3, 5 and 7 make 22.<|im_end|>\n<|im_start|>assistant\nI will go.\n<think>"
)


def judged(tmp_path: Path, row: dict[str, Any], **options: Any) -> set[str]:
    return codes(judge(tmp_path, row, control_tokens=TOKENS, **options))


@pytest.mark.parametrize(
    "text", ["Quote this: hi<|im_end|>", "<|endoftext|>", 'a\n"b"</s>', "x<|im_start|>system"]
)
def test_a_control_token_in_a_text_is_named(tmp_path: Path, text: str) -> None:
    result = judge(tmp_path, said(text), control_tokens=TOKENS)
    assert errors(result) == [("prompt.control_token", "prompt[0].content")]
    (rejected,) = result.rejected.rows()
    assert any(f"found {token}" == rejected["message"] for token in TOKENS)


@pytest.mark.parametrize(
    "text",
    [
        "Think in <think> tags, answer in <answer></answer>.",
        "a < b | c >",
        "<|im_end| >",
        "im_end",
        "<s>old</S>",
    ],
)
def test_tags_that_are_text_stay_text(tmp_path: Path, text: str) -> None:
    assert judged(tmp_path, said(text)) == set()


@pytest.mark.parametrize(
    "text",
    [
        PREFILLED,
        f"\n {PREFILLED}",
        "[INST] What is 2 + 2? [/INST]",
        "<s>[INST] What is 2 + 2? [/INST]",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi",
        "<start_of_turn>user\nHi<end_of_turn>",
        "<|user|>\nHi\n<|assistant|>",
        "<|begin_of_text|><|header_start|>user<|header_end|>\n\nHi<|eot|>",
        "<|header_start|>user<|header_end|>\n\nHi<|eot|>",
        "[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT][INST]Hi[/INST]",
        "<s>[AVAILABLE_TOOLS][][/AVAILABLE_TOOLS][INST]Hi[/INST]",
        "<｜User｜>Hi<｜Assistant｜>",
        "<|im_user|>user<|im_middle|>Hi<|im_end|>",
        "<|start_of_role|>user<|end_of_role|>Hi<|end_of_text|>",
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>",
        "<|start|>user<|message|>Hi<|end|><|start|>assistant",
    ],
)
def test_a_prompt_that_is_rendered_already_is_named_whatever_the_policy(tmp_path: Path, text: str) -> None:
    assert codes(judge(tmp_path, said(text))) == {"prompt.already_rendered"}
    assert judged(tmp_path, said(text)) == {"prompt.already_rendered"}


def test_parts_tools_and_calls_are_texts_too(tmp_path: Path) -> None:
    parts = problem(1, prompt=[{"role": "user", "content": [{"type": "text", "text": "hi<|im_end|>"}]}])
    tool = {"type": "function", "function": {"name": "f", "description": "Ends with <|im_end|>."}}
    call = {"function": {"name": "f", "arguments": {"<|im_end|>": 1}}}
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    turns.append({"role": "tool", "content": "12"})
    for row, path in (
        (parts, "prompt[0].content[0].text"),
        (problem(1, tools=[tool]), "tools[0].function.description"),
        (problem(1, prompt=turns), 'prompt[1].tool_calls[0].function.arguments["<|im_end|>"]'),
    ):
        assert errors(judge(tmp_path, row, control_tokens=TOKENS)) == [("prompt.control_token", path)]


def test_columns_that_are_not_rendered_may_hold_them(tmp_path: Path) -> None:
    row = problem(1, extra_info={"index": 1, "log": "a<|im_end|>"}, note="b<|im_end|>")
    assert judged(tmp_path, row) == set()


@pytest.mark.parametrize(
    ("code", "text"), [("prompt.control_token", "hi<|im_end|>"), ("prompt.already_rendered", PREFILLED)]
)
def test_both_may_be_let_through(tmp_path: Path, code: str, text: str) -> None:
    result = judge(tmp_path, said(text), control_tokens=TOKENS, severities={code: "warning"})
    assert result.accepted_rows == 1
    assert codes(result) == {code}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["<|", "|>", "im_end", "<", ">", "</s", "a", " ", '"', "\\"]), max_size=12))
def test_a_row_is_refused_exactly_where_a_token_is_in_its_text(tmp_path: Path, pieces: list[str]) -> None:
    text = "What is this: " + "".join(pieces)
    expected = {"prompt.control_token"} if any(token in text for token in TOKENS) else set()
    assert judged(tmp_path, said(text)) == expected


# --- which tokens are control tokens --------------------------------------------------------------------


def test_tokens_with_a_role_and_those_of_the_template_are_control_tokens(tmp_path: Path) -> None:
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<answer>", "</answer>", "<filename>", "<turn>")
    template = "{% for m in messages %}<turn>{{ m.role }}<answer>{{ m.content }}<|im_end|>{% endfor %}"
    folder = chat_policy(tmp_path / "policy", template, special, generation_eos=258)
    assert read_policy_tokens(folder).control == ("<turn>", "<|endoftext|>", "<|im_end|>", "<|im_start|>")


def test_media_tokens_are_told_apart(tmp_path: Path) -> None:
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>")
    found = read_policy_tokens(chat_policy(tmp_path / "policy", special=special, generation_eos=258))
    assert found.media == ("<|image_pad|>", "<|vision_start|>")
    assert set(found.control) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}


def test_the_demo_policys_turns_are_known() -> None:
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= set(read_policy_tokens(POLICY).control)


@pytest.mark.parametrize("content", [None, b"\xff", b"[]", b"{}", json.dumps({"added_tokens": 3}).encode()])
def test_a_policy_that_cannot_be_read_has_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    assert read_policy_tokens(tmp_path) == PolicyTokens()
    assert read_policy_tokens("no-such-owner/no-such-policy") == PolicyTokens()
