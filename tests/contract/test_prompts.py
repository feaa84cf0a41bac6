"""Prompts: which messages a policy can be given."""

from pathlib import Path

import pytest

from tests.contract.rows import ABSENT, accepted, codes, errors, judge, parts, row, said

USER = {"role": "user", "content": "Hi"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
TOOL = {"role": "tool", "content": "", "tool_call_id": "1", "name": "f"}


@pytest.mark.parametrize(
    "prompt",
    [
        [USER],
        [{"role": "system", "content": ""}, USER],
        [{"role": "developer", "content": "Be brief."}, USER, {"role": "assistant", "content": "No."}, USER],
        [USER, CALL, TOOL],
        [USER, {"role": "assistant", "content": "a", "reasoning_content": "b"}, USER],
        parts({"type": "text", "text": "Hi"}, {"type": "text", "text": ""})["prompt"],
    ],
)
def test_prompts_that_are_accepted_as_they_stand(tmp_path: Path, prompt: list[object]) -> None:
    result = judge(tmp_path, row(prompt=prompt))
    assert accepted(result) == [row(prompt=prompt)]
    assert codes(result) == set()


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        (ABSENT, ("prompt.missing", "prompt")),
        (None, ("prompt.missing", "prompt")),
        ("Hi", ("prompt.not_a_list", "prompt")),
        ({"role": "user"}, ("prompt.not_a_list", "prompt")),
        ([], ("prompt.empty", "prompt")),
        (["Hi"], ("prompt.message_not_an_object", "prompt[0]")),
        ([USER, None], ("prompt.message_not_an_object", "prompt[1]")),
        ([{"content": "Hi"}], ("prompt.unknown_role", "prompt[0].role")),
        ([{"role": "human", "content": "Hi"}], ("prompt.unknown_role", "prompt[0].role")),
        ([{"role": 3, "content": "Hi"}], ("prompt.unknown_role", "prompt[0].role")),
        ([{"from": "human", "value": "Hi"}], ("prompt.unknown_role", "prompt[0].role")),
        ([{"role": "user"}], ("prompt.content_missing", "prompt[0].content")),
        ([{"role": "user", "content": None}], ("prompt.content_missing", "prompt[0].content")),
        ([{"role": "user", "content": 3}], ("prompt.content_type", "prompt[0].content")),
        ([{"role": "user", "content": {"text": "Hi"}}], ("prompt.content_type", "prompt[0].content")),
        ([{"role": "user", "content": ""}], ("prompt.content_blank", "prompt[0].content")),
        ([{"role": "user", "content": " \n"}], ("prompt.content_blank", "prompt[0].content")),
        ([{"role": "user", "content": []}], ("prompt.content_blank", "prompt[0].content")),
        ([{"role": "user", "content": ["Hi"]}], ("prompt.part_not_an_object", "prompt[0].content[0]")),
        ([{"role": "user", "content": [{"text": "Hi"}]}], ("prompt.part_type", "prompt[0].content[0].type")),
        (
            [{"role": "user", "content": [{"type": "file"}]}],
            ("prompt.part_type", "prompt[0].content[0].type"),
        ),
        (
            [{"role": "user", "content": [{"type": ["text"]}]}],
            ("prompt.part_type", "prompt[0].content[0].type"),
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            ("prompt.part_text", "prompt[0].content[0].text"),
        ),
        ([USER | {"tool_calls": "f()"}], ("prompt.tool_calls", "prompt[0].tool_calls")),
        ([USER, {"role": "assistant", "content": "42"}], ("prompt.last_role", "prompt[1].role")),
        ([{"role": "system", "content": "Be kind."}], ("prompt.last_role", "prompt[0].role")),
    ],
)
def test_prompts_that_are_refused(tmp_path: Path, prompt: object, error: tuple[str, str]) -> None:
    assert errors(judge(tmp_path, row(prompt=prompt))) == [error]


@pytest.mark.parametrize(
    ("given", "has"),
    [
        ({"file_name": "a.png", "text": "Hi", "prompt": None}, 'the row has "file_name", "text"'),
        ({str(number): 1 for number in range(10)}, '"6", "7" and 2 more'),
        ({}, "the row has no column that is filled"),
    ],
)
def test_a_row_without_a_prompt_is_named_by_what_it_has(
    tmp_path: Path, given: dict[str, object], has: str
) -> None:
    """A file of a download that holds no rows, and another name of the column, are seen by it."""
    (record,) = judge(tmp_path, given).rejected.rows()
    assert record["code"] == "prompt.missing"
    assert record["message"].startswith("found nothing in the column `prompt`; ")
    assert record["message"].endswith(has)


