"""All that a row gives the chat template is in the rendered prompt, or what it lost is named."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_assets.prompts.render import PromptRenderer
from tests.prompts.families import LLAMA, QWEN, WEATHER
from tests.prompts.processors import tokenizer

TURNS = (
    "{%% for m in messages %%}<{{ m.role }}>{{ m.content or '' }}"
    "{%% for c in m.tool_calls or [] %%}%s{%% endfor %%}</>{%% endfor %%}"
)
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}</>{% endfor %}<assistant>"
AS_JSON = "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}" + (
    TURNS % "(call {{ c.function.name }} {{ c.function.arguments | tojson }})"
)
ITEMS = "{% for t in tools or [] %}{{ t.function | tojson(indent=2) }}{% endfor %}" + (
    TURNS % "{{ c.function.name }}{% for k, v in c.function.arguments | items %}<{{ k }}={{ v }}>{% endfor %}"
)
PYTHONIC = "{% if tools is not none %}{{ tools }}{% endif %}" + (TURNS % "{{ c }}")
LINES = (
    "{% macro of(s) %}{% for k, v in s | items %}{% if v is mapping %}{{ k }}: {{ of(v) }}"
    "{% else %}{{ k }} = {{ v }}{% endif %}\n{% endfor %}{% endmacro %}"
    "{% for t in tools or [] %}// {{ t.function.description | default('') | replace('\n', '\n// ') }}\n"
    "{{ t.function.name }}({{ of(t.function.parameters | default({})) }}){% endfor %}"
) + (TURNS % "{{ c.function.name }}: {{ c.function.arguments | string }}")
ONE_CALL = (
    "{% for m in messages %}{% if 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call at a time') }}{% endif %}"
    "{% set c = m.tool_calls[0].function %}{{ c.name }}{{ c.arguments | tojson }}"
    "{% else %}{{ m.role }}: {{ m.content | trim }}{% endif %}\n{% endfor %}"
)
"""Writes no text beside a call, no second call, and no tool."""
NAMES = "{% for t in tools or [] %}{{ t.function.name }}, {% endfor %}" + (TURNS % "{{ c.function.name }}")
PICKY = (
    "{% for t in tools or [] %}{% if t.function.name | length < 9 %}{{ t | tojson }}{% endif %}{% endfor %}"
    + (
        TURNS % "{% for k, v in c.function.arguments | items %}{% if v %}{{ c.function.name }} {{ k }}="
        "{{ v | tojson }}{% endif %}{% endfor %}"
    )
)
"""Looks into values: long names of tools are left out, and arguments that are not true."""
STYLES = {
    "plain": PLAIN,
    "json": AS_JSON,
    "items": ITEMS,
    "pythonic": PYTHONIC,
    "lines": LINES,
    "one call": ONE_CALL,
    "names": NAMES,
    "picky": PICKY,
    "qwen": QWEN,
    "llama": LLAMA,
}
WRITES_ALL = ["json", "items", "pythonic", "lines"]

WORD = st.text("abcxyz ABC\n'\"<>&\\éß你3", min_size=1, max_size=9).filter(str.strip)
NAME = st.from_regex(r"[a-z][a-z_]{0,11}", fullmatch=True)
SCALAR = (
    WORD | st.integers(-(10**20), 10**20) | st.booleans() | st.none() | st.floats(allow_nan=False, width=32)
)
SCALAR = SCALAR.filter(lambda value: value not in (float("inf"), float("-inf")))
JSON = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=3),
    max_leaves=4,
)
PARAMETER = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer"])},
    optional={"description": WORD, "enum": st.lists(WORD, min_size=1, max_size=2), "maximum": st.integers(1)},
)
TOOL = st.builds(
    lambda function, parameters: {
        "type": "function",
        "function": {
            **function,
            "parameters": {"type": "object", "properties": parameters, "required": sorted(parameters)[:1]},
        },
    },
    st.fixed_dictionaries({"name": NAME}, optional={"description": WORD}),
    st.dictionaries(NAME, PARAMETER, max_size=3),
)
CALL = st.builds(
    lambda name, arguments: {
        "id": "c00000001",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    },
    NAME,
    st.dictionaries(NAME, JSON, max_size=3),
)
ASSISTANT = st.builds(
    lambda content, calls: {
        "role": "assistant",
        "content": content,
        **({"tool_calls": calls} if calls else {}),
    },
    WORD | st.just("") | WORD.map(lambda said: f"<think>\n{said}\n</think>\n\n{said}"),
    st.lists(CALL, max_size=2),
)
MESSAGE = ASSISTANT | st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "tool", "system"]),
    WORD,
)
CHAT = st.lists(MESSAGE, max_size=4).map(lambda chat: [*chat, {"role": "user", "content": "Go on."}])


def renderer(template: str, **options: Any) -> PromptRenderer:
    return PromptRenderer(tokenizer(template), **options)


def texts_of(value: Any, *, keys: bool = True) -> list[str]:
    """All texts in a value, and keys of objects where they are data."""
    if isinstance(value, dict):
        inner = [text for one in value.values() for text in texts_of(one, keys=keys)]
        return [*(value if keys else ()), *inner]
    if isinstance(value, list):
        return [text for one in value for text in texts_of(one, keys=keys)]
    return [value] if isinstance(value, str) else []


def given_texts(chat: list[dict[str, Any]], tools: list[Any] | None) -> dict[str, list[str]]:
    """By code, the texts that a template must write; found in another way than the code that is tested."""
    found: dict[str, list[str]] = {
        "render.text_lost": [],
        "render.tools_lost": [],
        "render.tool_calls_lost": [],
    }
    for message in chat:
        found["render.text_lost"].append(message["content"].rpartition("</think>")[2])
        for call in message.get("tool_calls", ()):
            function = call["function"]
            found["render.tool_calls_lost"] += [function["name"], *texts_of(function["arguments"])]
    for tool in tools or ():
        function = tool["function"]
        found["render.tools_lost"] += [function["name"], function.get("description", "")]
        for name, schema in function["parameters"]["properties"].items():
            found["render.tools_lost"] += [name, schema.get("description", ""), *schema.get("enum", ())]
    return found


def is_in(text: str, said: str) -> bool:
    """Whether a text has another one: as it is, or in the escapes of JSON, of Python, or of a comment."""
    said = said.strip()
    forms = (said, json.dumps(said, ensure_ascii=False)[1:-1], repr(said)[1:-1], repr(f"'{said}")[2:-1])
    return any(form in text for form in (*forms, said.replace("\n", "\n// ")))


@pytest.fixture(scope="module")
def renderers() -> dict[str, PromptRenderer]:
    return {name: renderer(source) for name, source in STYLES.items()}


@pytest.mark.parametrize("style", sorted(STYLES))
@given(chat=CHAT, tools=st.none() | st.lists(TOOL, max_size=2))
@settings(max_examples=60, deadline=None)
def test_every_text_is_rendered_or_the_row_says_which_kind_was_lost(
    renderers: dict[str, PromptRenderer], style: str, chat: list, tools: Any
) -> None:
    one = renderers[style]
    before = deepcopy((chat, tools))
    (text,), refused, lost = one.texts([chat], [tools])
    assert (chat, tools) == before
    if not refused and not lost:
        assert text == one.template.render_plainly(chat, tools or None)
        for code, said in given_texts(chat, tools).items():
            assert [one for one in said if not is_in(text, one)] == [], code
    elif lost:
        codes = {finding.code for finding in lost[0]}
        assert codes <= {"render.text_lost", "render.tools_lost", "render.tool_calls_lost"}
        assert style not in WRITES_ALL, lost
    else:
        assert refused[0].code == "render.template_error"


@pytest.mark.parametrize("style", WRITES_ALL)
@given(chat=CHAT, tools=st.none() | st.lists(TOOL, max_size=2))
@settings(max_examples=60, deadline=None)
def test_a_template_that_writes_all_of_it_loses_no_row(
    renderers: dict[str, PromptRenderer], style: str, chat: list, tools: Any
) -> None:
    texts, refused, lost = renderers[style].texts([chat], [tools])
    assert not refused
    assert not lost
    assert texts[0]


ASK = [{"role": "user", "content": "What is 3 * 4, says weather of Paris?"}]


def called(**function: Any) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "multiply", "arguments": {}, **function}}
    return [
        *ASK,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12"},
    ]


@pytest.mark.parametrize(
    ("template", "chat", "tools", "code", "path"),
    [
        # Its name is in the question, by chance.
        (PLAIN, ASK, [WEATHER], "render.tools_lost", "tools[0].function.name"),
        (NAMES, ASK, [WEATHER], "render.tools_lost", "tools[0].function.parameters.properties.city"),
        (PLAIN, called(), None, "render.tool_calls_lost", "prompt[1].tool_calls[0].function.name"),
        (
            PLAIN,
            called(name="weather"),
            None,
            "render.tool_calls_lost",
            "prompt[1].tool_calls[0].function.name",
        ),
        (
            NAMES,
            called(arguments={"a": 3}),
            None,
            "render.tool_calls_lost",
            "prompt[1].tool_calls[0].function.arguments.a",
        ),
        (
            PICKY,
            called(arguments={"a": False, "b": 1}),
            None,
            "render.tool_calls_lost",
            "prompt[1].tool_calls[0].function.arguments.a",
        ),
        # The second tool has a name that this template does not like.
        (
            PICKY,
            ASK,
            [WEATHER, {"type": "function", "function": {"name": "weather_tomorrow"}}],
            "render.tools_lost",
            "tools[1].function.name",
        ),
        # An assistant's words beside a call.
        (
            ONE_CALL,
            [*ASK, {**called()[1], "content": "I multiply."}, called()[2]],
            None,
            "render.text_lost",
            "prompt[1].content",
        ),
        (
            "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}",
            [*ASK, {"role": "assistant", "content": "12"}, {"role": "user", "content": "Is 12 right?"}],
            None,
            "render.text_lost",
            "prompt[1].content",
        ),
    ],
)
@pytest.mark.parametrize("fast", [True, False])
def test_what_a_template_loses_is_named(
    template: str, chat: list, tools: Any, code: str, path: str, fast: bool
) -> None:
    one = renderer(template, fast=fast)
    for rendered in one.render([chat] * 3, [tools] * 3):
        assert (bool(rendered.ids), rendered.code) == (True, None)
        assert [(one.code, one.path) for one in rendered.lost] == [(code, path)]


def test_tools_of_every_row_are_looked_for_where_rows_are_joined() -> None:
    plain, writes = renderer(PLAIN, tools=[WEATHER]), renderer(AS_JSON, tools=[WEATHER])
    lost = [finding.code for one in plain.render([ASK] * 4) for finding in one.lost]
    assert lost == ["render.tools_lost"] * 4
    assert not any(one.lost for one in writes.render([ASK] * 4))
    assert not any(one.lost for one in plain.render([ASK] * 4, [[]] * 4))


def test_a_template_that_refuses_marks_is_searched_by_value() -> None:
    source = "{% if tools and tools[0].function.name != 'weather' %}{{ raise_exception('?') }}{% endif %}"
    (whole,) = renderer(source + AS_JSON).render([ASK], [[WEATHER]])
    (lacking,) = renderer(source + PLAIN).render([ASK], [[WEATHER]])
    assert not whole.lost
    assert [finding.code for finding in lacking.lost] == ["render.tools_lost"]


def test_what_templates_drop_on_purpose_refuses_nothing() -> None:
    chat = [
        {"role": "user", "content": "2 + 2? /no_think", "name": "ann"},
        {"role": "assistant", "content": "<think>two and two</think>4", "reasoning_content": "two and two"},
        {"role": "user", "content": "sure?"},
    ]
    source = (
        "{% for m in messages %}{{ m.role }} {{ m.content.split('</think>')[-1] | replace('/no_think', '') }}"
        "{% endfor %}{% for t in tools or [] %}{{ t.function.name }} "
        "{% for k in t.function.parameters.properties %}{{ k }}"
        "{% if k not in t.function.parameters.required %}?{% endif %}{% endfor %}{% endfor %}"
    )
    tool = {
        "type": "function",
        "function": {
            "name": "f",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"type": {"type": "integer", "title": "Type"}},
                "required": ["type"],
                "additionalProperties": False,
            },
        },
    }
    (rendered,) = renderer(source).render([chat], [[tool]])
    assert rendered.error is None
    assert not rendered.lost


def test_a_shape_is_marked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = renderer(AS_JSON)
    chats = [called(arguments={"a": number, "b": f"of {number}"}) for number in range(1, 60)]
    assert not any(rendered.lost for rendered in one.render(chats, [[WEATHER]] * len(chats)))
    assert len(one.template.whole._shapes) == 1
