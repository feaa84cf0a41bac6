"""Texts that speak of `<video>` and `<img>` go through the whole graph as they are, if one key says so."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from rl_assets.contract.schema import decode_row
from rl_assets.media.placeholders import media_counts, segments
from rl_assets.media.store import MediaStore
from rl_assets.protocol.item import to_item
from tests.build import evaluations, failed, make_dataset, materialize, problem
from tests.contract.rows import accepted, codes, errors, judge, parts, png, said

TEXTS = [
    "Write HTML5 that shows a <video> with two sources and an <audio> fallback.",
    'Why does <image> do nothing, and <img src="a.png"> shows a picture?',
    "Fix this BBCode: [img]cat.png[/img] 2 + 2?",
]
LET_THROUGH = {"severities": {"media.orphan_placeholder": "warning"}}


def test_one_key_lets_tags_through_to_rollouts_and_training_set(tmp_path: Path, small_policy: Path) -> None:
    asked = [[{"role": "user", "content": text}] for text in TEXTS]
    rows = [problem(number, prompt=prompt) for number, prompt in enumerate(asked)]
    dataset = make_dataset(
        tmp_path, rows, policy=small_policy, data={"max_response_length": 2}, contract=LET_THROUGH
    )
    result = materialize(dataset)
    assert result.success, failed(result)
    checks = evaluations(result)
    for asset in ("field_contract", "length_filtered"):
        assert checks[f"{asset}.placeholder_media"].passed
    tokenizer = AutoTokenizer.from_pretrained(small_policy)
    rendered = [tokenizer.decode(row["prompt_ids"]) for row in dataset.table("length_filtered").rows()]
    for text in TEXTS:
        assert sum(text in one for one in rendered) == 1
    assert dataset.table("reward_inputs").num_rows == 2 * len(rows)
    trained = pq.read_table(dataset.storage / "verl_dataset/train.parquet").to_pylist()
    assert sorted(row["prompt"][0]["content"] for row in trained) == sorted(TEXTS)


def test_without_the_key_a_mark_without_media_is_refused(tmp_path: Path) -> None:
    result = judge(tmp_path, *map(said, TEXTS))
    assert errors(result) == [
        ("media.orphan_placeholder", "videos"),
        ("media.orphan_placeholder", "audios"),
        ("media.orphan_placeholder", "images"),
    ]
    assert result.accepted_rows == 1


def test_a_tag_of_a_kind_that_a_row_with_media_has_not_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    rows = [
        said("<image> Is this a <video>?", images=["a.png"]),
        parts({"type": "image"}, {"type": "text", "text": "Is this a <video>?"}, images=["a.png"]),
    ]
    result = judge(tmp_path, *rows, **LET_THROUGH)
    assert accepted(result) == rows
    for record in result.accepted.rows():
        row = decode_row(record)
        assert media_counts(row) == {"image": (1, 1), "video": (0, 0), "audio": (0, 0)}
        item = to_item(row, media=MediaStore(tmp_path / "store"))
        content = item["raw_prompt"][0]["content"]
        assert content[0] == {"type": "image", "image": "a.png"}
        assert "".join(part["text"] for part in content[1:]).strip() == "Is this a <video>?"


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_no_key_lets_a_part_without_its_medium_through(tmp_path: Path, kind: str) -> None:
    result = judge(tmp_path, parts({"type": kind}, {"type": "text", "text": "What?"}), **LET_THROUGH)
    assert errors(result) == [("media.count_mismatch", f"{kind}s")]


def test_a_null_column_of_media_makes_no_tag_a_near_miss(tmp_path: Path) -> None:
    result = judge(tmp_path, said("What does <img> do?", images=None), said("And <img/>?", images=[]))
    assert codes(result) - {"extra_info.index_duplicate"} == {"media.lookalike"}


def test_pieces_of_a_text_are_the_text() -> None:
    text = "<image><video> a <audio>b<image>"
    assert segments(text, ["image"]) == [
        ("image", "<image>"),
        (None, "<video> a <audio>b"),
        ("image", "<image>"),
    ]
    for kinds in ([], ["video"], ["image", "audio"]):
        pieces = segments(text, kinds)
        assert "".join(piece for _, piece in pieces) == text
        assert {kind for kind, _ in pieces if kind} == set(kinds)
    assert segments("", ["image"]) == []
