"""Prompts with media: ids and tensors are those that the policy's own processor makes of them."""

import io
import json
import logging
import pickle
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers.video_utils import VideoMetadata

from rl_assets.base.tables import Table
from rl_assets.base.workers.pool import threads_of_own
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.errors import InputError
from rl_assets.media.decode import read_audio, read_video
from rl_assets.media.expansion import learn_expansion
from rl_assets.prompts.length import filter_by_length
from rl_assets.prompts.multimodal import MOST_THREADS, MediaRenderer, load_media_renderer
from rl_assets.prompts.render import PromptRenderer
from tests.build import problem, write_jsonl
from tests.prompts import media, processors
from tests.prompts.families import WEATHER

SEES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "gemma3"]
IMAGES = {"a.png": (50, 30), "b.png": (20, 64), "c.png": (200, 170)}
Load = Callable[..., MediaRenderer]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with three images, a video and a sound beside its raw file."""
    root = tmp_path_factory.mktemp("project")
    (root / "data").mkdir()
    for name, (height, width) in IMAGES.items():
        media.picture(height, width).save(root / "data" / name)
    media.video(root / "data/v.mp4")
    media.sound(root / "data/s.wav")
    return root


@pytest.fixture(scope="module")
def load(root: Path) -> Load:
    """Loads the renderer of a processor that was saved to a folder."""

    def load(kind: str, **options: Any) -> MediaRenderer:
        folder = root / "policies" / kind
        if not folder.exists():
            processors.save(kind, folder)
        renderer = load_media_renderer(folder, root=root, **options)
        assert renderer is not None
        return renderer

    return load


def by_processor(renderer: MediaRenderer, content: list[Any], **arguments: Any) -> Any:
    """What the processor itself makes of a user's message; images and `arguments` go to its call."""
    parts = [{"type": "image", "image": part} if isinstance(part, Image.Image) else part for part in content]
    messages = [{"role": "user", "content": parts}]
    text = renderer.processor.apply_chat_template(messages, add_generation_prompt=True)
    if images := [part for part in content if isinstance(part, Image.Image)]:
        kind = type(renderer.processor).__name__.lower()
        arguments["images"] = [processors.verls_image(kind, image) for image in images]
    return renderer.processor(text=[text], add_special_tokens=False, return_tensors="pt", **arguments)


