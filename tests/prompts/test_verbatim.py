"""Which templates only copy contents: those that are proven to are rendered by joining, and read the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment, TemplateError, TemplateSyntaxError
from transformers.utils.chat_template_utils import _compile_jinja_template

from rl_assets.prompts.render import PromptRenderer
from rl_assets.prompts.skeleton import Skeletons
from rl_assets.prompts.templates import ChatTemplate
from rl_assets.prompts.verbatim import is_verbatim
from tests.prompts.families import FAMILIES, WEATHER, tokenizer_with

LOOP = "{%% for m in messages %%}%s{%% endfor %%}"
VARIABLES = {"bos_token": "<s>", "add_generation_prompt": True, "tools": None, "one": 1}
WORDS = [
    "a",
    " b ",
    "<think>x</think>y",
    "\n",
    "&<'\"",
    "{{ m }}",
    "0",
    "\ue000<&'\"{{ 0 }}Aé>\ue001",
    "\x1fé\u3000",
]
CHATS = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "tool"]),
            "content": st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        }
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def sandbox() -> Environment:
    return _compile_jinja_template("").environment


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content }}",
        "{{ messages[-1]['content'] | trim }}",
        LOOP % "{{ m.role + ': ' + m.content.strip() ~ '\n' }}",
        LOOP % "{% if m.content %}{{ m.content }}{% endif %}",
        LOOP % "{% if loop.previtem is defined and loop.previtem.role == m.role %}{{ m.content }}{% endif %}",
        LOOP % "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content | upper }}{% endif %}",
        LOOP % "{% if m.content is not string %}{{ m.content[0].text }}{% else %}{{ m.content }}{% endif %}",
        LOOP % "{% set c = m.content if m.content is string else '' %}{{ c }}",
        LOOP % "{% if 'tool_calls' in m %}x{% endif %}{% for call in m.tool_calls %}{{ call }}{% endfor %}",
        "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% else %}{% set s = false %}"
        "{% endif %}{% for m in messages[1:] %}{% if s != false %}{{ s }}{% endif %}"
        "{{ m.content }}{% endfor %}",
        "{% set messages = messages[1:] %}" + LOOP % "{{ m.content }}",
        LOOP % "{% if m.role != 'user' %}{{ raise_exception('not ' + m.content) }}{% endif %}{{ m.content }}",
        LOOP % "{% set said %}[{{ m.content }}]{% endset %}{{ said }}",
        "{% macro end(n) %}<{{ n }}>{% endmacro %}" + LOOP % "{{ m.content }}{{ end(loop.index) }}",
        "{% set ns = namespace(n=0) %}" + LOOP % "{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m.content }}",
    ],
)
def test_a_template_that_copies_is_proven(sandbox: Environment, source: str) -> None:
    assert is_verbatim(source, sandbox)


@pytest.mark.parametrize(
    "part",
    [
        "{{ m }}",
        "{{ m | tojson }}",
        "{{ m.items() | list }}",
        "{{ m['items'] }}",
        "{{ m.content | upper }}",
        "{{ m.content | tojson }}",
        "{{ m.content | length }}",
        "{{ m.content | trim('x') }}",
        "{{ ('a' + m.content) | trim }}",
        "{{ m.content.split('a')[0] }}",
        "{{ m.content.lstrip() }}",
        "{{ m.content[:2] }}",
        "{{ m.content * 2 }}",
        "{{ '%s' % m.content }}",
        "{{ '{}'.format(m.content) }}",
        "{{ [m.content] }}",
        "{{ m.content | safe }}",
        "{{ '<b>' | safe + m.content }}",
        "{{ m.content == 'a' }}",
        "{{ 'a' in m.content }}",
        "{{ m.content is eq('a') }}",
        "{{ m.content is in(['a']) }}",
        "{{ m.content > '' }}",
        "{% if m.content | length > 3 %}x{% endif %}",
        "{% for c in m.content %}{{ c }}{% endfor %}",
        "{% for key in m %}{{ m[key] }}{% endfor %}",
        "{% for k, v in m.items() %}{{ v }}{% endfor %}",
        "{% for role, content in messages %}{{ content }}{% endfor %}",
        "{% for x in messages if x.content == m.content %}x{% endfor %}",
        "{% set c = m.content %}{% if c.startswith('a') %}x{% endif %}",
        "{% set ns = namespace(c='') %}{% set ns.c = m.content %}{{ ns.c | upper }}",
        "{% set ns = namespace(c=m.content) %}{{ ns.c | upper }}",
        "{% macro shout(c) %}{{ c | upper }}{% endmacro %}{{ shout(m.content) }}",
        "{% macro first() %}{{ messages[0].content }}{% endmacro %}{{ first() | upper }}",
        "{% set c %}{{ m.content }}{% endset %}{{ c | upper }}",
        "{% set c | upper %}{{ m.content }}{% endset %}{{ c }}",
        "{% filter upper %}{{ m.content }}{% endfilter %}",
        "{{ messages | map(attribute='content') | join }}",
        "{{ messages | tojson }}",
        "{{ (messages + [{'content': 'x'}])[0].content | upper }}",
        "{{ {'a': 1}[m.content] }}",
        "{{ dict(m) }}",
        "{{ range(m.content | length) | list }}",
        "{{ ['a', 'b'] | random }}",
        "{{ lipsum() }}",
        "{{ loop.previtem.content | upper }}",
        "{{ loop.changed(m.content) }}",
        "{{ m.content if m.content != 'a' else 'b' }}",
        "{% if m.content is string %}{% else %}{% set x = messages %}{% for m in x %}{{ m.content | upper }}"
        "{% endfor %}{% endif %}",
        "{% set m = m.content %}{{ m.role }}",
        "{% include 'x' %}",
    ],
)
def test_one_that_looks_into_a_content_is_not(sandbox: Environment, part: str) -> None:
    assert not is_verbatim(LOOP % part, sandbox)


def joined_alike(sandbox: Environment, source: str, chats: list[list[dict[str, str]]]) -> int:
    """Hold joining against rendering; how many prompts were joined."""
    template, joined = sandbox.from_string(source), 0

    def render(messages: Any) -> str:
        return template.render(messages=messages, **VARIABLES)

    skeletons = Skeletons(render, lambda text, messages: True)
    for chat in chats:
        skeletons(chat)
        if (text := skeletons(chat)) is not None:
            assert text == render(chat)
            joined += 1
    return joined


@given(chats=st.lists(CHATS, min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("family", ["llama", "gemma", "mistral"])
def test_a_family_is_joined_as_it_is_rendered(sandbox: Environment, family: str, chats: Any) -> None:
    source = FAMILIES[family]
    assert is_verbatim(source, sandbox)
    joined_alike(sandbox, source, chats)


def templates() -> st.SearchStrategy[str]:
    """Templates put together at random, of parts that copy and of parts that look."""
    of_message = ["m.content", "m.role", "m['content']", "m", "m.name", "messages[0].content", "messages[-1]"]
    values = st.sampled_from(
        [*of_message, "c", "d", "'x'", "' y '", "one", "none", "loop.first", "loop.nextitem"]
    )
    unary = ["%s | trim", "(%s).strip()", "%s | upper", "%s | length", "not %s", "(%s)[1:]", "%s is string"]
    unary += ["%s is none", "%s | default('z')", "%s.content", "(%s) | first", "%s | string"]
    binary = ["%s + %s", "%s ~ %s", "%s == %s", "%s in %s", "%s or %s", "%s and %s", "(%s if %s else 'e')"]

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        one = st.tuples(st.sampled_from(unary), inner).map(lambda pair: pair[0] % f"({pair[1]})")
        two = st.tuples(st.sampled_from(binary), inner, inner).map(lambda three: three[0] % three[1:])
        return one | two

    expressions = st.recursive(values, larger, max_leaves=4)
    statements = st.recursive(
        expressions.map("{{{{ {} }}}}".format)
        | st.tuples(st.sampled_from("cdm"), expressions).map("{{% set {0[0]} = {0[1]} %}}".format)
        | st.just("-"),
        lambda inner: (
            st.tuples(expressions, inner, inner).map(
                "{{% if {0[0]} %}}{0[1]}{{% else %}}{0[2]}{{% endif %}}".format
            )
            | inner.map("{{% for m in messages[1:] %}}{}{{% endfor %}}".format)
            | inner.map("{{% set c %}}{}{{% endset %}}".format)
            | st.tuples(inner, inner).map("".join)
        ),
        max_leaves=5,
    )
    return st.lists(statements, min_size=1, max_size=3).map(lambda parts: LOOP % "".join(parts))


@given(source=templates(), chats=st.lists(CHATS, min_size=4, max_size=8))
@settings(max_examples=400, deadline=None)
def test_whatever_template_is_proven_is_joined_as_it_is_rendered(
    sandbox: Environment, source: str, chats: Any
) -> None:
    try:
        if is_verbatim(source, sandbox):
            joined_alike(sandbox, source, chats)
    except (TemplateSyntaxError, TypeError, TemplateError):  # the template's own mistake, on any content
        pass


def test_blank_and_structured_contents_are_left_to_the_engine(policy: Path) -> None:
    template = ChatTemplate(tokenizer_with(policy, FAMILIES["llama"]), {})
    left: list[list[dict[str, Any]]] = [
        [{"role": "user", "content": " \u3000"}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        [{"role": "user", "content": "a", "name": "b"}],
        [{"role": "user"}],
    ]
    for chat in left:
        assert template.copied(chat) is None
        assert template.copied(chat) is None


def test_roles_seen_once_are_not_worth_a_skeleton(policy: Path) -> None:
    template = ChatTemplate(tokenizer_with(policy, FAMILIES["mistral"]), {})
    chat = [{"role": "user", "content": "a"}]
    assert [template.copied(chat) is None for _ in range(3)] == [True, False, False]
    refused = [{"role": "nobody", "content": "a"}]
    assert [template.copied(refused) is None for _ in range(3)] == [True, True, True]


def test_a_message_that_the_template_leaves_out_is_not_passed_over(policy: Path) -> None:
    source = LOOP % "{% if m.role != 'system' %}{{ m.content }}{% endif %}"
    template = ChatTemplate(tokenizer_with(policy, source), {})
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    template.copied(chat)
    assert template.copied(chat) is None
    (rendered,) = PromptRenderer(tokenizer_with(policy, source)).render([chat])
    assert [(lost.code, lost.path) for lost in rendered.lost] == [("render.text_lost", "prompt[0].content")]


@pytest.mark.parametrize("tools", [None, [WEATHER]], ids=["no tools", "tools"])
def test_the_renderers_own_tools_are_joined_too(policy: Path, tools: Any) -> None:
    template = ChatTemplate(tokenizer_with(policy, FAMILIES["llama"]), {}, tools)
    chat = [{"role": "user", "content": "a"}]
    template.copied(chat, tools)
    assert template.copied(chat, tools) == template.render_plainly(chat, tools)
    assert template.copied(chat, [WEATHER]) is None  # a row's own


def test_a_template_that_asks_for_the_time_is_never_joined(policy: Path) -> None:
    template = ChatTemplate(
        tokenizer_with(policy, "{{ strftime_now('%H:%M:%S') }}" + LOOP % "{{ m.content }}"), {}
    )
    assert template.skeletons is None


@pytest.mark.parametrize("mark", ["\ue000<&'\"{{ 0 }}Aé>\ue001", "\ue001</0>\ue000", "\x1c\u2003\x1f"])
@pytest.mark.parametrize(
    "where", [lambda mark: mark + "{{ m.content }}", lambda mark: "{{ m.role }}{{ m.content }}"]
)
def test_a_template_that_writes_the_marks_itself_reads_the_same(
    sandbox: Environment, mark: str, where: Callable[[str], str]
) -> None:
    chat = [{"role": mark, "content": "a"}]
    joined_alike(sandbox, LOOP % where(mark), [chat, chat])
