"""uids: the same row has the same uid tomorrow, and no two rows have one."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from rl_assets.contract.uids import UidRegistry
from tests.contract.rows import codes, data_uri, errors, judge, png, row, run, said, uids, write_jsonl

A, B, C = (said(text, extra_info={"index": n}) for n, text in enumerate(["a?", "b?", "c?"]))


def uid_of(folder: Path, one: dict[str, object], **options: object) -> str:
    (uid,) = uids(judge(folder, one, **options))
    return uid


def test_a_uid_is_32_hex_digits_that_never_change(tmp_path: Path) -> None:
    uid = uid_of(tmp_path, row())
    assert re.fullmatch("[0-9a-f]{32}", uid)
    assert uid == "c4a08bf4a55738a69f1260fd7f76fc58"


def test_a_uid_is_the_digest_of_source_messages_media_and_ground_truth(tmp_path: Path) -> None:
    messages = [{"content": "¿40 + 2?", "role": "user"}]
    text = json.dumps(["openai/gsm8k", messages, [], "42"], ensure_ascii=False, separators=(",", ":"))
    uid = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    assert uid_of(tmp_path, row(prompt=messages)) == uid


def test_a_uid_does_not_depend_on_the_file(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", [A, B])
    write_jsonl(tmp_path / "y.jsonl", [C])
    write_jsonl(tmp_path / "z.jsonl", [C, B, A])
    two = uids(run(tmp_path, ["y.jsonl", "x.jsonl"]))
    one = uids(run(tmp_path, "z.jsonl"))
    assert set(two) == set(one)
    assert len(set(two)) == 3
    assert two == uids(run(tmp_path, ["x.jsonl", "y.jsonl"]))


def test_a_uid_does_not_depend_on_the_order_of_keys_or_on_what_is_beside_the_question(tmp_path: Path) -> None:
    same = [
        row(),
        dict(reversed(row().items())),
        row(prompt=[{"content": "What is 40 + 2?", "role": "user"}]),
        row(reward_model={"ground_truth": "42", "style": "other"}, ability="algebra", level=3),
        row(extra_info={"index": 99}),
    ]
    assert len({uid_of(tmp_path, one) for one in same}) == 1


@pytest.mark.parametrize(
    "other",
    [
        row(data_source="math_dapo"),
        said("What is 40 + 3?"),
        row(reward_model={"ground_truth": "43"}),
        row(prompt=[{"role": "system", "content": ""}, *row()["prompt"]]),
    ],
)
def test_a_uid_depends_on_source_prompt_and_ground_truth(tmp_path: Path, other: dict[str, object]) -> None:
    assert uid_of(tmp_path, other) != uid_of(tmp_path, row())


def test_a_uid_depends_on_the_bytes_of_media_and_not_on_their_place(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "deep/b.png").write_bytes(png())
    (tmp_path / "c.png").write_bytes(png(48, 48))
    uid = {
        name: uid_of(tmp_path, said("<image> ?", images=[name])) for name in ("a.png", "deep/b.png", "c.png")
    }
    assert uid["a.png"] == uid["deep/b.png"] == uid_of(tmp_path, said("<image> ?", images=[data_uri(png())]))
    assert uid["a.png"] != uid["c.png"]


def test_copies_have_uids_of_their_own_that_stay(tmp_path: Path) -> None:
    result = judge(tmp_path, A, A, A)
    assert len(set(uids(result))) == 3
    assert codes(result) == {"row.duplicate", "extra_info.index_duplicate"}
    assert result.warnings["row.duplicate"] == 2
    assert uids(result)[0] == uid_of(tmp_path, A)
    assert result.examples["row.duplicate"][0].finding.message == "found the content of train.jsonl, row 0"
    assert set(uids(judge(tmp_path, B, A, A, A))) > set(uids(result))


def test_the_users_own_uids_are_kept(tmp_path: Path) -> None:
    result = judge(tmp_path, A | {"uid": "one-1"}, B | {"uid": None}, C)
    assert uids(result)[0] == "one-1"
    assert uids(result)[1:] == [uid_of(tmp_path, B), uid_of(tmp_path, C)]


def test_a_uid_of_the_users_own_stands_once(tmp_path: Path) -> None:
    result = judge(tmp_path, A | {"uid": "x"}, B | {"uid": "x"}, C)
    assert errors(result) == [("uid.duplicate", "uid")]
    refused = result.rejected.head(1)[0]
    assert (refused["source_row"], refused["uid"]) == (1, "x")
    assert "train.jsonl, row 0" in refused["message"]


def test_a_uid_of_the_users_own_is_of_255_characters_at_most(tmp_path: Path) -> None:
    result = judge(tmp_path, A | {"uid": "x" * 255}, B | {"uid": "x" * 256})
    assert errors(result) == [("uid.invalid", "uid")]
    assert uids(result) == ["x" * 255]


def test_a_refused_row_does_not_take_its_uid(tmp_path: Path) -> None:
    assert uids(judge(tmp_path, A | {"uid": "x", "prompt": []}, B | {"uid": "x"})) == ["x"]


def test_a_uid_of_the_users_own_may_be_one_that_was_made_here(tmp_path: Path) -> None:
    made = uid_of(tmp_path, A)
    assert errors(judge(tmp_path, A, B | {"uid": made})) == [("uid.duplicate", "uid")]
    swapped = uids(judge(tmp_path, B | {"uid": made}, A))
    assert swapped[0] == made
    assert swapped[1] != made
    assert uids(judge(tmp_path, A | {"uid": "own"}, B | {"uid": made})) == ["own", made]


def test_a_copy_does_not_take_a_uid_that_is_taken() -> None:
    content, other = b"c" * 16, b"o" * 16
    registry = UidRegistry()
    registry.register(content, 0)
    copy = registry.register(content, 1)
    again = UidRegistry()
    again.register(other, 0, copy)
    again.register(content, 1)
    uid = again.register(content, 2)
    assert uid not in (copy, content.hex())


def test_prompts_shared_by_train_and_validation_are_pointed_out(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [A, B])
    write_jsonl(tmp_path / "val.jsonl", [C, A, B | {"reward_model": {"ground_truth": "other"}}])
    result = run(tmp_path, "train.jsonl", "val.jsonl")
    assert result.warnings["row.shared_with_train"] == 2
    assert [(one.file, one.row) for one in result.examples["row.shared_with_train"]] == [
        ("val.jsonl", 1),
        ("val.jsonl", 2),
    ]
    assert result.counts["train"] == (2, 2, 0)
    assert result.counts["val"] == (3, 3, 0)
    shutil.copy(tmp_path / "train.jsonl", tmp_path / "copy.jsonl")
    assert codes(run(tmp_path, ["train.jsonl", "copy.jsonl"])) == {
        "row.duplicate",
        "extra_info.index_duplicate",
    }


TOOL = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    "other",
    [{"tools": [TOOL]}, {"agent_name": "tool_agent"}, {"chat_template_kwargs": {"enable_thinking": False}}],
    ids=lambda other: next(iter(other)),
)
def test_a_row_that_shows_the_policy_something_else_is_no_copy(
    tmp_path: Path, other: dict[str, object]
) -> None:
    one, two = A | {"extra_info": {"index": 0}}, A | other | {"extra_info": {"index": 1}}
    assert codes(judge(tmp_path, one, two, severities={"agent_name.unknown": "warning"})) <= {
        "agent_name.unknown"
    }
    for rows in ([one, two], [two, one]):
        again = [*rows, rows[0] | {"extra_info": {"index": 2}}, rows[1] | {"extra_info": {"index": 3}}]
        result = judge(tmp_path, *again)
        places = [(each.row, each.finding.message) for each in result.examples["row.duplicate"]]
        assert places == [
            (2, "found the content of train.jsonl, row 0"),
            (3, "found the content of train.jsonl, row 1"),
        ]
        assert len(set(uids(result))) == 4


def test_another_ground_truth_for_one_prompt_is_pointed_out(tmp_path: Path) -> None:
    rows = [
        row(extra_info={"index": n}, reward_model={"ground_truth": truth})
        for n, truth in enumerate(["4", "5", "6", "4", "4.0"])
    ]
    result = judge(tmp_path, *rows, row(tools=[TOOL], reward_model={"ground_truth": "6"}))
    assert result.warnings["row.conflicting_ground_truth"] == 3
    assert result.warnings["row.duplicate"] == 1
    found = result.examples["row.conflicting_ground_truth"]
    assert [each.row for each in found] == [1, 2, 4]
    assert found[0].finding.message == (
        "found another ground truth than train.jsonl, row 0 has for the same prompt"
    )


def test_copies_can_be_refused_before_anything_is_generated(tmp_path: Path) -> None:
    rows = [A | {"extra_info": {"index": n}} for n in range(3)]
    result = judge(tmp_path, *rows, B, severities={"row.duplicate": "error"})
    assert [each["code"] for each in result.rejected.rows()] == ["row.duplicate"] * 2
    assert uids(result) == [uid_of(tmp_path, A), uid_of(tmp_path, B)]
    conflicting = A | {"extra_info": {"index": 4}, "reward_model": {"ground_truth": "other"}}
    severities = {"row.conflicting_ground_truth": "error", "row.duplicate": "error"}
    result = judge(tmp_path, A, conflicting, conflicting, B, severities=severities)
    assert [each["code"] for each in result.rejected.rows()] == ["row.conflicting_ground_truth"] * 2
