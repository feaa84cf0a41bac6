"""The holes through which rows slip into verl, by their numbers in the reference, closed one by one.

Only those that the contract can see: H17, H27 and H29 to H32 belong to rollout, collate and reward.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.contract.rows import ABSENT, accepted, codes, errors, judge, parts, png, row, run, said


@pytest.mark.parametrize("mark", ["<image>", "<video>", "<audio>"])
@pytest.mark.parametrize("media", [ABSENT, None, []])
def test_h1_a_placeholder_without_media_is_an_orphan(tmp_path: Path, mark: str, media: object) -> None:
    column = mark[1:-1] + "s"
    result = judge(tmp_path, said(f"{mark}\nWhat is this?", **{column: media}))
    assert errors(result) == [("media.orphan_placeholder", column)]


def test_h2_media_are_accepted_by_the_contract_and_left_to_the_renderer_to_support(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    result = judge(tmp_path, said("<image> What?", images=["a.png"]))
    assert accepted(result) == [said("<image> What?", images=["a.png"])]


def test_h3_parts_and_a_media_column_are_counted_together(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    good = parts({"type": "image"}, {"type": "text", "text": "What?"}, images=["a.png"])
    one_too_many = parts(
        {"type": "image"}, {"type": "image"}, {"type": "text", "text": "?"}, images=["a.png"]
    )
    result = judge(tmp_path, good, one_too_many)
    assert accepted(result) == [good]
    assert errors(result) == [("media.count_mismatch", "images")]


def test_h4_media_inside_parts_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    text = {"type": "text", "text": "What?"}
    result = judge(
        tmp_path,
        parts({"type": "image", "image": "a.png"}, text),
        parts({"type": "image", "image": "gone.png"}, text),
        parts({"type": "image_url", "image_url": {"url": "gone.png"}}, text),
        parts({"type": "image"}, text),
    )
    assert result.accepted_rows == 1
    assert errors(result) == [
        ("media.file_missing", "prompt[0].content[0].image"),
        ("media.file_missing", "prompt[0].content[0].image_url"),
        ("media.count_mismatch", "images"),
    ]


def test_h4_parts_in_openais_form_come_out_in_verls(tmp_path: Path) -> None:
    """verl hands `image_url` to a loader that takes a text, and drops the row when it holds an object."""
    (tmp_path / "a.png").write_bytes(png())
    text = {"type": "text", "text": "What?"}
    verls = parts({"type": "image", "image": "a.png"}, text)
    theirs = [
        {"type": "image_url", "image_url": {"url": "a.png"}},
        {"type": "image_url", "image_url": "a.png"},
    ]
    result = judge(tmp_path, *(parts(part, text) for part in theirs), verls)
    assert accepted(result) == [verls] * 3
    assert result.repaired["parts_renamed"] == 2
    detailed = {"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}
    (kept,) = accepted(judge(tmp_path, parts(detailed, text)))
    assert kept["prompt"][0]["content"][0] == {"type": "image", "image": "a.png", "detail": "low"}


def test_h5_null_filled_parts_come_out_without_the_filling(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    whole = parts({"type": "image", "image": "a.png"}, {"type": "text", "text": "hi"})
    pq.write_table(pa.Table.from_pylist([whole]), tmp_path / "train.parquet")
    filled = pq.read_table(tmp_path / "train.parquet").to_pylist()[0]["prompt"][0]["content"]
    assert filled[1] == {"type": "text", "text": "hi", "image": None}

    result = run(tmp_path, "train.parquet")
    assert accepted(result) == [whole]
    assert result.repaired["null_keys_dropped"] == 1


def test_h5_null_filled_parts_are_refused_where_healing_is_off(tmp_path: Path) -> None:
    filled = parts({"type": "text", "text": "hi", "image": None})
    assert errors(judge(tmp_path, filled, drop_nulls=False)) == [("prompt.null_key", "prompt[0]")]
    assert accepted(judge(tmp_path, filled)) == [parts({"type": "text", "text": "hi"})]


def test_h6_a_placeholder_that_may_be_prose_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    result = judge(tmp_path, said("What does the tag `<image>` do?", images=["a.png"]))
    assert codes(result) == {"media.quoted_placeholder"}
    assert result.accepted_rows == 1


@pytest.mark.parametrize(
    "near", ["<Image>", "<image 1>", "<image1>", "<image/>", "<img>", "<images>", "< image >"]
)
def test_h7_near_misses_are_errors_beside_media_and_warnings_in_plain_text(tmp_path: Path, near: str) -> None:
    (tmp_path / "a.png").write_bytes(png())
    with_media = judge(tmp_path, said(f"<image> and {near}: what?", images=["a.png"]))
    assert errors(with_media) == [("media.near_miss", "prompt[0].content")]

    plain = judge(tmp_path, said(f"{near}: what?"))
    assert plain.accepted_rows == 1
    assert codes(plain) == {"media.lookalike"}
    assert codes(judge(tmp_path, said(f"{near}: what?"), has_processor=True)) == {"media.near_miss"}


@pytest.mark.parametrize(
    "token", ["<|image_pad|>", "<|vision_start|>", "<|AUDIO|>", "<start_of_image>", "[IMG]"]
)
def test_h7_a_models_own_media_tokens_are_refused_in_text(tmp_path: Path, token: str) -> None:
    assert errors(judge(tmp_path, said(f"a {token} b"))) == [("media.vision_token", "prompt[0].content")]


@pytest.mark.parametrize(
    "text", ["a < b and b > c", "x[0] <= 3", "<p>image</p>", "<|im_start|>", "<imagine>"]
)
def test_h7_other_brackets_are_left_alone(tmp_path: Path, text: str) -> None:
    assert codes(judge(tmp_path, said(text))) == set()


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_h8_media_in_a_message_of_another_role_are_pointed_out(tmp_path: Path, role: str) -> None:
    (tmp_path / "a.png").write_bytes(png())
    prompt = [{"role": role, "content": "<image>"}, {"role": "user", "content": "What?"}]
    assert codes(judge(tmp_path, row(prompt=prompt, images=["a.png"]))) == {"media.unexpected_role"}


@pytest.mark.parametrize("scalar", ["a.png", {"image": "a.png"}])
def test_h9_a_scalar_media_column_is_refused_or_wrapped(tmp_path: Path, scalar: object) -> None:
    (tmp_path / "a.png").write_bytes(png())
    bad = said("<image> What?", images=scalar)
    assert errors(judge(tmp_path, bad)) == [("media.not_a_list", "images")]

    result = judge(tmp_path, bad, wrap_scalars=True)
    assert accepted(result) == [said("<image> What?", images=[scalar])]
    assert result.repaired["scalars_wrapped"] == 1


def test_h10_numpy_arrays_of_pandas_are_lists(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    good = said("<image> What?", images=["a.png"])
    empty = said("<image> What?", images=[""])
    frame = pd.DataFrame([one | {"images": np.array(one["images"])} for one in (good, empty)])
    frame.to_parquet(tmp_path / "train.parquet")
    result = run(tmp_path, "train.parquet")
    assert accepted(result) == [good]
    assert errors(result) == [("media.bad_item", "images[0]")]


def test_h11_image_objects_that_hold_no_image(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    whole = png(200, 200)
    objects = [
        {"bytes": None, "path": "a.png"},
        {"bytes": b"these are no pixels", "path": None},
        {"bytes": whole[: len(whole) // 2], "path": None},
        {"bytes": b"", "path": None},
        {"bytes": None, "path": None},
    ]
    rows = [said("<image> What?", images=[item]) for item in objects]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    result = run(tmp_path, "train.parquet")
    assert accepted(result) == [said("<image> What?", images=[{"image": "a.png"}])]
    assert [code for code, _ in errors(result)] == [
        "media.unreadable",
        "media.truncated",
        "media.unreadable",
        "media.bad_item",
    ]


def test_h11_an_empty_image_object(tmp_path: Path) -> None:
    assert errors(judge(tmp_path, said("<image> ?", images=[{}]))) == [("media.bad_item", "images[0]")]


def test_h12_bare_bytes_and_nulls_are_no_items(tmp_path: Path) -> None:
    column = pa.array([[png()], [None]], pa.list_(pa.binary()))
    rows = pa.Table.from_pylist([said("<image> What?"), said("<image> What?")])
    pq.write_table(rows.append_column("images", column), tmp_path / "train.parquet")
    assert errors(run(tmp_path, "train.parquet")) == [("media.bad_item", "images[0]")] * 2
    repaired = run(tmp_path, "train.parquet", wrap_scalars=True)
    assert accepted(repaired) == [said("<image> What?", images=[{"bytes": png()}])]


@pytest.mark.parametrize("mode", ["RGBA", "P", "L", "LA"])
def test_h13_images_that_are_not_rgb_are_pointed_out(tmp_path: Path, mode: str) -> None:
    (tmp_path / "a.png").write_bytes(png(mode=mode))
    result = judge(tmp_path, said("<image> What?", images=["a.png"]))
    assert result.accepted_rows == 1
    assert codes(result) == {"media.image_mode"}


def test_h14_media_of_the_wrong_modality(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"frames")
    result = judge(tmp_path, said("<image> What?", videos=["a.mp4"]))
    assert errors(result) == [("media.orphan_placeholder", "images"), ("media.orphan_media", "videos")]


def test_h15_a_message_without_content_is_refused_unless_it_calls_a_tool(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
    asked, answer = {"role": "user", "content": "1 + 1?"}, {"role": "tool", "content": "2"}
    calling = row(prompt=[asked, {"role": "assistant", "content": None, "tool_calls": [call]}, answer])
    result = judge(
        tmp_path,
        calling,
        row(prompt=[{"role": "system", "content": None}, asked]),
        row(prompt=[{"role": "assistant"}, asked]),
    )
    assert accepted(result) == [calling]
    assert errors(result) == [("prompt.content_missing", "prompt[0].content")] * 2


def test_h16_text_and_parts_in_one_row_are_pointed_out(tmp_path: Path) -> None:
    mixed = [{"role": "system", "content": "Be kind."}, *parts({"type": "text", "text": "Hi"})["prompt"]]
    assert codes(judge(tmp_path, row(prompt=mixed))) == {"prompt.mixed_content"}


@pytest.mark.parametrize("info", ['{"index": 3}', 3, [1], True])
def test_h18_extra_info_that_is_no_object(tmp_path: Path, info: object) -> None:
    assert errors(judge(tmp_path, row(extra_info=info))) == [("extra_info.not_an_object", "extra_info")]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_h18_numbers_that_are_not_finite(tmp_path: Path, number: float) -> None:
    result = judge(tmp_path, row(extra_info={"index": 1, "scores": [0.5, number]}))
    assert errors(result) == [("value.not_finite", "extra_info.scores[1]")]


def test_h19_null_filled_tools_are_dropped(tmp_path: Path) -> None:
    search = row(extra_info={"index": 1, "tools_kwargs": {"search": {"create_kwargs": {"q": "a"}}}})
    calc = row(extra_info={"index": 2, "tools_kwargs": {"calc": {"create_kwargs": {"x": "b"}}}})
    pq.write_table(pa.Table.from_pylist([search, calc]), tmp_path / "train.parquet")
    assert (
        pq.read_table(tmp_path / "train.parquet")["extra_info"][1].as_py()["tools_kwargs"]["search"] is None
    )
    result = run(tmp_path, "train.parquet")
    assert accepted(result) == [search, calc]
    assert result.repaired["null_keys_dropped"] == 2


@pytest.mark.parametrize("tools", [None, {"search": None}])
def test_h19_null_tools_are_refused_where_healing_is_off(tmp_path: Path, tools: object) -> None:
    bad = row(extra_info={"index": 1, "tools_kwargs": tools})
    assert errors(judge(tmp_path, bad, drop_nulls=False)) == [
        ("extra_info.tools_kwargs_type", "extra_info.tools_kwargs")
    ]


def test_h19_tools_that_are_no_objects(tmp_path: Path) -> None:
    result = judge(tmp_path, row(extra_info={"index": 1, "tools_kwargs": {"search": "on"}}))
    assert errors(result) == [("extra_info.tools_kwargs_type", "extra_info.tools_kwargs")]


def test_h20_a_missing_index_is_assigned_and_a_repeated_one_pointed_out(tmp_path: Path) -> None:
    same = [said("one", extra_info={"index": 5}), said("two", extra_info={"index": 5})]
    assert codes(judge(tmp_path, *same)) == {"extra_info.index_duplicate"}

    none = judge(
        tmp_path, said("one", extra_info=None), said("two", extra_info={}), said("three", extra_info=ABSENT)
    )
    assert [one["extra_info"]["index"] for one in accepted(none)] == [0, 1, 2]
    assert none.repaired["index_assigned"] == 3


@pytest.mark.parametrize(
    ("source", "truth"),
    [
        ("openai/gsm8k", 72),
        ("openai/gsm8k", ["72"]),
        ("DigitalLearningGmbH/MATH-lighteval", 72),
        ("math_dapo", 72),
        ("aime_2024", 72),
        ("searchR1_nq", "72"),
        ("searchR1_nq", {"target": 72}),
        ("numina_cn_k12", ["72"]),
        ("codecontests", "72"),
        ("taco", {"inputs": []}),
        ("hiyouga/geometry3k", 72),
    ],
)
def test_h21_a_ground_truth_that_its_scorer_would_score_zero(
    tmp_path: Path, source: str, truth: object
) -> None:
    result = judge(tmp_path, row(data_source=source, reward_model={"ground_truth": truth}))
    assert errors(result) == [("reward_model.ground_truth_type", "reward_model.ground_truth")]


@pytest.mark.parametrize(
    ("source", "truth"),
    [
        ("openai/gsm8k", "72"),
        ("numina_cn_k12", 72),
        ("searchR1_nq", {"target": ["72", "seventy-two"]}),
        ("codecontests", '{"inputs": ["1"], "outputs": ["2"]}'),
        ("apps", {"assert_case": ["f(1) == 2"], "inputs": [], "outputs": []}),
    ],
)
def test_h21_a_ground_truth_that_its_scorer_reads(tmp_path: Path, source: str, truth: object) -> None:
    good = row(data_source=source, reward_model={"ground_truth": truth})
    assert accepted(judge(tmp_path, good)) == [good]


@pytest.mark.parametrize("truth", ["1,000", "$5", "1/2", "72 apples", "+5", "seventy", "7\u00b2", "1" * 300])
def test_h21_a_ground_truth_that_no_response_can_equal(tmp_path: Path, truth: str) -> None:
    assert codes(judge(tmp_path, row(reward_model={"ground_truth": truth}))) == {"reward_model.unreachable"}


@pytest.mark.parametrize(
    ("target", "blank"), [(["", "nan"], True), ("None", True), (["nan", "Nan"], False), ("0", False)]
)
def test_h21_a_search_that_wants_nothing(tmp_path: Path, target: object, blank: bool) -> None:
    raw = row(data_source="searchR1_nq", reward_model={"ground_truth": {"target": target}})
    assert codes(judge(tmp_path, raw)) == ({"reward_model.ground_truth_empty"} if blank else set())


def test_h21_dates_and_big_numbers_stay_what_they_are(tmp_path: Path) -> None:
    values = {"index": 1, "day": "2024-01-01", "when": "2024-01-01T00:00:00", "big": 2**70, "small": -(2**65)}
    good = row(extra_info=values, reward_model={"ground_truth": "2024-01-01"})
    assert accepted(judge(tmp_path, good, good)) == [good, good]


def test_h22_an_unknown_data_source_is_found_before_any_rollout(tmp_path: Path) -> None:
    unknown = row(data_source="Rowan/hellaswag")
    assert errors(judge(tmp_path, unknown)) == [("data_source.unknown", "data_source")]
    assert codes(judge(tmp_path, unknown, known_data_sources=("Rowan/hellaswag",))) == set()
    lenient = judge(tmp_path, unknown, severities={"data_source.unknown": "warning"})
    assert codes(lenient) == {"data_source.unknown"}
    assert accepted(lenient) == [unknown]


@pytest.mark.parametrize("source", [ABSENT, None, "", "  ", 3])
def test_h22_no_data_source(tmp_path: Path, source: object) -> None:
    assert errors(judge(tmp_path, row(data_source=source))) == [("data_source.missing", "data_source")]


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (None, "reward_model.missing"),
        (ABSENT, "reward_model.missing"),
        ('{"ground_truth": "72"}', "reward_model.not_an_object"),
        ({"style": "rule"}, "reward_model.ground_truth_missing"),
        ({"style": "rule", "ground_truth": None}, "reward_model.ground_truth_missing"),
    ],
)
def test_h23_reward_models_without_a_ground_truth(tmp_path: Path, model: object, code: str) -> None:
    assert [found for found, _ in errors(judge(tmp_path, row(reward_model=model)))] == [code]


def test_h23_json_text_is_parsed_where_the_user_says_so(tmp_path: Path) -> None:
    text = row(reward_model='{"ground_truth": "72"}', extra_info='{"index": 3}')
    result = judge(tmp_path, text, parse_json=True)
    assert accepted(result) == [row(reward_model={"ground_truth": "72"}, extra_info={"index": 3})]
    assert result.repaired["json_text_parsed"] == 1


def test_h24_agent_names(tmp_path: Path) -> None:
    result = judge(tmp_path, row(agent_name="tool_agent"), row(agent_name=None), row(agent_name=3))
    assert accepted(result) == [row(agent_name="tool_agent"), row()]
    assert errors(result) == [("agent_name.not_text", "agent_name")]
    assert codes(judge(tmp_path, row(agent_name="my_agent"))) == {"agent_name.unknown"}
    assert codes(judge(tmp_path, row(agent_name="my_agent"), known_agent_names=("my_agent",))) == set()


def test_h25_empty_objects_are_kept(tmp_path: Path) -> None:
    good = row(extra_info={"index": 1, "tools_kwargs": {}, "note": {}})
    assert accepted(judge(tmp_path, good)) == [good]


@pytest.mark.parametrize("uid", ["a_b", "", "   ", 17, ["x"]])
def test_h26_uids_that_a_trainer_would_cut_or_merge(tmp_path: Path, uid: object) -> None:
    assert errors(judge(tmp_path, row(uid=uid))) == [("uid.invalid", "uid")]


def test_h28_rows_that_lack_a_column_say_so_in_their_own_record(tmp_path: Path) -> None:
    result = judge(tmp_path, row(level="3"), row(), row(level=None))
    assert accepted(result) == [row(level="3"), row(), row(level=None)]
