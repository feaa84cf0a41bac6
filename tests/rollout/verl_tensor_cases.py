"""The tensors of rollouts with media, and those of verl; run by test_verl_image_parity.py with verl.

The module of the agent loop imports a web server, so the three functions that make tensors are taken from its
source.
"""

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional

import pytest
import torch
import verl
from PIL import Image
from qwen_vl_utils import fetch_image, vision_process
from verl.utils import hf_processor, hf_tokenizer
from verl.utils.model import compute_position_id_with_mask
from verl.utils.tokenizer import build_multimodal_processor_inputs, get_processor_token_id

from rl_assets.media.decode import read_video
from rl_assets.prompts.render import PromptRenderer
from rl_assets.protocol.collate import collate_fn
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.item import to_item
from rl_assets.rollout.engine import generate_rollouts
from rl_assets.rollout.media import with_media, with_multi_modal_inputs
from rl_assets.rollout.params import SamplingParams
from rl_assets.rollout.policy import load_policy
from tests.prompts import media, processors

P, R = 360, 6
FUNCTIONS = ("_pad_token_ids", "_compute_multi_modal_inputs", "_compute_position_ids")
IMAGES = {"a.png": (24, 32), "b.png": (16, 40)}
FRAMES = 8


def agent_loop() -> Any:
    """The functions of verl's `AgentLoopWorker`."""
    source = (Path(verl.__file__).parent / "experimental/agent_loop/agent_loop.py").read_text()
    (worker,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == "AgentLoopWorker")
    assert isinstance(worker, ast.ClassDef)
    worker.bases, worker.decorator_list = [], []
    worker.body = [node for node in worker.body if getattr(node, "name", "") in FUNCTIONS]
    assert len(worker.body) == len(FUNCTIONS)
    names = {
        "Any": Any,
        "Optional": Optional,
        "torch": torch,
        "build_multimodal_processor_inputs": build_multimodal_processor_inputs,
        "compute_position_id_with_mask": compute_position_id_with_mask,
        "get_processor_token_id": get_processor_token_id,
    }
    exec(compile(ast.Module([worker], []), "agent_loop.py", "exec"), names)
    return names["AgentLoopWorker"]


class Rolled(NamedTuple):
    """Rows, what we made of them, and verl's worker for the same policy."""

    rows: list[dict[str, Any]]
    ours: DataProto
    worker: Any
    clip: Path


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def rolled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rolled:
    root = tmp_path_factory.mktemp("project")
    (root / "data").mkdir()
    for name, size in IMAGES.items():
        media.picture(*size).save(root / "data" / name)
    clip = media.video(root / "data/v.mp4", frames=FRAMES)
    folder = processors.save_policy(request.param, root / "policy")
    renderer = PromptRenderer.load(folder, root=root)
    assert renderer.media is not None
    rows = [
        media.row("Hi"),
        media.row("<image>?", images=["a.png"]),
        media.row("Is <image> or<image>?", images=["a.png", "b.png"]),
        media.row("In <video> is <image>?", images=["b.png"], videos=["v.mp4"]),
    ]
    for number, row in enumerate(rows):
        made = renderer.media.render([row]) if number else renderer.render([row["prompt"]])
        row |= {"uid": f"u{number}", "reward_model": {"ground_truth": "4"}, "prompt_ids": made[0].ids}
    prompts = DataProto.from_single_dict(collate_fn([to_item(row) for row in rows]))
    with load_policy(folder, device="cpu") as policy:
        answered = generate_rollouts(
            policy,
            with_media(prompts, renderer.media, "train-0"),
            SamplingParams(n=1, do_sample=False),
            prompt_length=P,
            response_length=R,
            log=lambda _: None,
        )
    worker = agent_loop()()
    worker.processor, worker.tokenizer = hf_processor(str(folder)), hf_tokenizer(str(folder))
    worker._get_mm_processor_kwargs = lambda audios: {}
    return Rolled(rows, with_multi_modal_inputs(answered, renderer.media), worker, clip)