def said(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def pixels(name: str) -> Image.Image:
    return media.picture(*IMAGES[name])


def require_same(renderer: MediaRenderer, row: dict[str, Any], expected: Any) -> None:
    """The row's ids and tensors are the expected ones, on the quick path and on the full one."""
    (rendered,) = renderer.render([row])
    assert rendered.error is None
    ids, inputs = renderer.inputs(row)
    assert rendered.ids == ids == expected["input_ids"][0].tolist()
    text = {"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids"}
    assert inputs.keys() - {"images_seqlens"} == expected.keys() - text
    for name in inputs.keys() - {"images_seqlens"}:
        assert torch.equal(inputs[name], torch.as_tensor(expected[name])), name


@pytest.mark.parametrize("kind", SEES)
def test_images_give_what_the_processor_makes_of_them(load: Load, kind: str) -> None:
    renderer = load(kind)
    require_same(
        renderer,
        media.row("Is <image> in <image>, or<image>?", images=["a.png", "b.png", "c.png"]),
        by_processor(
            renderer,
            [
                said("Is "),
                pixels("a.png"),
                said(" in "),
                pixels("b.png"),
                said(", or"),
                pixels("c.png"),
                said("?"),
            ],
        ),
    )
    assert renderer._expansion is not None, "its images are measured by their size"


def test_the_patches_of_images_are_counted_as_in_verl(load: Load) -> None:
    _, inputs = load("qwen2_5_vl").inputs(media.row("<image><image>?", images=["a.png", "b.png"]))
    # 50 × 30 pixels become 48 × 32, and 20 × 64 become 16 × 64, in patches of 4.
    assert inputs["image_grid_thw"].tolist() == [[1, 12, 8], [1, 4, 16]]
    assert inputs["images_seqlens"].tolist() == [96, 64]
    assert inputs["images_seqlens"].dtype == torch.int64


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("fps", [None, 1, 4])
def test_a_video_gives_what_the_processor_makes_of_it(
    load: Load, root: Path, kind: str, fps: int | None
) -> None:
    """Two frames a second, as verl has it, or those that the processor chooses at the rate for all."""
    renderer = load(kind, mm_processor_kwargs={"fps": fps} if fps else None)
    frames, about = read_video(root / "data/v.mp4", lambda about: range(about["total_num_frames"]))
    chosen = [0, 5, 9, 14, 18, 23]
    if fps:
        sampler = renderer.processor.video_processor
        chosen = sampler.sample_frames(VideoMetadata(**about), fps=fps).tolist()
    expected = by_processor(
        renderer,
        [said("See "), {"type": "video", "video": ""}, said("!")],
        videos=[processors.verls_frames(frames[chosen])],
        video_metadata=[{**about, "frames_indices": chosen}],
        do_sample_frames=False,
    )
    require_same(renderer, media.row("See <video>!", videos=["v.mp4"]), expected)


def test_a_rate_below_videos_kwargs_counts_as_well(load: Load) -> None:
    row = media.row("<video>!", videos=["v.mp4"])
    flat, nested = (
        load("qwen3_vl", mm_processor_kwargs=given).inputs(row)[0]
        for given in ({"fps": 4}, {"videos_kwargs": {"fps": 4}})
    )
    assert flat == nested != load("qwen3_vl").inputs(row)[0]


def test_a_sound_gives_what_the_processor_makes_of_it(load: Load, root: Path) -> None:
    renderer = load("qwen2_audio")
    clip = read_audio(root / "data/s.wav", 16_000)
    expected = by_processor(
        renderer,
        [{"type": "audio", "audio": ""}, said(" What?")],
        audio=[clip],
        sampling_rate=16_000,
    )
    row = media.row("<audio> What?", audios=[{"path": "s.wav"}])
    require_same(renderer, row, expected)
    # Half a second is 50 frames of features, 25 after the convolution and 12 after pooling.
    assert renderer.inputs(row)[0].count(processors.token_id("<|AUDIO|>")) == 12


def test_images_and_videos_in_several_messages_keep_their_order(load: Load) -> None:
    renderer = load("qwen2_5_vl")
    row = media.row("And <image>?", images=["a.png", "b.png"], videos=["v.mp4"])
    row["prompt"][:0] = [
        {"role": "user", "content": "What is <image> in <video>?"},
        {"role": "assistant", "content": "A dot.", "tool_calls": None},
    ]
    ids, inputs = renderer.inputs(row)
    assert renderer.render([row])[0].ids == ids
    assert inputs["image_grid_thw"].tolist() == [[1, 12, 8], [1, 4, 16]]
    text = renderer.processor.tokenizer.decode(ids)
    assert [mark.startswith("<|image_pad|>") for mark in text.split("<|vision_start|>")[1:]] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("kind", ["qwen2_vl", "llava"])
@given(size=st.tuples(st.integers(1, 300), st.integers(1, 300)))
@settings(max_examples=40, deadline=None)
def test_the_count_by_size_is_that_of_the_pixels(load: Load, kind: str, size: tuple[int, int]) -> None:
    if max(size) > 200 * min(size):
        return
    row = media.row("<image>?", images=[{"bytes": media.png(*size)}])
    renderer = load(kind)
    renderer._to_compare = 0
    assert renderer.render([row])[0].ids == renderer.inputs(row)[0]


def test_no_pixel_is_decoded_where_the_size_is_enough(load: Load) -> None:
    """Of an image that breaks off after its header, the size is known and the pixels are not."""
    cut = {"bytes": media.png(50, 30)[:300]}
    renderer = load("qwen2_5_vl")
    whole = media.row("<image>?", images=["a.png"])
    *_, last = renderer.render([whole] * 5 + [media.row("<image>?", images=[cut])])
    assert last == renderer.render([whole])[0]
    with pytest.raises(InputError, match=r"data/train.jsonl, row 3.*media_error.*uid u1"):
        renderer.inputs(media.row("<image>?", images=[cut]))


def test_a_count_that_differs_from_what_is_made_is_not_used(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    renderer = load("qwen2_5_vl")
    renderer.__dict__["_expansion"] = lambda sizes: ["<|image_pad|>"] * len(sizes)
    row = media.row("<image>?", images=["a.png"])
    with caplog.at_level(logging.WARNING):
        rendered = renderer.render([row, row])
    assert [one.ids for one in rendered] == [renderer.inputs(row)[0]] * 2
    assert "every image is processed" in caplog.text


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llava", {"do_center_crop": False}),
        ("gemma3", {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 8}),
        ("qwen2_vl", {"size": {"shortest_edge": 256, "longest_edge": 1024}}),
    ],
)
def test_a_processor_that_counts_otherwise_is_asked_with_every_image(
    load: Load, kind: str, settings: dict[str, Any]
) -> None:
    renderer = load(kind, mm_processor_kwargs=settings)
    assert learn_expansion(renderer.processor, settings) is None
    for name in IMAGES:
        expected = by_processor(renderer, [pixels(name), said("?")], **settings)
        (rendered,) = renderer.render([media.row("<image>?", images=[name])])
        assert rendered.ids == expected["input_ids"][0].tolist()


