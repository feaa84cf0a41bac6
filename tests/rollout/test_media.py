"""Media at rollout: made when needed, let go afterwards, and held to the prompt that was measured."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_assets.errors import InputError
from rl_assets.media.decode import read_audio, read_video
from rl_assets.media.store import MediaStore
from rl_assets.prompts.messages import build_messages
from rl_assets.prompts.multimodal import MOST_THREADS, MediaRenderer, load_media_renderer
from rl_assets.protocol.collate import collate_fn
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.item import to_item
from rl_assets.protocol.shards import read_shard, write_shard
from rl_assets.rollout.engine import generate_rollouts
from rl_assets.rollout.media import (
    MediaInputs,
    begin,
    in_turn,
    with_media,
    with_multi_modal_inputs,
    without_media,
)
from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.policy import load_policy
from rl_assets.rollout.requests import Prompt, response_keys
from tests.prompts import media, processors


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    media.picture().save(tmp_path / "data/a.png")
    processors.save("qwen2_5_vl", tmp_path / "policy")
    return tmp_path


@pytest.fixture
def store(root: Path) -> MediaStore:
    return MediaStore(root / "media")


@pytest.fixture
def renderer(root: Path, store: MediaStore) -> MediaRenderer:
    loaded = load_media_renderer(root / "policy", root=root)
    assert loaded is not None
    return loaded.reading(store)


@pytest.fixture
def shard(root: Path, renderer: MediaRenderer, store: MediaStore) -> DataProto:
    """Three rows, read from a shard: an image by its path, one by its bytes, and text."""
    rows = [
        media.row("Is <image> it?", images=["a.png"]),
        media.row("<image>?", images=[{"bytes": media.png(16, 24), "path": None}]),
        media.row("It is."),
    ]
    items = []
    for number, row in enumerate(rows):
        (rendered,) = renderer.render([row])
        row |= {"uid": f"u{number}", "reward_model": {"ground_truth": "4"}, "prompt_ids": rendered.ids}
        items.append(to_item(row, media=store, columns=()))
    data = DataProto.from_single_dict(collate_fn(items))
    return read_shard(root / "shards", write_shard(root / "shards", "train-0", data))


class Made:
    """Makes the same tensors again and again, and counts how often."""

    def __init__(self) -> None:
        self.times, self.thread = 0, 0

    def __call__(self) -> dict[str, torch.Tensor]:
        self.times, self.thread = self.times + 1, threading.get_ident()
        return {"pixel_values": torch.zeros(100, 100), "image_grid_thw": torch.tensor([[1, 4, 4]])}


def test_tensors_are_made_when_asked_for_and_only_small_ones_are_kept() -> None:
    make = Made()
    inputs = MediaInputs("d", make)
    assert inputs
    assert make.times == 0
    assert inputs["image_grid_thw"].tolist() == [[1, 4, 4]]
    assert dict(inputs.items())["pixel_values"].shape == (100, 100)
    assert make.times == 1, "what the grid was taken from is handed over"
    assert (set(inputs), len(inputs), inputs["image_grid_thw"].shape) == (
        {"pixel_values", "image_grid_thw"},
        2,
        (1, 3),
    )
    assert make.times == 1
    assert inputs["pixel_values"].shape == (100, 100)
    assert make.times == 2


def test_the_next_ones_are_made_while_one_is_in_use_and_none_is_kept() -> None:
    makes = [Made() for _ in range(3 * MOST_THREADS)]
    with ThreadPoolExecutor(2) as threads:
        inputs = [MediaInputs(str(number), make, threads) for number, make in enumerate(makes)]
        for number, one in enumerate(in_turn(inputs)):
            assert one["image_grid_thw"].shape == (1, 3)
            begun = [make.times for make in makes[number + MOST_THREADS :]]
            assert not any(begun), "no more than so many are in memory"
    assert [make.times for make in makes] == [1] * len(makes)
    assert not {make.thread for make in makes} & {threading.get_ident()}
    assert [one._made for one in inputs] == [None] * len(makes)
    begin(inputs)
    assert [make.times for make in makes] == [1] * len(makes), "what is known is not made again"


def test_what_goes_wrong_in_another_thread_is_said_when_it_is_asked_for() -> None:
    def fail() -> dict[str, torch.Tensor]:
        raise InputError(found="another image", remedy="Put it back.")

    with ThreadPoolExecutor(1) as threads:
        inputs = MediaInputs("d", fail, threads)
        inputs.begin()
        with pytest.raises(InputError, match="another image"):
            dict(inputs.items())


def test_a_rollout_has_other_threads_make_them_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    media.picture().save(tmp_path / "data/a.png")
    folder = processors.save_policy("llava", tmp_path / "policy")
    renderer = load_media_renderer(folder, root=tmp_path)
    assert renderer is not None
    rows = [media.row("<image>" + "?" * number, images=["a.png"]) for number in range(12)]
    for number, row in enumerate(rows):
        row |= {"uid": f"u{number}", "reward_model": {"ground_truth": "4"}}
        row["prompt_ids"] = renderer.render([row])[0].ids
    made: list[tuple[str, int]] = []
    inputs = MediaRenderer.inputs

    def seen(self: MediaRenderer, row: dict[str, Any]) -> Any:
        made.append((row["uid"], threading.get_ident()))
        return inputs(self, row)

    monkeypatch.setattr(MediaRenderer, "inputs", seen)
    with load_policy(folder, device="cpu") as policy:
        policy.verified = True  # the check of the first response makes its media again
        generate_rollouts(
            policy,
            with_media(DataProto.from_single_dict(collate_fn([to_item(row) for row in rows])), renderer, "a"),
            SamplingParams(n=2),
            prompt_length=100,
            response_length=2,
            log=lambda _: None,
        )
    assert sorted(uid for uid, _ in made) == sorted(row["uid"] for row in rows)
    assert threading.get_ident() not in {thread for _, thread in made}


def test_rows_of_a_shard_get_what_their_media_give(shard: DataProto, renderer: MediaRenderer) -> None:
    inputs = with_media(shard, renderer, "train-0").non_tensor_batch["multi_modal_inputs"]
    assert [one["image_grid_thw"].tolist() for one in inputs[:2]] == [[[1, 12, 8]], [[1, 4, 6]]]
    assert inputs[2] == {}
    assert "multi_modal_inputs" not in shard.non_tensor_batch


def test_a_rollout_shard_keeps_their_patch_counts_and_not_their_pixels(
    shard: DataProto, renderer: MediaRenderer
) -> None:
    answered = with_media(shard, renderer, "train-0").repeat(2, interleave=True)
    stored = without_media(answered)
    assert "multi_modal_inputs" not in stored.non_tensor_batch
    assert stored.meta_info["images_seqlens"] == [96, 96, 24, 24]
    text = shard.select_idxs([2])
    assert without_media(with_media(text, renderer, "train-0")).meta_info == text.meta_info


def test_the_tensors_come_back_for_verl(shard: DataProto, renderer: MediaRenderer) -> None:
    whole = with_multi_modal_inputs(shard.repeat(2, interleave=True), renderer)
    first, sibling, *_, text = whole.non_tensor_batch["multi_modal_inputs"]
    assert first["pixel_values"].shape == (96, 96)
    assert first is sibling
    assert text == {}
    assert whole.meta_info["images_seqlens"] == [96, 96, 24, 24]


@pytest.mark.parametrize("attach", [with_media, with_multi_modal_inputs])
def test_media_that_give_another_prompt_are_refused(
    shard: DataProto, renderer: MediaRenderer, root: Path, attach: Callable[..., DataProto]
) -> None:
    media.picture(16, 24).save(root / "data/a.png")
    with pytest.raises(
        InputError,
        match=r"row 3.*field `prompt_ids`: found a prompt of 34 tokens for uid 'u0', token \d+ at position "
        r"\d+, expected the 52 tokens that were measured, token \d+ there",
    ):
        given = attach(shard, renderer, *(["train-0"] if attach is with_media else []))
        dict(given.non_tensor_batch["multi_modal_inputs"][0])


def test_a_medium_that_is_gone_is_named(shard: DataProto, renderer: MediaRenderer, root: Path) -> None:
    (root / "data/a.png").unlink()
    with pytest.raises(InputError, match=r"data/train.jsonl, row 3.*no file a.png"):
        with_media(shard, renderer, "train-0")


def test_media_without_a_processor_are_refused(shard: DataProto) -> None:
    with pytest.raises(InputError, match="media in the prompt of uid 'u0', and a policy without a processor"):
        with_media(shard, None, "train-0")


def test_responses_are_known_by_the_content_of_their_media(
    shard: DataProto, renderer: MediaRenderer, root: Path
) -> None:
    def keys() -> list[str]:
        row = with_media(shard, renderer, "train-0").non_tensor_batch["multi_modal_inputs"][0]
        prompt: Any = Prompt("u0", (1, 2), 4, row)
        return response_keys(prompt, SamplingParams(n=1), {})

    before = keys()
    assert keys() == before
    media.picture(51, 30).save(root / "data/a.png")
    assert keys() != before


@pytest.mark.parametrize("kind", sorted(processors.MODELS))
def test_greedy_rollouts_of_media_are_those_of_generate(tmp_path: Path, kind: str) -> None:
    """Media go through the renderer on one side, and through transformers alone on the other."""
    (tmp_path / "data").mkdir()
    media.picture().save(tmp_path / "data/a.png")
    clip = media.video(tmp_path / "data/v.mp4", frames=8)
    folder = processors.save_policy(kind, tmp_path / "policy")
    renderer = load_media_renderer(folder, root=tmp_path)
    assert renderer is not None
    media.sound(tmp_path / "data/s.wav")
    rows = [
        media.row("<image>.", images=["a.png"]),
        media.row("What is the difference of <image> and <image>?", images=["a.png", "a.png"]),
    ]
    if kind == "qwen2_audio":
        rows = [
            media.row("<audio>.", audios=["s.wav"]),
            media.row("Is <audio> as <audio>?", audios=["s.wav", "s.wav"]),
        ]
    elif kind.startswith("qwen"):
        rows.append(media.row("Is <image> in <video>?", images=["a.png"], videos=["v.mp4"]))
        rows.append(media.row("<video>!", videos=["v.mp4"]))
    for number, row in enumerate(rows):
        row |= {"uid": f"u{number}", "reward_model": {"ground_truth": "4"}}
        row["prompt_ids"] = renderer.render([row])[0].ids
    prompts = DataProto.from_single_dict(collate_fn([to_item(row) for row in rows]))
    frames, about = read_video(clip, lambda _: [0, 2, 5, 7])  # a second, of which verl takes four
    with load_policy(folder, device="cpu") as policy:
        answered = generate_rollouts(
            policy,
            with_media(prompts, renderer, "train-0"),
            SamplingParams(n=2, do_sample=False),
            prompt_length=400,
            response_length=8,
            log=lambda _: None,
        )
        for index, row in enumerate(rows):
            given: dict[str, Any] = {}
            if "images" in row:
                given["images"] = [processors.verls_image(kind, media.picture())] * len(row["images"])
            if "videos" in row:
                given |= {"videos": [processors.verls_frames(frames)], "video_metadata": [dict(about)]}
                given["do_sample_frames"] = False
            if "audios" in row:
                given["audio"] = [read_audio(tmp_path / "data/s.wav", 16_000)] * len(row["audios"])
            columns = {"image": row.get("images"), "video": row.get("videos"), "audio": row.get("audios")}
            present = {modality: items for modality, items in columns.items() if items}
            messages = build_messages(row, row["prompt"], present)
            text = renderer.processor.apply_chat_template(messages, add_generation_prompt=True)
            inputs = renderer.processor(text=[text], add_special_tokens=False, return_tensors="pt", **given)
            made = policy.model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=8,
                suppress_tokens=list(policy.blocked_token_ids),
            )[0, inputs["input_ids"].shape[1] :]
            token = made[0]
            likely = policy.model(**inputs).logits[0, -1].log_softmax(-1)[token].item()
            assert answered.batch["raw_log_probs"][2 * index, 0].item() == pytest.approx(likely, abs=1e-5)
            for sample in (2 * index, 2 * index + 1):
                length = answered.non_tensor_batch["response_length"][sample]
                assert answered.batch["responses"][sample, :length].tolist() == made.tolist()