def test_every_error_of_a_row_is_reported_in_the_order_of_the_table(tmp_path: Path) -> None:
    broken = row(
        prompt=[
            {"role": "human", "content": "Hi"},
            {"role": "user", "content": None},
            "?",
            USER | {"role": "system"},
        ],
        data_source="",
        reward_model=None,
        extra_info="{}",
        score=1,
    )
    result = judge(tmp_path, broken)
    assert errors(result) == [
        ("row.reserved_column", "score"),
        ("prompt.message_not_an_object", "prompt[2]"),
        ("prompt.unknown_role", "prompt[0].role"),
        ("prompt.content_missing", "prompt[1].content"),
        ("prompt.last_role", "prompt[3].role"),
        ("data_source.missing", "data_source"),
        ("reward_model.missing", "reward_model"),
        ("extra_info.not_an_object", "extra_info"),
    ]
    assert result.rejected.head(1)[0]["code"] == "row.reserved_column"
    assert sum(result.by_code.values()) == 8


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ([USER, {"role": "system", "content": "Be kind."}, USER], "prompt.system_not_first"),
        ([USER, TOOL], "prompt.tool_without_call"),
    ],
)
def test_prompts_that_some_templates_refuse_are_pointed_out(
    tmp_path: Path, prompt: list[object], code: str
) -> None:
    result = judge(tmp_path, row(prompt=prompt))
    assert result.accepted_rows == 1
    assert codes(result) == {code}


def test_plain_text_prompts_where_the_dataset_says_so(tmp_path: Path) -> None:
    result = judge(tmp_path, row(prompt="Hi"), row(prompt=[USER]), row(prompt=""), prompt_format="text")
    assert accepted(result) == [said("Hi")]
    assert errors(result) == [("prompt.not_text", "prompt"), ("prompt.empty", "prompt")]


def test_another_prompt_column(tmp_path: Path) -> None:
    result = judge(tmp_path, row(prompt=ABSENT, messages=[USER]), row(messages=[USER]), prompt_key="messages")
    assert accepted(result) == [said("Hi")]
    assert errors(result) == [("row.reserved_column", "prompt")]


def test_nulls_inside_the_arguments_of_a_tool_call_are_kept(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": None}}}
    turns = [USER | {"name": None}, {"role": "assistant", "content": None, "tool_calls": [call]}, TOOL]
    result = judge(tmp_path, row(prompt=turns))
    assert accepted(result) == [row(prompt=[USER, *turns[1:]])]
    assert result.repaired["null_keys_dropped"] == 1


@pytest.mark.parametrize("name", ["index", "raw_prompt", "input_ids", "multi_modal_inputs", "acc", "split"])
def test_reserved_columns_are_refused_or_carried_under_a_prefix(tmp_path: Path, name: str) -> None:
    bad = row(**{name: 3})
    assert errors(judge(tmp_path, bad)) == [("row.reserved_column", name)]
    result = judge(tmp_path, bad, row(**{name: None}), reserved_columns="prefix")
    assert accepted(result) == [row(**{f"user_{name}": 3}), row()]
    assert result.repaired["columns_prefixed"] == 1
    clash = row(**{name: 3, f"user_{name}": 4})
    assert errors(judge(tmp_path, clash, reserved_columns="prefix")) == [("row.reserved_column", name)]


def test_other_columns_are_carried(tmp_path: Path) -> None:
    good = row(level="hard", source="x", labels=[{"a": None}], nested={"a": [1, {"b": None}]})
    assert accepted(judge(tmp_path, good)) == [good]


@pytest.mark.parametrize(
    ("info", "error"),
    [
        ({"index": 1.5}, ("extra_info.index_type", "extra_info.index")),
        ({"index": True}, ("extra_info.index_type", "extra_info.index")),
        ({"need_tools_kwargs": "yes"}, ("extra_info.field_type", "extra_info.need_tools_kwargs")),
        ({"tool_selection": "search"}, ("extra_info.field_type", "extra_info.tool_selection")),
        ({"interaction_kwargs": []}, ("extra_info.field_type", "extra_info.interaction_kwargs")),
        ({"tools_kwargs": []}, ("extra_info.tools_kwargs_type", "extra_info.tools_kwargs")),
    ],
)
def test_extra_info_that_an_agent_would_stumble_over(
    tmp_path: Path, info: object, error: tuple[str, str]
) -> None:
    assert errors(judge(tmp_path, row(extra_info=info))) == [error]


def test_tools_that_are_promised_and_not_given_are_pointed_out(tmp_path: Path) -> None:
    info = {"index": "a-1", "need_tools_kwargs": True, "split": ["odd"]}
    result = judge(tmp_path, row(extra_info=info))
    assert accepted(result) == [row(extra_info=info)]
    assert codes(result) == {"extra_info.tools_kwargs_missing"}


@pytest.mark.parametrize("ability", [3, ["math"]])
def test_ability_is_a_label(tmp_path: Path, ability: object) -> None:
    assert errors(judge(tmp_path, row(ability=ability))) == [("ability.not_text", "ability")]


def test_a_prompt_of_millions_of_characters(tmp_path: Path) -> None:
    long, longer = said("word " * 100_000), said("word " * 900_000, extra_info={"index": 8})
    result = judge(tmp_path, long, longer)
    assert errors(result) == [("prompt.too_large", "prompt")]
    assert result.accepted_rows == 1


def test_of_a_hundred_thousand_faults_a_hundred_are_told(tmp_path: Path) -> None:
    broken = row(prompt=[{"role": "human", "content": 1}] * 100_000)
    found = errors(judge(tmp_path, broken))
    assert len([code for code, _ in found if code == "prompt.unknown_role"]) == 100
    assert {code for code, _ in found} == {"prompt.unknown_role", "prompt.content_type"}
