"""Tools of a row and calls in its messages: JSON text becomes objects, empty lists say nothing, and what a
columnar file filled in is taken out again."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_assets.contract.rules.draft import without_null_keys
from rl_assets.prompts.render import PromptRenderer
from tests.contract.rows import accepted, errors, judge, row, run
from tests.prompts.families import tokenizer_with

USER = {"role": "user", "content": "3 times 18?"}
ANSWER = {"role": "tool", "content": "54", "tool_call_id": "1"}


def schema(name: str = "calc", **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def calling(arguments: Any, **more: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "mul", "arguments": arguments}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call], **more}
    return row(prompt=[USER, turn, ANSWER])


def arguments(result: dict[str, Any]) -> Any:
    return result["prompt"][1]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("text", ['{"a": 3, "b": null}', ' {"a":3,"b":null}\n', "", "{}"])
def test_arguments_that_are_json_text_become_the_object(tmp_path: Path, text: str) -> None:
    result = judge(tmp_path, calling(text))
    (out,) = accepted(result)
    assert arguments(out) == json.loads(text or "{}")
    assert result.repaired["arguments_parsed"] == 1


def test_arguments_that_are_an_object_are_left_alone(tmp_path: Path) -> None:
    given_ = calling({"a": 3, "b": None, "text": '{"c": 1}'})
    result = judge(tmp_path, given_)
    assert accepted(result) == [given_]
    assert result.repaired["arguments_parsed"] == 0


@pytest.mark.parametrize("bad", ["3 * 18", "[1]", '"a"', '{"a": 1', '{"a": 1, "a": 2}', 3, [1], True])
def test_other_arguments_are_refused_by_their_path(tmp_path: Path, bad: Any) -> None:
    result = judge(tmp_path, calling(bad))
    assert errors(result) == [("prompt.tool_calls", "prompt[1].tool_calls[0].function.arguments")]


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ({"function": "mul"}, "function"),
        ({"function": {"arguments": {}}}, "function.name"),
        ({"type": "function"}, "name"),
        ({"name": "mul", "arguments": "3"}, "arguments"),
    ],
)
def test_a_call_of_another_form_is_refused_by_its_path(tmp_path: Path, call: Any, path: str) -> None:
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert errors(judge(tmp_path, row(prompt=[USER, turn, ANSWER]))) == [
        ("prompt.tool_calls", f"prompt[1].tool_calls[0].{path}")
    ]


def test_a_call_may_be_the_function_alone(tmp_path: Path) -> None:
    turn = {"role": "assistant", "content": "", "tool_calls": [{"name": "mul", "arguments": '{"a": 3}'}]}
    (out,) = accepted(judge(tmp_path, row(prompt=[USER, turn, ANSWER])))
    assert out["prompt"][1]["tool_calls"] == [{"name": "mul", "arguments": {"a": 3}}]


@pytest.mark.parametrize("kind", [pa.null(), pa.struct([("id", pa.string())])])
def test_an_empty_list_of_calls_is_none_at_all(tmp_path: Path, kind: pa.DataType) -> None:
    plain = [USER, {"role": "assistant", "content": "54."}, USER]
    filled = [message | {"tool_calls": []} for message in plain]
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(kind))])
    rest = pa.Table.from_pylist([row()]).drop_columns(["prompt"])
    pq.write_table(
        rest.append_column("prompt", pa.array([filled], pa.list_(message))), tmp_path / "a.parquet"
    )
    for result in (run(tmp_path, "a.parquet"), judge(tmp_path, row(prompt=filled))):
        assert accepted(result) == [row(prompt=plain)]
        assert result.repaired["empty_calls_dropped"] == 1


def test_a_call_without_content_renders_as_by_transformers(tmp_path: Path, policy: Path) -> None:
    """Of a template that cannot do without the content, the refusal is the same too."""
    openais = calling('{"a": 3}', content=None)
    (out,) = accepted(judge(tmp_path, openais))
    assert out["prompt"][1]["content"] is None
    for content in ("m['content']", "m['content'] or ''", "m.content if m.content is not none else 'NONE'"):
        template = (
            "{% for m in messages %}{{ m.role + ':' + (" + content + ") }}"
            "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
        )
        renderer = PromptRenderer(tokenizer_with(policy, template))
        (made,) = renderer.render([out["prompt"]])
        settings = {"add_generation_prompt": True, "return_dict": False}
        if made.ids is not None:
            assert made.ids == renderer.tokenizer.apply_chat_template(out["prompt"], **settings)
            continue
        with pytest.raises(Exception, match=re.escape(str(made.error))):
            renderer.tokenizer.apply_chat_template(out["prompt"], **settings)


def test_tools_and_prompts_that_are_json_text_are_read_where_asked(tmp_path: Path) -> None:
    whole = row(tools=[schema(e={"type": "string", "default": None})])
    texts = [
        whole | {"tools": json.dumps(whole["tools"])},
        whole | {"tools": [json.dumps(whole["tools"][0])]},
        whole | {"prompt": json.dumps(whole["prompt"])},
    ]
    result = judge(tmp_path, *texts, parse_json=True)
    assert accepted(result) == [whole] * 3
    assert result.repaired["json_text_parsed"] == 3

    refused = judge(tmp_path, *texts)
    assert errors(refused) == [
        ("row.tools_invalid", "tools"),
        ("row.tools_invalid", "tools[0]"),
        ("prompt.not_a_list", "prompt"),
    ]
    for record in refused.rejected.rows(["message"]):
        assert "`contract.parse_json: true`" in record["message"]

    pq.write_table(pa.Table.from_pylist(texts[:1]), tmp_path / "a.parquet")
    assert accepted(run(tmp_path, "a.parquet", parse_json=True)) == [whole]


@pytest.mark.parametrize(
    ("tools", "path", "found"),
    [
        (["calc"], "tools[0]", 'the text "calc"'),
        ("calc", "tools", 'the text "calc"'),
        ([{"name": "calc", "parameters": {}}], "tools[0]", "a flat schema"),
        ([{"type": "function", "function": {}}], "tools[0]", "a function without a name"),
        ([schema(), {"type": "web_search"}], "tools[1]", "an object without `function`"),
        ([None], "tools[0]", "null"),
        ('[{"name": ', "tools", "text that is not JSON"),
        ('[{"a": 1, "a": 2}]', "tools", 'the key "a" twice'),
        ({"calc": {}}, "tools", "an object"),
    ],
)
@pytest.mark.parametrize("parse_json", [True, False])
def test_tools_of_another_form_are_refused_by_name(
    tmp_path: Path, tools: Any, path: str, found: str, parse_json: bool
) -> None:
    result = judge(tmp_path, row(tools=tools), parse_json=parse_json)
    assert errors(result) == [("row.tools_invalid", path)]
    assert found in result.rejected.head(1)[0]["message"]


def test_an_empty_list_of_tools_reaches_no_template(tmp_path: Path, policy: Path) -> None:
    template = "{% if tools is not none %}TOOLS{% endif %}{{ messages[0].content }}"
    (out,) = accepted(judge(tmp_path, row(tools=[])))
    for renderer in (
        PromptRenderer(tokenizer_with(policy, template)),
        PromptRenderer(tokenizer_with(policy, template), tools=[schema()]),
    ):
        made = renderer.texts([out["prompt"]], [out["tools"]])
        assert made == ([out["prompt"][0]["content"]], {}, {})


PROPERTY = pa.struct([("type", pa.string()), ("description", pa.string())])
PROPERTIES = pa.struct([("city", PROPERTY), ("expr", PROPERTY)])
PARAMETERS = pa.struct([("type", pa.string()), ("properties", PROPERTIES)])
FUNCTION = pa.struct([("name", pa.string()), ("parameters", PARAMETERS)])
TOOLS = pa.list_(pa.struct([("type", pa.string()), ("function", FUNCTION)]))


@pytest.mark.parametrize("city", [None, {"type": None, "description": None}])
def test_a_property_that_parquet_made_of_nulls_goes(tmp_path: Path, city: Any) -> None:
    expr = {"type": "string", "description": "e"}
    table = pa.Table.from_pylist([row()])
    column = pa.array([[schema(city=city, expr=expr)]], TOOLS)
    pq.write_table(table.append_column("tools", column), tmp_path / "a.parquet")
    result = run(tmp_path, "a.parquet")
    assert accepted(result) == [row(tools=[schema(expr=expr)])]
    assert result.repaired["null_keys_dropped"] == 1


def test_a_tool_without_parameters_keeps_its_empty_properties(tmp_path: Path) -> None:
    whole = [row(tools=[schema("now"), schema(expr={"type": "string"})])]
    pq.write_table(pa.Table.from_pylist(whole), tmp_path / "a.parquet")
    assert accepted(run(tmp_path, "a.parquet")) == whole
    assert accepted(judge(tmp_path, *whole)) == whole


def test_a_call_without_arguments_keeps_an_empty_object(tmp_path: Path) -> None:
    whole = [calling({}), calling({"a": 3})]
    pq.write_table(pa.Table.from_pylist(whole), tmp_path / "a.parquet")
    assert accepted(run(tmp_path, "a.parquet")) == whole


@pytest.mark.parametrize("search", [None, {"create_kwargs": None}, {"create_kwargs": {"q": None}}])
def test_a_tool_that_the_row_does_not_use_goes(tmp_path: Path, search: Any) -> None:
    kwargs = pa.struct([("q", pa.string())])
    tool = pa.struct([("create_kwargs", kwargs)])
    info = pa.struct([("index", pa.int64()), ("tools_kwargs", pa.struct([("search", tool), ("calc", tool)]))])
    calc = {"create_kwargs": {"q": "a"}}
    rest = pa.Table.from_pylist([row(), row()]).drop_columns(["extra_info"])
    column = pa.array(
        [
            {"index": 1, "tools_kwargs": {"search": search, "calc": calc}},
            {"index": 2, "tools_kwargs": {"search": search, "calc": None}},
        ],
        info,
    )
    pq.write_table(rest.append_column("extra_info", column), tmp_path / "a.parquet")
    out = [one["extra_info"] for one in accepted(run(tmp_path, "a.parquet"))]
    assert out == [{"index": 1, "tools_kwargs": {"calc": calc}}, {"index": 2}]


def test_nulls_that_a_json_column_wrote_are_no_fillings(tmp_path: Path) -> None:
    whole = row(tools=[schema(expr={"default": None, "extra": {}})])
    table = pa.Table.from_pylist([row()])
    column = pa.array([json.dumps(whole["tools"])], pa.json_())
    pq.write_table(table.append_column("tools", column), tmp_path / "a.parquet")
    assert accepted(run(tmp_path, "a.parquet")) == [whole]


names = st.sampled_from(["type", "properties", "a", "b"])
filled = st.recursive(
    st.sampled_from(["object", "x", 0, False, None]),
    lambda inner: st.dictionaries(names, inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=12,
)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list):
        return ["[", *(leaf for item in value for leaf in leaves(item)), "]"]
    return [] if value is None else [value]


@given(st.dictionaries(names, filled, max_size=3))
def test_only_what_holds_no_value_is_taken_out(value: dict[str, Any]) -> None:
    def in_lists(value: Any) -> bool:
        if isinstance(value, dict):
            return any(map(in_lists, value.values()))
        return isinstance(value, list) and any(item is None or in_lists(item) for item in value)

    bare = without_null_keys(value)
    if not in_lists(value):
        assert leaves(bare) == leaves(value)
    assert without_null_keys(bare) == bare
