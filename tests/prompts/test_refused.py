"""A rendered prompt has every text of its messages: one that a template drops is not sent to the policy."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_assets.prompts.render import PromptRenderer
from rl_assets.prompts.templates import ChatTemplate
from rl_assets.prompts.whole import lost_text
from tests.prompts.families import FAMILIES, LLAMA, MISTRAL, QWEN
from tests.prompts.processors import tokenizer

TEXTS = st.text(max_size=12).filter(str.strip)
CHATS = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "user", "assistant", "tool"]),
        TEXTS | st.lists(TEXTS.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=5,
)


def texts(message: dict[str, Any]) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@given(messages=CHATS, order=st.randoms(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_nothing_is_lost_where_a_template_copies(messages: list, order: Any, data: st.DataObject) -> None:
    """In whatever order, trimmed or not."""
    pieces = [
        data.draw(st.sampled_from([said, said.strip()])) for message in messages for said in texts(message)
    ]
    assert lost_text("|".join(pieces), messages) is None
    order.shuffle(pieces)
    assert lost_text("|".join(pieces), messages) is None


@given(messages=CHATS, data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_text_that_is_nowhere_is_lost_and_named(messages: list, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(messages) - 1))
    messages[number] = {"role": "user", "content": "\ue000 lost"}
    rendered = "|".join(said for message in messages for said in texts(message)).replace("\ue000", "")
    assert lost_text(rendered, messages) == (
        f"prompt[{number}].content",
        "a text that is not in the rendered prompt",
    )


@pytest.mark.parametrize("twice", [["a", "a"], ["a b", "b", "a b"], ["a", "x a y", "a", "a"]])
def test_a_text_that_is_said_twice_is_rendered_twice(twice: list[str]) -> None:
    messages = [{"role": "user", "content": said} for said in twice]
    assert lost_text(" ".join(twice), messages) is None
    assert lost_text(" ".join(twice[1:]).replace("a", "", 1), messages) is not None


@pytest.mark.parametrize(
    ("template", "messages", "path"),
    [
        # A role that it does not know, and parts where it takes text alone.
        (QWEN, [{"role": "developer", "content": "Be brief."}, *user("2 + 2?")], "prompt[0].content"),
        (QWEN, user([{"type": "text", "text": "2 + 2?"}]), "prompt[0].content"),
        # As in templates of vision-language policies: text alone where it takes parts.
        (
            "{% for m in messages %}{% for p in m.content | selectattr('type', 'equalto', 'text') %}"
            "{{ p.text }}{% endfor %}{% endfor %}!",
            user("2 + 2?"),
            "prompt[0].content",
        ),
        # `trim` writes a list as Python does.
        (LLAMA, user([{"type": "text", "text": "2 + 2?"}]), "prompt[0].content"),
    ],
)
def test_a_text_that_a_text_row_loses_is_named(template: str, messages: list, path: str) -> None:
    renderer = PromptRenderer(tokenizer(template))
    good = [{"role": "user", "content": [{"type": "text", "text": "a"}]}] if "parts" in template else None
    (rendered,) = renderer.render([messages])
    assert [(lost.code, lost.path) for lost in rendered.lost] == [("render.text_lost", path)]
    assert good is None or not renderer.render([good])[0].lost


SYSTEM = {"role": "system", "content": "Be brief. /no_think"}


@pytest.mark.parametrize(
    ("template", "messages"),
    [
        # The system message goes into the last question.
        (MISTRAL, [SYSTEM, *user("a"), {"role": "assistant", "content": "b"}, *user("c")]),
        # A tool's answer is written as JSON.
        (
            "{% for m in messages %}{{ m.content | tojson if m.role == 'tool' else m.content }}{% endfor %}",
            [*user("a"), {"role": "tool", "content": 'é said "hi"\n\\'}],
        ),
        # A switch is taken out of the text.
        (
            "{% for m in messages %}{{ m.content | replace('/no_think', '') }}{% endfor %}",
            [SYSTEM, *user("a")],
        ),
        # Reasoning is left out.
        (QWEN, [*user("a"), {"role": "assistant", "content": "<think>b</think>c"}, *user("d")]),
    ],
)
def test_a_text_that_is_written_otherwise_is_there(template: str, messages: list) -> None:
    (rendered,) = PromptRenderer(tokenizer(template)).render([messages])
    assert rendered.error is None
    assert not rendered.lost


@pytest.fixture(scope="module")
def families() -> dict[str, ChatTemplate]:
    return {name: ChatTemplate(tokenizer(source), {}) for name, source in FAMILIES.items()}


@pytest.mark.parametrize("family", sorted(FAMILIES))
@given(content=st.text(min_size=1).filter(str.strip))
@settings(max_examples=40, deadline=None)
def test_no_family_loses_any_text(families: dict[str, ChatTemplate], family: str, content: str) -> None:
    assert lost_text(families[family].render(user(content)), user(content)) is None