DROPS_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}{% for c in m.content %}"
    "{{ c.text or '<|image_pad|>' }}{% endfor %}{% endfor %}"
)
DROPS_IMAGES = "{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}"
WRITES_PARTS = (
    "{% for m in messages %}{% for c in m.content %}{{ c.text or '<|image_pad|>' }}{% endfor %}{% endfor %}"
)


def _calls(row: dict[str, Any]) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": 3}}}
    row["prompt"].insert(0, {"role": "assistant", "content": "", "tool_calls": [call]})
    return row


RAISES = "{{ raise_exception('no images, please') }}"


@pytest.mark.parametrize(
    ("row", "template", "code", "path", "reason"),
    [
        (
            media.row("<audio>", audios=["s.wav"]),
            None,
            "render.media_unsupported",
            "audios",
            "reads no audio",
        ),
        (
            media.row("<image>", images=["none.png"]),
            None,
            "render.media_error",
            "images[0]",
            "no file",
        ),
        (
            media.row("<image>", images=[{"bytes": b"no image"}]),
            None,
            "render.media_error",
            "images[0]",
            "cannot identify",
        ),
        (
            media.row("a<video>", videos=["s.wav"]),
            None,
            "render.media_error",
            "videos[0]",
            "without pictures",
        ),
        (
            media.row("<image>", images=[{"path": "a.png", "fps": 9}]),
            None,
            "render.media_error",
            "images[0]",
            "fps on one image, for which the policy's Qwen2_5_VLProcessor has one setting for all: "
            "data.mm_processor_kwargs",
        ),
        (
            media.row("<image>", images=["a.png"] * 2),
            None,
            "render.media_error",
            "images",
            "1 <image> placeholder",
        ),
        (
            media.row("<image>", images=["a.png"]),
            RAISES,
            "render.template_error",
            "prompt",
            "no images, please",
        ),
        (
            media.row("<image>", images=["a.png"]),
            DROPS_IMAGES,
            "render.media_lost",
            "prompt",
            "0 image placeholders",
        ),
    ],
)
def test_a_row_that_cannot_be_rendered_has_its_reason_and_harms_no_other(
    load: Load, row: dict[str, Any], template: str | None, code: str, path: str, reason: str
) -> None:
    good = media.row("<image>?", images=["a.png"])
    renderer = load("qwen2_5_vl")
    expected = None if template else renderer.render([good])[0]
    if template:
        renderer.processor.chat_template = template
    refused, other = renderer.render([row, good])
    assert (refused.ids, refused.code, refused.path) == (None, code, path)
    assert reason in (refused.error or "")
    if expected is not None:
        assert other == expected


