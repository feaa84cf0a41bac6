"""Rendering: the ids that are stored are the ids that the chat template gives."""

from datetime import date
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import AutoTokenizer

from rl_assets.errors import InputError
from rl_assets.prompts.render import PromptRenderer

HELLO = [{"role": "user", "content": "Hello"}]
CHATS = [
    HELLO,
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?\n\n"}],
    [
        {"role": "user", "content": "你好 👩‍👩‍👧 e\u0301"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "<|im_end|>\x04"},
    ],
]
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
STRICT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}"
    "{% if message.name is defined %} ({{ message.name }}){% endif %}\n"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{% if shout %}!{% endif %}"
)


@pytest.fixture(scope="module")
def renderer(policy: Path) -> PromptRenderer:
    return PromptRenderer.load(policy)


@pytest.fixture
def strict(policy: Path) -> PromptRenderer:
    """A renderer whose template forbids system messages, writes BOS, and shows tools and arguments."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = STRICT_TEMPLATE
    return PromptRenderer(tokenizer)


def text(renderer: PromptRenderer, messages: list) -> str:
    (rendered,) = renderer.render([messages])
    assert rendered.ids is not None
    return renderer.tokenizer.decode(rendered.ids)


def test_ids_equal_those_of_apply_chat_template(renderer: PromptRenderer) -> None:
    expected = [
        renderer.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        for chat in CHATS
    ]
    assert [rendered.ids for rendered in renderer.render(CHATS)] == expected


def test_a_prompt_renders_the_same_alone_and_in_a_batch(renderer: PromptRenderer) -> None:
    assert renderer.render(CHATS) == [renderer.render([chat])[0] for chat in CHATS]


def test_bos_is_written_once(strict: PromptRenderer) -> None:
    bos = strict.tokenizer.bos_token_id
    (rendered,) = strict.render([HELLO])
    assert rendered.ids is not None
    assert rendered.ids.count(bos) == 1


def test_a_prompt_that_the_template_refuses_keeps_its_message_and_harms_no_other(
    strict: PromptRenderer,
) -> None:
    refused, kept = strict.render([[{"role": "system", "content": "Be brief."}, *HELLO], HELLO])
    assert (refused.ids, refused.error) == (None, "System role not supported")
    assert kept == strict.render([HELLO])[0]


def test_a_null_key_of_a_message_is_absent(strict: PromptRenderer) -> None:
    named = text(strict, [{"role": "user", "content": "Hi", "name": "Ann"}])
    assert "(Ann)" in named
    assert text(strict, [{"role": "user", "content": "Hi", "name": None}]) == named.replace(" (Ann)", "")


def test_tools_are_part_of_the_prompt(strict: PromptRenderer) -> None:
    with_tools = PromptRenderer(strict.tokenizer, tools=[WEATHER])
    assert '"name": "weather"' in text(with_tools, HELLO)


def test_template_arguments_reach_the_template(strict: PromptRenderer) -> None:
    assert text(PromptRenderer(strict.tokenizer, template_kwargs={"shout": True}), HELLO).endswith("!")


LLAMA_LIKE = (
    "{% if not tools is defined %}{% set tools = none %}{% endif %}"
    "{% if tools is not none %}Environment: ipython\n{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}{% if 'tool_calls' in message %}"
    "{% if message.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls') }}{% endif %}"
    "{{ message.tool_calls[0].function.name }}({{ message.tool_calls[0].function.arguments | tojson }})"
    "{% else %}{{ message.role }}: {{ message.content }}\n{% endif %}{% endfor %}"
)
"""Asks whether there is a list of tools or of calls, not whether there is anything in it."""


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("of_dataset", [None, [], [WEATHER]])
def test_a_list_of_no_tools_is_no_tools(policy: Path, fast: bool, of_dataset: list | None) -> None:
    """Also where the dataset has tools: a row says that it has none of them."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = LLAMA_LIKE
    renderer = PromptRenderer(tokenizer, tools=of_dataset, fast=fast)
    (without,) = PromptRenderer(tokenizer).render([HELLO])
    (none, default) = renderer.render([HELLO, HELLO], [[], None])
    assert none == without
    assert (default == without) == (not of_dataset)
    renderer.verify(HELLO, [], np.array(none.ids))


