"""Our shards against the real verl, key by key; run by test_verl_parity.py in a process that has verl.

Both sides read the same raw files. Ours go through the field contract, `to_item`, `collate_fn`, a shard on
disk and `to_verl`; verl's through `RLHFDataset`, its `collate_fn` and `DataProto.from_single_dict`.
"""

import io
import json
import wave
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import verl
from omegaconf import OmegaConf
from PIL import Image
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.dataset.rl_dataset import collate_fn as verl_collate_fn

from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.contract.schema import decode_row
from rl_assets.media.store import MediaStore
from rl_assets.protocol.collate import collate_fn
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.item import to_item
from rl_assets.protocol.shards import read_shard, write_shard
from rl_assets.protocol.values import deep_equal
from rl_assets.protocol.verl import from_verl, to_verl
from tests.verl_wheel import ROOT

OURS_ONLY = {"uid", "prompt_ids", "source_file", "source_row"}
"""Columns that a shard has and verl's loader does not make: the trainer sets uids of its own, and the rest
serves lineage and the rollout."""

SAMPLES = ROOT / "data" / "gsm_symbolic"


def accepted(files: list[Path], root: Path) -> list[dict[str, Any]]:
    """The rows that the contract accepts, in the order of the files."""
    names = [str(file.relative_to(root)) for file in files]
    folder = root / "contract"
    folder.mkdir(exist_ok=True)
    options = ContractOptions(known_data_sources=("test/media",), has_processor=True)
    result = apply_contract(scan_files(names, root=root), options, root=root, folder=folder)
    rejected = list(result.rejected.rows())
    assert not rejected, rejected
    return list(result.accepted.rows())


def shard(files: list[Path], root: Path, media: MediaStore) -> DataProto:
    """The rows as a shard gives them back."""
    rows = [
        {
            **decode_row(record),
            "prompt_ids": [1, 2, 3],
            "source_file": record["source_file"],
            "source_row": record["source_row"],
        }
        for record in accepted(files, root)
    ]
    columns = {key: None for row in rows for key in row if key not in ("images", "videos", "audios")}
    data = DataProto.from_single_dict(
        collate_fn([to_item(row, media=media, columns=columns) for row in rows])
    )
    return read_shard(root / "shards", write_shard(root / "shards", "train", data))


def verls(files: list[Path], root: Path) -> Any:
    config = OmegaConf.create({"filter_overlong_prompts": False, "cache_dir": str(root / "cache")})
    processor: Any = object()  # verl only asks whether there is one
    dataset = RLHFDataset([str(file) for file in files], tokenizer=None, config=config, processor=processor)
    return verl.DataProto.from_single_dict(verl_collate_fn([dataset[row] for row in range(len(dataset))]))


def compare(files: list[Path], root: Path, ours_only: frozenset[str] = frozenset()) -> tuple[Any, Any]:
    media = MediaStore(root / "media")
    mine = shard(files, root, media)
    ours, theirs = to_verl(mine, media), verls(files, root)
    assert type(ours) is type(theirs) is verl.DataProto
    assert len(ours) == len(theirs)
    assert ours.batch.keys() == theirs.batch.keys()
    for key, tensor in theirs.batch.items():
        assert deep_equal(ours.batch[key], tensor), key
    assert set(ours.non_tensor_batch) - set(theirs.non_tensor_batch) == OURS_ONLY | ours_only
    for key, values in theirs.non_tensor_batch.items():
        found = ours.non_tensor_batch[key]
        assert (found.dtype, found.shape) == (values.dtype, values.shape), key
        for row, (one, other) in enumerate(zip(found, values, strict=True)):
            assert deep_equal(one, other), (key, row, one, other)
    back = from_verl(ours, media)
    assert deep_equal(dict(back.batch.items()), dict(mine.batch.items()))
    assert deep_equal(back.non_tensor_batch, mine.non_tensor_batch)
    return ours, theirs


def row(index: int, content: Any, **more: Any) -> dict[str, Any]:
    return {
        "data_source": "test/media",
        "prompt": [{"role": "user", "content": content}],
        "ability": "geometry",
        "reward_model": {"style": "rule", "ground_truth": str(index)},
        "extra_info": {"split": "train", "index": index},
        **more,
    }


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def png(color: str, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (8, 6), color).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "names", [["train-00000.parquet", "train-00001.parquet"], ["test.jsonl"]], ids=["parquet", "jsonl"]
)
def test_the_sample_dataset(tmp_path: Path, names: list[str]) -> None:
    files = [tmp_path / name for name in names]
    for file in files:
        file.write_bytes((SAMPLES / file.name).read_bytes())
    compare(files, tmp_path)


