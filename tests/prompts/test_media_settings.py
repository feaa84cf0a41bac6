"""A medium may ask for a size and for frames of its own, at the length gate and at the rollout alike."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl_assets.errors import InputError
from rl_assets.media.settings import MediumSettings, require_patch_size
from rl_assets.prompts.multimodal import MediaRenderer, load_media_renderer
from tests.prompts import media, processors

QWEN = SimpleNamespace(image_processor=SimpleNamespace(patch_size=14, merge_size=2))
CUTS = SimpleNamespace(image_processor=SimpleNamespace(patch_size=14))
PAD = processors.token_id("<|image_pad|>")
FRAME = processors.token_id("<|video_pad|>")


def asked(modality: str = "image", processor: Any = QWEN, **settings: Any) -> MediumSettings:
    return MediumSettings.of({"type": modality, "path": "a", **settings}, processor)


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({}, (588, 1008)),
        # Sides become multiples of 28, within the limits.
        ({"max_pixels": 28 * 28 * 100}, (196, 336)),
        ({"min_pixels": 28 * 28 * 2000}, (980, 1624)),
        ({"resized_height": 280, "resized_width": 571}, (280, 560)),
    ],
)
def test_an_image_gets_the_size_that_it_asks_for(settings: dict[str, int], size: tuple[int, int]) -> None:
    own = asked(**settings)
    assert own.image_size((600, 1001)) == size
    assert own.image(media.picture(600, 1001)).size == size[::-1]


@pytest.mark.parametrize(
    ("settings", "frames"),
    [
        ({"fps": 1}, 4),  # at least four
        ({"fps": 4}, 12),
        ({"fps": 1, "min_frames": 2}, 2),
        ({"fps": 99, "max_frames": 7}, 6),
        ({"nframes": 7}, 8),
        ({"video_start": 1.0, "video_end": 2.0, "fps": 4}, 4),
    ],
)
def test_a_video_gives_the_frames_that_it_asks_for(settings: dict[str, float], frames: int) -> None:
    chosen = asked("video", **settings).frames({"total_num_frames": 24, "fps": 8.0})
    assert chosen is not None
    assert (len(chosen), chosen == sorted(set(chosen))) == (frames, True)
    first, last = (8, 16) if "video_start" in settings else (0, 23)
    assert (chosen[0], chosen[-1]) == (first, last)
    assert asked("video", CUTS).frames({}) is None


def test_a_video_gets_the_size_that_it_asks_for() -> None:
    frames = np.zeros((4, 3, 300, 500), dtype=np.uint8)
    assert asked("video", CUTS).video(frames) is frames
    # Of all, at least 128 tokens, and at most 768.
    assert asked("video", fps=1).video(frames).shape == (4, 3, 308, 504)
    assert asked("video").video(frames[:, :, :30, :50]).shape == (4, 3, 252, 420)
    small = asked("video", min_pixels=28 * 28, max_pixels=28 * 28 * 20).video(frames)
    assert (small.shape, small.dtype) == ((4, 3, 84, 140), np.float32)
    # Two frames are one token each way: 40 tokens in all are 20 per pair.
    whole = asked("video", min_pixels=28 * 28, total_pixels=28 * 28 * 40).video(frames)
    assert whole.shape == (4, 3, 84, 140)


@pytest.mark.parametrize(
    ("modality", "settings", "processor", "reason"),
    [
        (
            "image",
            {"fps": 2},
            QWEN,
            "fps on one image, for which the policy's SimpleNamespace has one setting",
        ),
        ("video", {"sample_fps": 2}, QWEN, "sample_fps on one video"),
        ("audio", {"sampling_rate": 8000}, QWEN, "sampling_rate on one audio"),
        ("image", {"max_pixels": 9, "min_pixels": 4}, CUTS, "max_pixels, min_pixels on one image"),
        ("image", {"max_pixels": "many"}, QWEN, "max_pixels is 'many', expected a positive number"),
        ("image", {"max_pixels": 0}, QWEN, "expected a positive number"),
        ("image", {"resized_height": 28}, QWEN, "resized_height without resized_width"),
        ("video", {"fps": 1, "nframes": 2}, QWEN, "both fps and nframes"),
        ("video", {"fps": 1, "video": ["a.png"]}, QWEN, "fps on a list of frames, which is taken whole"),
    ],
)
def test_settings_that_are_not_honoured_are_refused_by_name(
    modality: str, settings: dict[str, Any], processor: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        asked(modality, processor, **settings)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"nframes": 26}, "26 frames asked for, of a video .* that has 24"),
        ({"video_start": 9, "video_end": 10}, "no frames between"),
    ],
)
def test_frames_that_a_video_has_not_are_refused(settings: dict[str, float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        asked("video", **settings).frames({"total_num_frames": 24, "fps": 8.0})


def test_limits_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="are more than at most"):
        asked(min_pixels=90, max_pixels=9).image_size((40, 40))


def test_an_absent_setting_is_none() -> None:
    assert asked(max_pixels=None, fps=None) == asked()


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> MediaRenderer:
    root = tmp_path_factory.mktemp("project")
    (root / "data").mkdir()
    media.picture(40, 64).save(root / "data/a.png")
    media.video(root / "data/v.mp4")
    loaded = load_media_renderer(processors.save("qwen2_5_vl", root / "policy"), root=root)
    assert loaded is not None
    return loaded


@pytest.fixture(scope="module")
def count(renderer: MediaRenderer) -> Callable[..., int]:
    """The tokens of an image or a video with settings, the same by size, in full, and at the rollout."""

    def count(kind: str, **settings: float) -> int:
        name, token = {"image": ("a.png", PAD), "video": ("v.mp4", FRAME)}[kind]
        row = media.row(f"<{kind}>?", **{kind + "s": [{kind: name, **settings}]})
        (rendered,) = renderer.render([row])
        ids, inputs = renderer.inputs(row)
        assert rendered.ids == ids
        assert inputs[f"{kind}_grid_thw"].prod().item() == 4 * ids.count(token)
        return ids.count(token)

    return count


def test_the_gate_and_the_rollout_honour_them_alike(count: Callable[..., int]) -> None:
    square = processors.FACTOR**2
    assert count("image") == 40  # the most that the processor allows
    assert count("image", max_pixels=12 * square) == 2 * 4
    assert count("image", resized_height=16, resized_width=24) == 6
    # Two frames a second for three seconds, which the processor makes smaller.
    assert count("video") == 3 * 35
    assert count("video", nframes=4) == 2 * 35
    assert count("video", nframes=4, min_pixels=4 * square, max_pixels=6 * square) == 2 * 6


def test_an_image_and_a_video_of_the_same_bytes_are_two_media(renderer: MediaRenderer) -> None:
    pictures = [media.picture(32, 48), media.picture(48, 32).rotate(90, expand=True)]
    folder = renderer.source.root / "data"
    pictures[0].save(folder / "a.gif", save_all=True, append_images=pictures[1:] * 3, duration=100)
    rows = [media.row(f"<{kind}>", **{f"{kind}s": ["a.gif"]}) for kind in ("image", "video")]
    assert all(renderer.inputs(row)[0] for row in rows)
    assert len(set(map(renderer.digest, rows))) == 2


def test_responses_are_known_by_them(renderer: MediaRenderer) -> None:
    """Two sizes of as many tokens show the policy other pixels."""
    digests = {
        renderer.digest(media.row("<image>", images=[{"path": "a.png", **settings}]))
        for settings in (
            {},
            {"resized_height": 16, "resized_width": 24},
            {"resized_height": 24, "resized_width": 16},
        )
    }
    assert len(digests) == 3


@pytest.mark.parametrize("kind", processors.READ_BY_VERL)
def test_a_patch_size_is_the_processors_or_refused(kind: str) -> None:
    """verl's length filter takes that of the YAML, its rollouts that of the processor, else 14."""
    processor = processors.PROCESSORS[kind]()
    own, other = (14, 16) if kind == "mllama" else (processors.FACTOR // 2, 14)
    for given in (None, 0, own):
        require_patch_size(given, processor)
    with pytest.raises(InputError, match=f"data.image_patch_size.*found {other}.* {own} pixels"):
        require_patch_size(other, processor)


@pytest.mark.parametrize("kind", ["llava", "gemma3", "qwen2_audio"])
def test_a_patch_size_is_nothing_to_a_processor_that_verl_does_not_load(kind: str) -> None:
    require_patch_size(14, processors.PROCESSORS[kind]())


def test_a_policy_that_has_one_size_for_all_refuses_them_by_name(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    media.picture().save(tmp_path / "data/a.png")
    llava = load_media_renderer(processors.save("llava", tmp_path / "policy"), root=tmp_path)
    assert llava is not None
    (refused,) = llava.render([media.row("<image>", images=[{"path": "a.png", "max_pixels": 9}])])
    assert (refused.code, refused.path) == ("render.media_error", "images[0]")
    assert refused.error == (
        "max_pixels on one image, for which the policy's LlavaProcessor has one setting for all: "
        "data.mm_processor_kwargs"
    )