@pytest.mark.parametrize("fast", [True, False])
def test_a_list_of_no_tool_calls_is_no_tool_calls(policy: Path, fast: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = LLAMA_LIKE
    said = {"role": "assistant", "content": "Hi."}
    plain, empty = PromptRenderer(tokenizer, fast=fast).render(
        [[*HELLO, said, *HELLO], [*HELLO, {**said, "tool_calls": []}, *HELLO]]
    )
    assert plain.ids is not None
    assert plain == empty


@pytest.mark.parametrize(
    "argument", ["add_generation_prompt", "continue_final_message", "tools", "tokenize", "max_length"]
)
def test_arguments_that_the_renderer_sets_are_refused_by_name(policy: Path, argument: str) -> None:
    with pytest.raises(InputError, match=f"apply_chat_template_kwargs.*{argument}"):
        PromptRenderer.load(policy, template_kwargs={argument: True})


def saved(policy: Path, folder: Path, template: str | dict[str, str]) -> Path:
    """The demo policy's tokenizer, with another chat template, in a folder of its own."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


SWITCH = (
    "{% if not enable_thinking is defined %}{% set enable_thinking = true %}{% endif %}"
    "{% macro turn(m) %}{{ m.content }}{% if style == 'loud' %}!{% endif %}{% endmacro %}"
    "{% for m in messages %}{{ turn(m) }}{% endfor %}{{ enable_thinking }}{% set seen = 1 %}"
)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("enable_thinkign", "did you mean enable_thinking?"),
        ("seen", "the policy's chat template does not read"),
        ("message", "the policy's chat template does not read"),
        ("enable_thinking", None),
        ("style", None),
    ],
)
def test_a_setting_that_nobody_reads_is_refused_with_the_nearest_name(
    policy: Path, tmp_path: Path, name: str, hint: str | None
) -> None:
    folder = saved(policy, tmp_path / "policy", SWITCH)
    if hint is None:
        assert PromptRenderer.load(folder, template_kwargs={name: False})
        return
    with pytest.raises(InputError) as refused:
        PromptRenderer.load(folder, template_kwargs={name: False})
    assert f"data.apply_chat_template_kwargs.{name}" in str(refused.value)
    assert hint in str(refused.value)


def test_a_setting_of_the_template_for_tools_alone_is_known(policy: Path, tmp_path: Path) -> None:
    both = {"default": "{{ messages[0].content }}", "tool_use": "{{ messages[0].content }}{{ style }}"}
    assert PromptRenderer.load(saved(policy, tmp_path / "p", both), template_kwargs={"style": 1})
    with pytest.raises(InputError, match=r"did you mean style\?"):
        PromptRenderer.load(tmp_path / "p", template_kwargs={"styl": 1})


def test_settings_are_those_of_a_template_given_among_them(policy: Path) -> None:
    own = "{{ messages[0].content }}{{ style }}"
    assert PromptRenderer.load(policy, template_kwargs={"chat_template": own, "style": 1})
    with pytest.raises(InputError, match=r"apply_chat_template_kwargs\.style"):
        PromptRenderer.load(policy, template_kwargs={"style": 1})


def test_a_policy_that_does_not_load_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"{tmp_path}.*tokenizer does not load"):
        PromptRenderer.load(tmp_path)


def test_a_tokenizer_without_a_chat_template_is_refused(policy: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="chat_template"):
        PromptRenderer.load(tmp_path)


def test_the_stamp_is_the_same_for_the_same_pieces(policy: Path, renderer: PromptRenderer) -> None:
    assert PromptRenderer.load(policy).stamp == renderer.stamp
    renderer.stamp.require(renderer.stamp.parts, "a shard")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"tools": [WEATHER]}, "tools"),
        ({"template_kwargs": {"enable_thinking": False}}, "template kwargs"),
    ],
)
def test_a_changed_piece_changes_the_stamp_and_is_named(
    renderer: PromptRenderer, change: dict, part: str
) -> None:
    changed = PromptRenderer(renderer.tokenizer, **change)
    assert changed.stamp.fingerprint != renderer.stamp.fingerprint
    with pytest.raises(InputError, match=f"another {part}"):
        changed.stamp.require(renderer.stamp.parts, "a shard")


def test_a_changed_template_changes_the_stamp(renderer: PromptRenderer, strict: PromptRenderer) -> None:
    with pytest.raises(InputError, match="another chat template"):
        strict.stamp.require(renderer.stamp.parts, "a shard")


def test_data_without_a_stamp_is_refused(renderer: PromptRenderer) -> None:
    with pytest.raises(InputError, match="chat template and template kwargs and tokenizer and tools"):
        renderer.stamp.require({}, "a shard")


def test_another_tokenizer_file_changes_the_stamp(
    policy: Path, renderer: PromptRenderer, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="another tokenizer,"):
        PromptRenderer.load(tmp_path).stamp.require(renderer.stamp.parts, "a shard")


def test_another_bos_token_changes_the_stamp(policy: Path, renderer: PromptRenderer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy, bos_token="<|endoftext|>")
    with pytest.raises(InputError, match="another tokenizer,"):
        PromptRenderer(tokenizer).stamp.require(renderer.stamp.parts, "a shard")


def test_another_processor_changes_the_stamp(renderer: PromptRenderer) -> None:
    media = SimpleNamespace(stamp_parts={"image_processor": "0" * 32})
    with_media = PromptRenderer(renderer.tokenizer, media=media)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="another image processor,"):
        with_media.stamp.require(renderer.stamp.parts, "a shard")


def test_a_template_argument_that_is_no_json_is_refused_by_name(policy: Path) -> None:
    with pytest.raises(InputError, match=r"apply_chat_template_kwargs\.day.*found a date.*quotes"):
        PromptRenderer.load(policy, template_kwargs={"day": date(2026, 1, 1)})