@pytest.mark.parametrize(
    ("row", "template", "code", "path", "reason"),
    [
        (
            media.row("<image>", images=["a.png"], system="Be brief."),
            DROPS_SYSTEM,
            "render.text_lost",
            "prompt[0].content",
            "not in the rendered prompt",
        ),
        (
            media.row("<image>", images=["a.png"]) | {"tools": [WEATHER]},
            WRITES_PARTS,
            "render.tools_lost",
            "tools[0].function.name",
            "the chat template writes no tools",
        ),
        (
            _calls(media.row("<image>", images=["a.png"])),
            WRITES_PARTS,
            "render.tool_calls_lost",
            "prompt[0].tool_calls[0].function.name",
            "the chat template writes no tool calls",
        ),
    ],
)
def test_what_the_template_leaves_out_of_a_row_with_media_is_named(
    load: Load, row: dict[str, Any], template: str, code: str, path: str, reason: str
) -> None:
    renderer = load("qwen2_5_vl")
    renderer.processor.chat_template = template
    (rendered,) = renderer.render([row])
    assert [(lost.code, lost.path) for lost in rendered.lost] == [(code, path)]
    assert reason in rendered.lost[0].message
    # Where that is a warning, the row reaches the model.
    assert renderer.inputs(row)[0] == rendered.ids


def test_what_an_assistant_thought_earlier_may_be_left_out(load: Load) -> None:
    renderer = load("qwen2_5_vl")
    renderer.processor.chat_template = DROPS_SYSTEM.replace("'system'", "'assistant'")
    row = media.row("<image>?", images=["a.png"])
    row["prompt"].insert(0, {"role": "assistant", "content": "<think>Hm.</think>"})
    (rendered,) = renderer.render([row])
    assert (rendered.error, rendered.lost) == (None, [])


TOLD = "What does <image> show?"
PART = {"type": "image"}


@pytest.mark.parametrize(
    "row",
    [
        media.row([said("What does "), PART, said(" show?")], images=["a.png"]),
        media.row([said(TOLD)], images=["a.png"]),
        media.row([said("What does "), {"type": "image", "image": "a.png"}, said(" show?")]),
        media.row(
            [said("What does "), PART, {"type": "image", "path": "b.png"}, said("?")], images=["a.png"]
        ),
    ],
)
def test_placeholders_and_parts_are_two_ways_to_say_the_same(load: Load, row: dict[str, Any]) -> None:
    renderer = load("qwen2_5_vl")
    told = TOLD if "b.png" not in str(row) else "What does <image><image>?"
    images = ["a.png", "b.png"][: told.count("<image>")]
    assert renderer.render([row]) == renderer.render([media.row(told, images=images)])
    assert renderer.render([row])[0].error is None


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_medium_has_its_run_and_every_text_its_place(
    load: Load, kind: str, data: st.DataObject
) -> None:
    """Media side by side, in any turn and role, as placeholders and as parts; texts that are empty, blank,
    said twice, or look like marks of a template."""
    texts = st.sampled_from(["", " ", "a", "aa", "\n\na \n", "<|im_end|>\n", "<Image>", "é"])
    pieces = st.lists(st.sampled_from(["<image>", "<video>"]) | texts, max_size=5)
    prompt, images, videos, said_ = [], 0, 0, []
    for number, turn in enumerate(data.draw(st.lists(pieces, min_size=1, max_size=3))):
        role = data.draw(st.sampled_from(["system", "user", "tool"])) if number % 2 else "user"
        images, videos = images + turn.count("<image>"), videos + turn.count("<video>")
        said_ += [piece for piece in turn if piece not in ("<image>", "<video>")]
        as_parts = [{"type": p[1:-1]} if p in ("<image>", "<video>") else said(p) for p in turn]
        prompt.append({"role": role, "content": as_parts if data.draw(st.booleans()) else "".join(turn)})
    row = media.row("", images=["a.png"] * images, videos=["v.mp4"] * videos) | {"prompt": prompt}
    renderer = load(kind, mm_processor_kwargs={"fps": 1})
    (rendered,) = renderer.render([row])
    if not images and not videos:
        return
    assert rendered.ids is not None, rendered.error
    text = renderer.processor.tokenizer.decode(rendered.ids)
    runs = re.findall(r"(?:<\|image_pad\|>)+|(?:<\|video_pad\|>)+", text)
    of_a_video = 2 if kind == "qwen3_vl" else 1  # Qwen3-VL has a run per pair of frames, each with its time
    assert sum(run.startswith("<|image") for run in runs) == images
    assert sum(run.startswith("<|video") for run in runs) == videos * of_a_video
    for piece in said_:
        assert piece in text