def test_tools_several_turns_and_columns_of_the_users_own(tmp_path: Path) -> None:
    tools = {"calc": {"create_kwargs": {"ground_truth": "72"}}}
    rows = [
        row(
            index,
            [
                {"role": "system", "content": "Use the tool."},
                {"role": "user", "content": f"Question {index}: 日本 🙂"},
                {"role": "assistant", "content": "Which one?"},
                {"role": "user", "content": "The first."},
            ],
            agent_name="tool_agent",
            level=index,
            weight=index / 4,
            tags=["a", "b"][:index],
        )
        for index in range(3)
    ]
    for each in rows:
        each["prompt"] = each["prompt"][0]["content"]
        each["extra_info"] |= {
            "need_tools_kwargs": True,
            "tools_kwargs": tools,
            "interaction_kwargs": {"name": "x"},
        }
    ours, _ = compare([write_jsonl(tmp_path / "tools.jsonl", rows)], tmp_path)
    assert list(ours.non_tensor_batch["tools_kwargs"]) == [tools] * 3
    assert list(ours.non_tensor_batch["index"]) == [0, 1, 2]


def test_images_as_bytes_some_rows_without(tmp_path: Path) -> None:
    def item(color: str) -> dict[str, Any]:
        return {"bytes": png(color), "path": f"{color}.png"}

    rows = [
        row(0, "<image>Compare with<image>.", images=[item("red"), item("blue")]),
        row(1, "No picture here.", images=None),
        row(2, "What is on <image>", images=[item("red")]),
    ]
    path = tmp_path / "images.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    ours, theirs = compare([path], tmp_path)
    part = ours.non_tensor_batch["raw_prompt"][0][0]["content"][0]
    assert part.keys() == {"type", "bytes", "path", "image"}
    assert part["image"].getpixel((0, 0)) == (255, 0, 0)
    assert theirs.non_tensor_batch["raw_prompt"][1] == [{"role": "user", "content": "No picture here."}]
    assert len([file for file in (tmp_path / "media").rglob("*") if file.is_file()]) == 2, (
        "red is stored once"
    )


def test_images_videos_and_audios_as_paths(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(png("green"))
    with wave.open(str(tmp_path / "s.wav"), "wb") as sound:
        sound.setparams((1, 2, 16000, 0, "NONE", "NONE"))
        sound.writeframes(bytes(3200))
    (tmp_path / "v.mp4").write_bytes(bytes(32))
    rows = [
        row(0, "<image> then <image>", images=["a.png", "b.png"], videos=[], audios=[]),
        row(1, "Look: <video> and listen: <audio>", images=[], videos=["v.mp4"], audios=["s.wav"]),
    ]
    compare([write_jsonl(tmp_path / "paths.jsonl", rows)], tmp_path)


def test_structured_messages_pass_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("green"))
    parts = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What is this?"}]
    ours, _ = compare([write_jsonl(tmp_path / "parts.jsonl", [row(0, parts)])], tmp_path)
    assert ours.non_tensor_batch["raw_prompt"][0][0]["content"] == parts


def test_images_that_datasets_decodes_have_the_same_pixels(tmp_path: Path) -> None:
    """An Image feature makes verl hand on the decoded picture alone, in RGB; ours keeps the file's bytes,
    path and mode beside it, so that it is stored once and as it was."""
    rows = [row(0, "<image>?", images=[{"bytes": png("black", "L"), "path": None}])]
    features = datasets.Features(
        {
            "data_source": datasets.Value("string"),
            "prompt": [{"role": datasets.Value("string"), "content": datasets.Value("string")}],
            "ability": datasets.Value("string"),
            "reward_model": {"style": datasets.Value("string"), "ground_truth": datasets.Value("string")},
            "extra_info": {"split": datasets.Value("string"), "index": datasets.Value("int64")},
            "images": datasets.Sequence(datasets.Image()),
        }
    )
    path = tmp_path / "decoded.parquet"
    datasets.Dataset.from_list(rows, features=features).to_parquet(str(path))
    media = MediaStore(tmp_path / "media")
    ours, theirs = to_verl(shard([path], tmp_path, media), media), verls([path], tmp_path)
    mine, its = (data.non_tensor_batch["raw_prompt"][0][0]["content"][0] for data in (ours, theirs))
    assert its.keys() == {"type", "image"}
    assert np.array_equal(np.asarray(mine["image"].convert("RGB")), np.asarray(its["image"]))
    again = from_verl(theirs, media)
    assert again.non_tensor_batch["raw_prompt"][0][0]["content"][0]["image"].keys() == {"digest"}
    assert np.array_equal(
        np.asarray(to_verl(again, media).non_tensor_batch["raw_prompt"][0][0]["content"][0]["image"]),
        np.asarray(its["image"]),
    )


def test_rollouts_go_to_verl_and_back(tmp_path: Path) -> None:
    from tests.protocol.batches import rollout_batch

    data = rollout_batch(3)
    there = to_verl(read_shard(tmp_path, write_shard(tmp_path, "s", data)))
    assert len(there.chunk(4)) == 4
    back = from_verl(there)
    assert deep_equal(dict(back.batch.items()), dict(data.batch.items()))
    assert deep_equal(back.non_tensor_batch, data.non_tensor_batch)
    assert back.meta_info == data.meta_info
