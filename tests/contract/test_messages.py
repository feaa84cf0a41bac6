"""What the contract says of a value: where it is short, the value itself, and where its double is."""

import io
from pathlib import Path

import pytest
from PIL import Image

from rl_assets.base.jsontext import describe, show
from rl_assets.media.files import image_faults
from tests.contract.rows import codes, judge, png, row, run, said, write_jsonl


def messages(folder: Path, *rows: object, **options: object) -> dict[str, str]:
    """The last message of each code that the contract has for `rows`."""
    result = judge(folder, *rows, **options)
    found = {error["code"]: error["message"] for one in result.rejected.rows() for error in one["errors"]}
    return found | {code: warned[-1].finding.message for code, warned in result.examples.items()}


def truth(value: object, source: str = "openai/gsm8k") -> dict[str, object]:
    return row(data_source=source, reward_model={"ground_truth": value})


@pytest.mark.parametrize(
    ("bad", "code", "says"),
    [
        (
            truth(42),
            "reward_model.ground_truth_type",
            "found the number 42, expected text",
        ),
        (truth("72 apples", "searchR1_nq"), "reward_model.ground_truth_type", 'found "72 apples"'),
        (truth("1,234"), "reward_model.unreachable", 'found "1,234"'),
        (row(reward_model="42"), "reward_model.not_an_object", 'found "42", expected an object'),
        (row(ability=3), "ability.not_text", "found the number 3"),
        (row(extra_info={"index": 1.5}), "extra_info.index_type", "found the number 1.5, expected a whole"),
    ],
)
def test_a_short_value_is_quoted(tmp_path: Path, bad: object, code: str, says: str) -> None:
    assert says in messages(tmp_path, bad)[code]


def test_a_long_value_is_described() -> None:
    assert show("a" * 40) == '"' + "a" * 40 + '"'
    assert show("a" * 41) == "text of 41 characters"
    assert describe(10**5000) == "a number"


def test_a_prompt_is_never_quoted(tmp_path: Path) -> None:
    assert messages(tmp_path, row(prompt="Hi"))["prompt.not_a_list"].startswith("found text of 2 characters")


def test_a_double_names_the_first(tmp_path: Path) -> None:
    twin = messages(tmp_path, said("a"), said("b"))
    assert twin["extra_info.index_duplicate"] == "found the index of train.jsonl, row 0"
    write_jsonl(tmp_path / "val.jsonl", [said("b")])
    result = run(tmp_path, val="val.jsonl")
    (warned,) = result.examples["row.shared_with_train"]
    assert warned.finding.message == "found the prompt of train.jsonl, row 1"


def test_an_image_of_the_wrong_size_is_named_with_the_limit() -> None:
    ((_, large),) = image_faults(png(40, 40), 1599)
    assert large == "found 40 × 40 pixels, expected at most 1,599 in all"
    ((_, narrow),) = image_faults(png(402, 2), 10**6)
    assert narrow == "found 402 × 2 pixels, expected sides at most 200 to 1"
    stream = io.BytesIO()
    Image.new("1", (10_000, 9_000)).save(stream, "PNG")
    ((_, bomb),) = image_faults(stream.getvalue(), 89_478_485)
    assert bomb == "found 90,000,000 pixels, expected at most 89,478,485"


@pytest.mark.parametrize(
    ("line", "column"),
    [
        (b'{"prompt": [', 13),
        (b'{"prompt": [\r', 13),
        (b'{"prompt": "Who', 12),
        (b'{"prompt": 1, ', 14),
        (b"{", 2),
    ],
)
def test_a_torn_line_names_the_column(tmp_path: Path, line: bytes, column: int) -> None:
    assert messages(tmp_path, line)["file.malformed_line"].endswith(f" at column {column}")


@pytest.mark.parametrize("source", ["openai/gsm8k", "math_dapo", "lighteval/MATH", "numina_olympiads"])
@pytest.mark.parametrize("blank", ["", " ", "nan", "NaN", "None", "null", "<NA>"])
def test_an_empty_ground_truth_is_refused_where_a_rule_scores(
    tmp_path: Path, source: str, blank: str
) -> None:
    assert codes(judge(tmp_path, truth(blank, source))) == {"reward_model.ground_truth_empty"}
    severities = {"reward_model.ground_truth_empty": "warning"}
    assert judge(tmp_path, truth(blank, source), severities=severities).accepted_rows == 1


def test_an_empty_ground_truth_is_for_a_scorer_of_ones_own_to_judge(tmp_path: Path) -> None:
    assert judge(tmp_path, truth("", "mine"), known_data_sources=("mine",)).accepted_rows == 1
    assert judge(tmp_path, truth(""), custom_scorer=True).accepted_rows == 1