def test_tools_are_rendered_and_a_row_may_bring_its_own(load: Load) -> None:
    def tool(name: str) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": name}}]

    renderer = load("qwen2_5_vl", tools=tool("shared"))
    row = media.row("<image>?", images=["a.png"])
    for asked, name in ((row, "shared"), ({**row, "tools": tool("own")}, "own")):
        assert f'"name": "{name}"' in renderer.processor.tokenizer.decode(renderer.render([asked])[0].ids)


@pytest.mark.parametrize(
    ("kind", "settings", "with_media"),
    [
        ("qwen2_5_vl", {}, 2),
        ("qwen2_5_vl", {"add_special_tokens": False}, 1),
        ("qwen2_5_vl", {"text_kwargs": {"add_special_tokens": False}}, 1),
        ("llava", {}, 1),
        ("gemma3", {}, 1),
    ],
)
def test_bos_is_written_once_but_where_verl_writes_it_twice(
    load: Load, root: Path, tmp_path: Path, kind: str, settings: dict[str, Any], with_media: int
) -> None:
    """By the template, and not by the tokenizer too, which adds it to any text of its own accord."""
    load(kind)
    shutil.copytree(root / "policies" / kind, tmp_path / "policy")
    backend = Tokenizer.from_file(str(tmp_path / "policy/tokenizer.json"))
    bos = ("<|endoftext|>", processors.token_id("<|endoftext|>"))
    backend.post_processor = TemplateProcessing(single=f"{bos[0]} $A", special_tokens=[bos])
    backend.save(str(tmp_path / "policy/tokenizer.json"))
    file = tmp_path / "policy/chat_template.jinja"
    file.write_text(bos[0] + file.read_text())
    renderer = PromptRenderer.load(tmp_path / "policy", root=root, mm_processor_kwargs=settings)
    assert renderer.tokenizer("a")["input_ids"][0] == bos[1]
    assert renderer.media is not None
    row = media.row("<image>?", images=["a.png"])
    (by_size,), (in_full, _) = renderer.media.render([row]), renderer.media.inputs(row)
    (text,) = renderer.render([[{"role": "user", "content": "Hi"}]])
    for ids, times in ((by_size.ids, with_media), (in_full, with_media), (text.ids, 1)):
        assert ids is not None
        assert (ids[0], ids.count(bos[1])) == (bos[1], times)