def padded(rolled: Rolled, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """verl's `input_ids` and `attention_mask` of a row."""
    columns = rolled.ours.non_tensor_batch
    response = rolled.ours.batch["responses"][number, : columns["response_length"][number]].tolist()
    sides = [
        rolled.worker._pad_token_ids(ids, max_length=width, padding_side=side, return_attention_mask=True)
        for ids, width, side in ((rolled.rows[number]["prompt_ids"], P, "left"), (response, R, "right"))
    ]
    ids, mask = (torch.cat([side[name] for side in sides], dim=1) for name in ("input_ids", "attention_mask"))
    return ids, mask


def require_verls_positions(rolled: Rolled, number: int, inputs: dict[str, Any]) -> None:
    ids, mask = padded(rolled, number)
    theirs = rolled.worker._compute_position_ids(ids, mask, inputs)[0]
    ours = rolled.ours.batch["position_ids"][number]
    assert (theirs.shape, ours.shape) == ((4, P + R), (4, P + R))
    # After a response ours go on, as in verl's rollout with transformers.
    until = P + rolled.ours.non_tensor_batch["response_length"][number]
    assert torch.equal(ours[:, :until], theirs[:, :until]), "text, time, height, width"


def test_ids_and_masks_are_verls(rolled: Rolled) -> None:
    for number in range(len(rolled.rows)):
        ids, mask = padded(rolled, number)
        assert torch.equal(rolled.ours.batch["input_ids"][number], ids[0])
        assert torch.equal(rolled.ours.batch["attention_mask"][number], mask[0])


def fetched(image: Image.Image) -> Image.Image:
    """An image as verl's dataset opens it."""
    return fetch_image({"image": image}, image_patch_size=processors.FACTOR // 2)


def test_media_inputs_and_positions_are_verls(rolled: Rolled, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = rolled.worker.tokenizer.decode
    # verl leaves the placeholders out of the text that it processes again; transformers 5 wants them.
    monkeypatch.setattr(rolled.worker.tokenizer, "decode", lambda ids, skip_special_tokens: decode(ids))
    patches = []
    for number, row in enumerate(rolled.rows[:3]):
        images = [fetched(media.picture(*IMAGES[name])) for name in row.get("images", ())]
        output = SimpleNamespace(
            multi_modal_data={"images": images} if images else {}, mm_processor_kwargs=None
        )
        ids, _ = padded(rolled, number)
        theirs = rolled.worker._compute_multi_modal_inputs(output, ids)
        require_verls_positions(rolled, number, theirs)
        ours = rolled.ours.non_tensor_batch["multi_modal_inputs"][number]
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], value) for name, value in theirs.items())
        patches += theirs["images_seqlens"].tolist() if images else []
    assert rolled.ours.meta_info["images_seqlens"][: len(patches)] == patches == [48, 48, 40]


def test_positions_of_a_video_are_verls_once_verl_is_told_the_seconds(rolled: Rolled) -> None:
    """It gives `get_rope_index` no seconds per frame, which Qwen2.5-VL measures time in, and leaves a hook to
    give more. Without them a video of any rate has the times of one of a frame a second."""
    inputs = rolled.ours.non_tensor_batch["multi_modal_inputs"][3]
    seconds = {"second_per_grid_ts": inputs["second_per_grid_ts"]} if "second_per_grid_ts" in inputs else {}
    rolled.worker.processor.get_rope_index_kwargs = lambda _: seconds
    require_verls_positions(rolled, 3, {**inputs, "mm_token_type_ids": True})
    if seconds:
        rolled.worker.processor.get_rope_index_kwargs = lambda _: {}
        with pytest.raises(AssertionError, match="text, time, height, width"):
            require_verls_positions(rolled, 3, {**inputs, "mm_token_type_ids": True})


def test_frames_and_size_that_a_video_asks_for_are_those_of_qwen_vl_utils(
    rolled: Rolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader is given every frame as we decode it: torchvision, which it uses, reads none now."""
    from rl_assets.media.settings import MediumSettings

    everything, about = read_video(rolled.clip, lambda about: range(about["total_num_frames"]))

    def read(path: str, **_: Any) -> tuple[torch.Tensor, None, dict[str, float]]:
        return torch.from_numpy(everything), None, {"video_fps": about["fps"]}

    monkeypatch.setattr(vision_process.io, "read_video", read, raising=False)
    square = processors.FACTOR**2
    for settings in (
        {},
        {"max_pixels": 200 * square},
        {"fps": 4},
        {"fps": 100, "max_frames": 7},
        {"fps": 0.1, "min_frames": 3},
        {"nframes": 5},
        {"nframes": 4, "min_pixels": 4 * square, "max_pixels": 10 * square},
        {"nframes": 4, "min_pixels": 4 * square, "total_pixels": 18 * square},
        {"nframes": 2, "resized_height": 40, "resized_width": 23},
    ):
        part = {"type": "video", "video": str(rolled.clip), **settings}
        (theirs, meant), _ = vision_process.fetch_video(
            part,
            image_patch_size=processors.FACTOR // 2,
            return_video_sample_fps=True,
            return_video_metadata=True,
        )
        own = MediumSettings.of(part, rolled.worker.processor)
        frames, seen = read_video(rolled.clip, lambda about, own=own: own.frames(about) or [])
        assert seen["frames_indices"] == meant["frames_indices"].tolist(), settings
        assert torch.equal(torch.from_numpy(own.video(frames)), theirs), settings
