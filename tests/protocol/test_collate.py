"""Rows to items to a batch, as verl's dataset and collate function do it."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_assets.errors import InputError
from rl_assets.media.store import MediaStore
from rl_assets.prompts.messages import build_messages
from rl_assets.protocol.collate import collate_fn
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.fields import MismatchError
from rl_assets.protocol.item import to_item


def row(content: Any = "What is 6 × 7?", **more: Any) -> dict[str, Any]:
    return {
        "uid": "0" * 32,
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": content}],
        "reward_model": {"style": "rule", "ground_truth": "42"},
        "extra_info": {"index": 3},
        **more,
    }


class TestItem:
    def test_what_is_added(self) -> None:
        tools = {"calc": {"create_kwargs": {}}}
        item = to_item(row(extra_info={"index": 3, "tools_kwargs": tools, "interaction_kwargs": {"a": 1}}))
        dummy = item.pop("dummy_tensor")
        assert (dummy.dtype, dummy.shape, dummy.tolist()) == (torch.uint8, (1,), [0])
        assert item["raw_prompt"] is item["prompt"]
        assert item["raw_prompt"] == [{"role": "user", "content": "What is 6 × 7?"}]
        assert (item["index"], item["tools_kwargs"], item["interaction_kwargs"]) == (3, tools, {"a": 1})
        assert item["multi_modal_data"] == {}

    @pytest.mark.parametrize("extra_info", [None, {}, {"tools_kwargs": None, "interaction_kwargs": None}])
    def test_extra_info_is_always_a_dict(self, extra_info: dict | None) -> None:
        item = to_item(row(extra_info=extra_info))
        assert item["extra_info"] == (extra_info or {})
        assert (item["index"], item["tools_kwargs"], item["interaction_kwargs"]) == (0, {}, {})

    def test_the_row_is_not_changed(self, tmp_path) -> None:
        original = row("<image>?", images=[{"bytes": b"abc"}])
        to_item(original, media=MediaStore(tmp_path))
        assert original == row("<image>?", images=[{"bytes": b"abc"}])

    def test_bytes_become_references_and_equal_bytes_are_stored_once(self, tmp_path) -> None:
        media = MediaStore(tmp_path)
        image = {"bytes": b"a picture", "path": None}
        item = to_item(
            row("<image><video> and <image>", images=[image, image], videos=["v.mp4"]), media=media
        )
        reference = {"digest": media.put(b"a picture")}
        assert item["raw_prompt"][0]["content"] == [
            {"type": "image", "bytes": reference, "path": None},
            {"type": "video", "video": "v.mp4"},
            {"type": "text", "text": " and "},
            {"type": "image", "bytes": reference, "path": None},
        ]
        assert item["multi_modal_data"] == {
            "image": [{"bytes": reference, "path": None}] * 2,
            "video": [{"video": "v.mp4"}],
        }
        assert not {"images", "videos", "audios"} & item.keys()
        assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1

    def test_bytes_without_a_store(self) -> None:
        with pytest.raises(InputError, match="a medium of 3 bytes and no store"):
            to_item(row("<image>", images=[{"bytes": b"abc"}]))

    @pytest.mark.parametrize(
        ("item", "part"),
        [
            ("s.wav", {"type": "audio", "audio": "s.wav"}),
            ({"audio": "s.wav", "rate": 16000}, {"type": "audio", "audio": "s.wav", "rate": 16000}),
            ({"audio_url": "u", "type": "x"}, {"type": "audio", "audio_url": "u"}),
            ({"path": "s.wav"}, {"type": "audio", "audio": {"path": "s.wav"}}),
        ],
    )
    def test_audio_parts_are_verls(self, item: Any, part: dict[str, Any]) -> None:
        assert to_item(row("<audio>", audios=[item]))["raw_prompt"][0]["content"] == [part]

    def test_without_media_nothing_is_replaced(self) -> None:
        assert to_item(row("say <image>"))["raw_prompt"][0]["content"] == "say <image>"

    def test_columns_that_only_other_rows_have(self) -> None:
        item = to_item(row(level=1), columns=["level", "kind"])
        assert (item["level"], item["kind"]) == (1, None)

    @pytest.mark.parametrize(
        ("broken", "field", "found"),
        [
            ({"uid": None}, "uid", "NoneType"),
            ({"uid": ""}, "uid", "str"),
            ({"prompt": "text"}, "prompt", "str"),
            ({"prompt": []}, "prompt", "list"),
            ({"prompt": ["text"]}, "prompt", "list"),
            ({"reward_model": '{"ground_truth": 1}'}, "reward_model", "str"),
            ({"reward_model": {"style": "rule"}}, "reward_model", "dict"),
            ({"extra_info": "{}"}, "extra_info", "str"),
            ({"images": ["a.png"]}, "images", "0 <image> placeholders and 1 images"),
            ({"raw_prompt": []}, "raw_prompt", "a column of the row's own"),
            ({"index": 1}, "index", "a column of the row's own"),
        ],
    )
    def test_what_the_contract_would_not_pass_is_refused_by_file_and_row(
        self, broken: dict[str, Any], field: str, found: str
    ) -> None:
        with pytest.raises(
            InputError, match=f"data/train.jsonl, row 7: field `{field}`: found {found}"
        ) as caught:
            to_item(row(source_file="data/train.jsonl", source_row=7, **broken))
        assert (caught.value.file, caught.value.row, caught.value.field) == ("data/train.jsonl", 7, field)

    @given(st.lists(st.sampled_from(["<image>", "<video>", "text", "<Image>", "<image", "\n"]), max_size=8))
    def test_media_are_consumed_in_order_across_messages(self, segments: list[str]) -> None:
        half = len(segments) // 2
        messages = [{"role": "user", "content": "".join(part)} for part in (segments[:half], segments[half:])]
        placeholders = {
            kind: sum(m["content"].count(f"<{kind}>") for m in messages) for kind in ("image", "video")
        }
        media = {kind: [f"{kind} {n}" for n in range(count)] for kind, count in placeholders.items()}
        media = {kind: items for kind, items in media.items() if items}
        built = build_messages({}, messages, media)
        if not media:
            assert built == messages
            return
        parts = [part for message in built for part in message["content"]]
        for kind in ("image", "video"):
            assert [part[kind] for part in parts if part["type"] == kind] == media.get(kind, [])
        texts = ["".join(p.get("text") or f"<{p['type']}>" for p in message["content"]) for message in built]
        assert texts == [message["content"] for message in messages]


class TestCollate:
    def test_tensors_stack_and_everything_else_is_an_object_per_row(self) -> None:
        features = [
            {"ids": torch.tensor([1, 2]), "turns": [{"a": 1}], "text": "x", "empty": {}, "ragged": [1]},
            {"ids": torch.tensor([3, 4]), "turns": [{"b": 2}], "text": "y", "empty": {}, "ragged": [1, 2]},
        ]
        batch = collate_fn(features)
        assert batch["ids"].tolist() == [[1, 2], [3, 4]]
        for key in ("turns", "text", "empty", "ragged"):
            assert (batch[key].dtype, batch[key].shape) == (np.dtype(object), (2,))
            assert list(batch[key]) == [feature[key] for feature in features]
        assert len(DataProto.from_single_dict(batch)) == 2

    def test_no_rows(self) -> None:
        assert collate_fn([]) == {}

    @pytest.mark.parametrize(
        ("second", "message"),
        [
            ({"a": torch.ones(2)}, r"row 1 and row 0 .* \['b'\]"),
            ({"a": torch.ones(2), "b": 1, "c": 2}, r"row 1 and row 0 .* \['c'\]"),
            ({"a": torch.ones(3), "b": 1}, r"key `a`: .*\(3,\) in row 1, .*\(2,\) in row 0"),
            ({"a": torch.ones(2).long(), "b": 1}, r"key `a`: .*int64 .* in row 1, .*float32"),
            ({"a": [1.0, 1.0], "b": 1}, r"key `a`: list\[float\] in row 1, tensor"),
            ({"a": torch.ones(2), "b": torch.ones(1)}, r"key `b`: tensor .* in row 1, int in row 0"),
        ],
    )
    def test_rows_that_do_not_fit_are_named(self, second: dict[str, Any], message: str) -> None:
        with pytest.raises(MismatchError, match=message):
            collate_fn([{"a": torch.ones(2), "b": 1}, second])