def test_rows_are_worked_on_side_by_side_and_what_tokenizer_json_declares_does_no_harm(
    load: Load, root: Path, tmp_path: Path
) -> None:
    load("qwen2_5_vl")
    shutil.copytree(root / "policies/qwen2_5_vl", tmp_path / "policy")
    backend = Tokenizer.from_file(str(tmp_path / "policy/tokenizer.json"))
    backend.enable_padding(length=64)
    backend.enable_truncation(8)
    backend.save(str(tmp_path / "policy/tokenizer.json"))
    renderer = load_media_renderer(tmp_path / "policy", root=root, mm_processor_kwargs={"fps": 1})
    assert renderer is not None
    threads: set[int] = set()
    process = renderer._process

    def seen(prompt: Any) -> Any:
        threads.add(threading.get_ident())
        return process(prompt)

    renderer._process = seen  # type: ignore[method-assign]
    rows = [media.row(f"<video>{'é' * n}", videos=["v.mp4"]) for n in range(24)]
    rendered = renderer.render(rows)
    assert threading.get_ident() not in threads
    assert 1 <= len(threads) <= min(threads_of_own(), MOST_THREADS)
    alone = load("qwen2_5_vl", mm_processor_kwargs={"fps": 1})
    assert rendered == [alone.render([row])[0] for row in rows]


def test_a_renderer_that_was_sent_to_another_process_renders_the_same(load: Load) -> None:
    renderer = load("qwen3_vl", mm_processor_kwargs={"fps": 1})
    rows = [media.row("<image>", images=["a.png"]), media.row("<video>", videos=["v.mp4"])]
    rendered = renderer.render(rows)
    assert pickle.loads(pickle.dumps(renderer)).render(rows) == rendered


def test_the_stamp_tells_settings_apart_and_survives_a_copy(load: Load, root: Path, tmp_path: Path) -> None:
    stamp = load("qwen2_5_vl").stamp_parts
    shutil.copytree(root / "policies/qwen2_5_vl", tmp_path / "copy")
    assert load_media_renderer(tmp_path / "copy", root=root).stamp_parts == stamp
    changed = {
        "processor": load("qwen2_vl").stamp_parts,
        "mm_processor_kwargs": load("qwen2_5_vl", mm_processor_kwargs={"fps": 1}).stamp_parts,
        "processor_template": load("llava").stamp_parts,
    }
    settings = tmp_path / "copy/processor_config.json"
    settings.write_text(settings.read_text().replace('"merge_size": 2', '"merge_size": 1'))
    changed["processor "] = load_media_renderer(tmp_path / "copy", root=root).stamp_parts
    for part, other in changed.items():
        assert other[part.strip()] != stamp[part.strip()], part


def test_the_digest_follows_the_bytes_of_the_media_and_the_settings(load: Load) -> None:
    renderer = load("qwen2_5_vl")
    data = media.png(*IMAGES["a.png"])
    by_bytes = renderer.digest(media.row("<image>", images=[{"bytes": data}]))
    assert by_bytes != renderer.digest(media.row("<image>", images=[{"bytes": media.png(51, 30)}]))
    assert by_bytes != load("qwen3_vl").digest(media.row("<image>", images=[{"bytes": data}]))
    same = io.BytesIO()
    pixels("a.png").save(same, "PNG")
    assert by_bytes == renderer.digest(media.row("<image>", images=[{"bytes": same.getvalue()}]))


@pytest.mark.parametrize(
    "broken",
    [media.row("<image>", images=["none.png"]), media.row("<image>", images=[{"path": "a.png", "fps": 1}])],
)
def test_what_was_measured_and_is_refused_now_is_an_error_in_the_same_words(
    load: Load, broken: dict[str, Any]
) -> None:
    renderer = load("qwen2_5_vl")
    (refused,) = renderer.render([broken])
    for ask in (renderer.inputs, renderer.digest):
        with pytest.raises(
            InputError, match=r"row 3: field `images\[0\]`: found \[render.media_error\]"
        ) as told:
            ask(broken)
        assert f"[{refused.code}] {refused.error} (uid u1)" in str(told.value)


