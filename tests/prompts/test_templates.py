"""Messages to text: whatever way a prompt takes, it reads as `apply_chat_template` writes it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_assets.prompts.render import PromptRenderer
from rl_assets.prompts.templates import ChatTemplate
from tests.prompts.families import FAMILIES, GEMMA, LISTY, LLAMA, MISTRAL, QWEN, WEATHER, tokenizer_with

SYSTEM = {"role": "system", "content": "Be brief.  "}
ASK = {"role": "user", "content": " 2 + 2? \u3000"}
CHATS: list[list[dict[str, Any]]] = [
    [ASK],
    [SYSTEM, ASK],
    [ASK, {"role": "assistant", "content": "<think>hm</think>\n\n4 "}, ASK],
    [ASK, ASK],
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": "\x1fa\x1c \x85"}],
    [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}],
    [{"role": "user", "content": None}],
    [
        {"role": "user", "content": "a", "name": None},
        {"role": "assistant", "content": None, "tool_calls": None},
    ],
    [ASK, {"role": "assistant", "content": "x", "reasoning": "why", "tool_calls": [WEATHER]}, ASK],
    [{"role": "user"}],
    [],
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["<think>a</think>b", "<tool_response>\n</tool_response>", "</think>", " \x1d ", "{{ x }}", "<b>&'\""]
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": TEXT},
        optional={"name": st.none() | TEXT, "reasoning_content": TEXT},
    ),
    min_size=1,
    max_size=4,
)


def outcome(render: Any, *arguments: Any) -> tuple[str, str]:
    """The text, or the message of the refusal."""
    try:
        return "text", render(*arguments)
    except Exception as error:
        return "error", str(error)


@pytest.fixture(scope="module")
def templates(policy: Path) -> dict[str, ChatTemplate]:
    return {name: ChatTemplate(tokenizer_with(policy, source), {}) for name, source in FAMILIES.items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tools", [None, [], [WEATHER]], ids=["no tools", "empty", "tools"])
def test_every_family_says_what_transformers_says(
    templates: dict[str, ChatTemplate], family: str, tools: Any
) -> None:
    template = templates[family]
    found = [outcome(template.render, chat, tools) for chat in CHATS]
    assert found == [outcome(template.render_plainly, chat, tools) for chat in CHATS]
    assert {kind for kind, _ in found} == {"text", "error"}


@given(messages=MESSAGES)
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("family", FAMILIES)
def test_so_it_is_on_any_text(templates: dict[str, ChatTemplate], family: str, messages: list) -> None:
    template = templates[family]
    assert outcome(template.render, messages) == outcome(template.render_plainly, messages)


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        (QWEN, {"enable_thinking": False}),
        (QWEN, {"enable_thinking": True}),
        (LLAMA, {"date_string": "1 May"}),
    ],
)
def test_variables_reach_the_template(policy: Path, source: str, variables: dict[str, Any]) -> None:
    tokenizer = tokenizer_with(policy, source)
    template = ChatTemplate(tokenizer, variables)
    assert template.render([ASK]) == template.render_plainly([ASK])
    assert (template.render([ASK]) == ChatTemplate(tokenizer, {}).render([ASK])) == (
        variables == {"enable_thinking": True}
    )


def test_a_variable_that_apply_chat_template_takes_itself_is_left_to_it(policy: Path) -> None:
    tokenizer = tokenizer_with(policy, LLAMA)
    assert (
        ChatTemplate(tokenizer, {"chat_template": GEMMA})
        .render([ASK])
        .startswith(f"{tokenizer.bos_token}<start_of_turn>user")
    )


def test_the_faster_engine_renders_only_what_both_say_alike(templates: dict[str, ChatTemplate]) -> None:
    used = {name for name, template in templates.items() if template.second is not None}
    assert used == {"llama", "gemma", "qwen", "mistral"}
    second = templates["llama"].second
    assert second is not None
    assert second([ASK]) == templates["llama"].render_plainly([ASK])
    for left_to_jinja in CHATS[5:10]:
        assert second(left_to_jinja) is None


@pytest.mark.parametrize("source", ["{% for %}", "{{ messages | no_such_filter }}"])
def test_a_template_that_is_none_is_an_error_of_each_prompt(policy: Path, source: str) -> None:
    template = ChatTemplate(tokenizer_with(policy, source), {})
    assert outcome(template.render, [ASK]) == outcome(template.render_plainly, [ASK])
    (rendered,) = PromptRenderer(tokenizer_with(policy, source)).render([[ASK]])
    assert rendered.code == "render.template_error"


def test_both_engines_are_given_the_same_variables(policy: Path) -> None:
    names = (
        "tools",
        "documents",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "pad_token",
        "shout",
        "x",
    )
    tests = "".join(f"{{{{ {n} is defined }}}} {{{{ {n} is none }}}} {{{{ {n} }}}}\n" for n in names)
    template = ChatTemplate(tokenizer_with(policy, "{{ messages[0].content }}" + tests), {"shout": None})
    assert template.second is not None
    assert template.second([ASK]) == template.render_plainly([ASK])


def test_an_engine_that_differs_on_a_probe_is_not_used(policy: Path) -> None:
    prints_a_float = "{{ messages[0].content }}{{ 1e20 }}"
    template = ChatTemplate(tokenizer_with(policy, prints_a_float), {})
    assert template.render([ASK]).endswith("1e+20")
    assert template.second is None


def test_without_the_faster_engine_the_text_is_the_same(
    policy: Path, templates: dict[str, ChatTemplate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "minijinja", None)
    template = ChatTemplate(tokenizer_with(policy, QWEN), {})
    assert template.render([SYSTEM, ASK]) == templates["qwen"].render([SYSTEM, ASK])
    assert template.second is None


@pytest.mark.parametrize(
    ("source", "chat", "message"),
    [
        (GEMMA, [SYSTEM, ASK], "System role not supported"),
        (GEMMA, [ASK, ASK], "Conversation roles must alternate user/assistant/user/assistant/..."),
        (
            MISTRAL,
            [SYSTEM, ASK, ASK],
            "After the optional system message, roles must alternate user/assistant",
        ),
    ],
)
def test_a_refusal_has_the_templates_own_words(policy: Path, source: str, chat: list, message: str) -> None:
    refused, kept = PromptRenderer(tokenizer_with(policy, source)).render([chat, [ASK]])
    assert (refused.ids, refused.code, refused.error) == (None, "render.template_error", message)
    assert kept.ids


@pytest.mark.parametrize(("source", "ends"), [(QWEN, True), (MISTRAL, False)], ids=["with", "without"])
def test_a_generation_prompt_is_there_where_the_template_has_one(
    policy: Path, source: str, ends: bool
) -> None:
    text = ChatTemplate(tokenizer_with(policy, source), {}).render([ASK])
    assert text.endswith("<|im_start|>assistant\n") == ends
    assert text.endswith("[/INST]") != ends


@pytest.mark.parametrize("source", [LLAMA, GEMMA, MISTRAL])
def test_bos_is_written_once(policy: Path, source: str) -> None:
    tokenizer = tokenizer_with(policy, source)
    (rendered,) = PromptRenderer(tokenizer).render([[ASK]])
    assert rendered.ids is not None
    assert rendered.ids.count(tokenizer.bos_token_id) == 1


def test_a_template_that_asks_for_the_date_is_known(policy: Path) -> None:
    dated = ChatTemplate(tokenizer_with(policy, "{{ strftime_now('%d %b %Y') }}" + LISTY), {})
    assert dated.asks_for_date
    assert dated.render([ASK]) == dated.render_plainly([ASK])
    assert not ChatTemplate(tokenizer_with(policy, LLAMA), {}).asks_for_date