@pytest.mark.parametrize("where", ["processor", "tokenizer"])
def test_rows_with_media_and_without_have_one_template(
    load: Load, root: Path, tmp_path: Path, where: str
) -> None:
    """Some checkpoints keep it beside the processor alone, in a file that tokenizers do not read, and some in
    the tokenizer's settings alone, which processors do not read."""
    load("qwen2_5_vl")
    folder = tmp_path / "policy"
    shutil.copytree(root / "policies/qwen2_5_vl", folder)
    template = "{{ 'mine: ' }}" + (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    if where == "processor":
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    else:
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_bytes()), "chat_template": template}))
    renderer = PromptRenderer.load(folder, root=root)
    assert renderer.media is not None
    (text,) = renderer.render([[{"role": "user", "content": "Hi"}]])
    (picture,) = renderer.media.render([media.row("<image>", images=["a.png"])])
    for rendered in (text, picture):
        assert renderer.tokenizer.decode(rendered.ids).startswith("mine: <|im_start|>user"), rendered


def test_a_policy_without_a_processor_has_no_renderer(policy: Path, root: Path) -> None:
    assert load_media_renderer(policy, root=root) is None


def contract(root: Path, name: str, rows: list[dict[str, Any]]) -> Table:
    write_jsonl(root / f"data/{name}.jsonl", rows)
    (root / name).mkdir()
    manifest = scan_files([f"data/{name}.jsonl"], root=root)
    return apply_contract(manifest, ContractOptions(), root=root, folder=root / name).accepted


@pytest.mark.parametrize("truncation", ["left", "right", "middle"])
def test_a_prompt_with_media_is_never_cut(load: Load, root: Path, truncation: Any) -> None:
    """It would lose tokens of its media, or a text beside them: it is overlong, whole."""
    load("qwen2_5_vl")
    asked = [
        problem(0, prompt=[{"role": "user", "content": "long " * 30}]),
        problem(1, prompt=[{"role": "user", "content": "<image>" + "long " * 30}], images=["a.png"]),
        problem(2, prompt=[{"role": "user", "content": [{"type": "image", "image": "c.png"}, said("?")]}]),
        problem(3, prompt=[{"role": "user", "content": [PART, said("long " * 30)]}], images=["a.png"]),
    ]
    gate = filter_by_length(
        contract(root, truncation, asked),
        PromptRenderer.load(root / "policies/qwen2_5_vl", root=root),
        max_prompt_length=50,
        folder=root / truncation,
        log=lambda _: None,
        truncation=truncation,
    )
    assert [(row["source_row"], row["prompt_length"]) for row in gate.kept.rows()] == [(0, 50)]
    whole = {row["source_row"]: row["prompt_ids"] for row in gate.overlong.rows()}
    pads = {
        number: list(ids or []).count(processors.token_id("<|image_pad|>")) for number, ids in whole.items()
    }
    # The third is within twice the limit; of the others the length is kept.
    assert pads == {1: 0, 2: 30, 3: 0}
    assert gate.refused.num_rows == 0


def test_the_gate_sets_aside_rows_whose_media_a_text_policy_cannot_read(policy: Path, root: Path) -> None:
    """Media in a column, and media in the message itself."""
    part = [{"type": "image", "image": "a.png"}, said("?")]
    rows = [
        problem(0),
        problem(1, prompt=[{"role": "user", "content": "<image>?"}], images=["a.png"]),
        problem(2, prompt=[{"role": "user", "content": part}]),
    ]
    gate = filter_by_length(
        contract(root, "gate", rows),
        PromptRenderer.load(policy, root=root),
        max_prompt_length=96,
        folder=root / "gate",
        log=lambda _: None,
    )
    refused = {row["source_row"]: (row["code"], row["path"]) for row in gate.refused.rows()}
    assert refused == {1: ("render.media_unsupported", "images"), 2: ("render.media_unsupported", "prompt")}
    assert gate.kept.num_rows == 1


def test_a_processor_that_does_not_load_is_named(root: Path, load: Load, tmp_path: Path) -> None:
    load("qwen2_5_vl")
    shutil.copytree(root / "policies/qwen2_5_vl", tmp_path / "policy")
    (tmp_path / "policy/processor_config.json").write_text("{")
    with pytest.raises(InputError, match=r"policy.path.*processor does not load.*\[media\]"):
        load_media_renderer(tmp_path / "policy", root=root)
