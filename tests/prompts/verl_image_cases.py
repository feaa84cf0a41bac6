"""Prompts with images measured by the real verl and by us; run by test_verl_image_parity.py with verl.

verl's `RLHFDataset` reads the same files with the same processor. It resizes every image with qwen-vl-utils
before the processor does; we take the same steps.
"""

import io
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
import verl.utils.dataset.rl_dataset as verl_dataset
from omegaconf import OmegaConf
from PIL import Image
from verl.utils.tokenizer import build_multimodal_processor_inputs, hf_processor

from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.prompts.length import filter_by_length
from rl_assets.prompts.multimodal import load_media_renderer
from rl_assets.prompts.render import PromptRenderer
from rl_assets.prompts.tools import load_tool_schemas
from tests.prompts import processors

LIMIT = 70
QUESTION = "<image>Find x."


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return processors.save("qwen2_5_vl", tmp_path_factory.mktemp("policy"))


def png(height: int, width: int, mode: str = "RGB") -> bytes:
    noise = np.random.default_rng(height * width).integers(0, 256, (height, width, 4), dtype=np.uint8)
    sink = io.BytesIO()
    Image.fromarray(noise, "RGBA").convert(mode).save(sink, "PNG")
    return sink.getvalue()


def row(number: int, content: str, images: Sequence[bytes], **settings: int) -> dict[str, Any]:
    return {
        "data_source": "hiyouga/geometry3k",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
        "images": [{"bytes": data, "path": None, **settings} for data in images],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        "extra_info": {"index": number},
    }


def write(root: Path, rows: list[dict[str, Any]]) -> Path:
    """A parquet file as verl's own preprocessing of geometry3k writes it."""
    settings = {name for row in rows for image in row["images"] for name in image} - {"bytes", "path"}
    image = pa.struct(
        [("bytes", pa.binary()), ("path", pa.string()), *((name, pa.int64()) for name in sorted(settings))]
    )
    table = pa.Table.from_pylist(rows)
    at = table.schema.get_field_index("images")
    table = table.set_column(at, "images", pa.array([row["images"] for row in rows], pa.list_(image)))
    pq.write_table(table, root / "train.parquet")
    return root / "train.parquet"


class Measured(verl_dataset.RLHFDataset):
    """verl's dataset, which remembers every length that its filter computes."""

    def maybe_filter_out_long_prompts(self, dataframe: Any = None) -> Any:
        self.lengths: dict[int, int] = {}

        def filter_with(test: Any, **_: Any) -> Any:
            length_of = dict(
                zip(test.__code__.co_freevars, (cell.cell_contents for cell in test.__closure__), strict=True)
            )["doc2len"]
            kept = []
            for index, doc in enumerate(dataframe):
                self.lengths[doc["extra_info"]["index"]] = length_of(doc)
                if test(dataframe[index]):
                    kept.append(index)
            return dataframe.select(kept)

        class Frame:
            filter = staticmethod(filter_with)

        return super().maybe_filter_out_long_prompts(Frame())


def by_verl(file: Path, policy: Path, **config: Any) -> tuple[dict[int, int], list[int]]:
    """Length of every row, and which verl keeps; a row that it cannot measure has one more than the limit."""
    processor = transformers.AutoProcessor.from_pretrained(policy)
    dataset = Measured(
        str(file),
        processor.tokenizer,
        OmegaConf.create({"max_prompt_length": LIMIT, "cache_dir": str(file.parent / "cache"), **config}),
        processor,
    )
    return dataset.lengths, [doc["extra_info"]["index"] for doc in dataset.dataframe]


def by_us(file: Path, policy: Path, **options: Any) -> tuple[dict[int, int], list[int]]:
    root = file.parent
    folder = root / "ours"
    folder.mkdir()
    result = apply_contract(scan_files([file.name], root=root), ContractOptions(), root=root, folder=folder)
    assert not list(result.rejected.rows())
    renderer = PromptRenderer.load(policy, root=root, **options)
    gate = filter_by_length(
        result.accepted, renderer, max_prompt_length=LIMIT, folder=folder, log=lambda _: None
    )
    assert not list(gate.refused.rows())
    kept, overlong = list(gate.kept.rows()), list(gate.overlong.rows())
    lengths = {json.loads(r["extra_info"])["index"]: r["prompt_length"] for r in [*kept, *overlong]}
    return lengths, [json.loads(r["extra_info"])["index"] for r in kept]


def same(root: Path, policy: Path, rows: list[dict[str, Any]], **settings: Any) -> dict[int, int]:
    file = write(root, rows)
    ours, theirs = by_us(file, policy, **settings), by_verl(file, policy, **settings)
    assert ours == theirs
    assert ours[1], "some are kept"
    return ours[0]


def test_lengths_and_kept_rows_are_verls(tmp_path: Path, policy: Path) -> None:
    """Every size between 8 and 40 tokens, upright and flat, at multiples of the patch and between them."""
    sides = list(itertools.product((16, 23, 40, 44, 71), (24, 37, 40, 52)))
    rows = [row(number, QUESTION, [png(*side)]) for number, side in enumerate(sides)]
    lengths = same(tmp_path, policy, rows)
    assert min(lengths.values()) < LIMIT < max(lengths.values())


def test_several_images_in_several_messages(tmp_path: Path, policy: Path) -> None:
    two = row(0, "<image> or <image>?", [png(16, 24), png(24, 16)])
    first = row(1, "And <image>?", [png(24, 24), png(16, 16)])
    first["prompt"][1:1] = [
        {"role": "user", "content": "What is <image>?"},
        {"role": "assistant", "content": "A dot."},
    ]
    same(tmp_path, policy, [two, first])


@pytest.mark.parametrize("mode", ["RGBA", "L", "P", "1"])
def test_images_of_every_mode(tmp_path: Path, policy: Path, mode: str) -> None:
    same(tmp_path, policy, [row(0, QUESTION, [png(24, 32, mode)])])


def test_text_rows_beside_rows_with_images(tmp_path: Path, policy: Path) -> None:
    same(tmp_path, policy, [row(0, "Find x.", []), row(1, QUESTION, [png(24, 32)])])


def test_arguments_of_the_processor(tmp_path: Path, policy: Path) -> None:
    """An image of 32 × 32 pixels is 16 tokens, and 4 where at most 320 pixels are seen."""
    lengths = []
    for most in (2560, 320):
        root = tmp_path / str(most)
        root.mkdir()
        size = {"min_pixels": 256, "max_pixels": most}
        lengths.append(same(root, policy, [row(0, QUESTION, [png(32, 32)])], mm_processor_kwargs=size)[0])
    assert lengths[0] - lengths[1] == 16 - 4


@pytest.mark.parametrize(
    "settings",
    [
        {"max_pixels": 640},
        {"min_pixels": 1280, "max_pixels": 1920},
        {"min_pixels": 900},
        {"resized_height": 24, "resized_width": 41},
    ],
)
def test_sizes_that_an_image_asks_for(tmp_path: Path, policy: Path, settings: dict[str, int]) -> None:
    sides = list(itertools.product((16, 23, 40, 44, 71), (24, 37, 52)))
    rows = [row(number, QUESTION, [png(*side)], **settings) for number, side in enumerate(sides)]
    plain = [row(number, QUESTION, [png(*side)]) for number, side in enumerate(sides)]
    assert same(_made(tmp_path / "own"), policy, rows) != same(_made(tmp_path / "plain"), policy, plain)


def test_tools_beside_images(tmp_path: Path, policy: Path) -> None:
    rows = [row(0, QUESTION, [png(24, 32)]), row(1, "Find x.", [])]
    file, tools = write(tmp_path, rows), tmp_path / "tools.yaml"
    tools.write_text(
        "tools: [{class_name: verl.tools.base_tool.BaseTool, config: {type: native}, tool_schema: {type: "
        "function, function: {name: f, description: d, parameters: {type: object, properties: {}, required: "
        "[]}}}}]"
    )
    lengths, _ = by_verl(file, policy, tool_config_path=str(tools))
    assert by_us(file, policy, tools=load_tool_schemas(tools))[0] == lengths
    assert lengths[0] > LIMIT + 50


DROPPED = LIMIT + 1
"""The length that verl's filter gives a row that it cannot measure."""


@pytest.mark.parametrize(
    ("sides", "settings", "tokens"),
    [
        # Above the processor's largest size verl rounds the sides to patches before the processor shrinks the
        # image, so the processor sees another shape.
        ([(21, 122), (122, 21), (130, 130), (400, 30), (71, 52)], {}, 28),
        # Below 4 tokens qwen-vl-utils enlarges it, whatever the processor's least size is.
        ([(8, 8), (8, 90), (16, 16)], {"min_pixels": 64, "max_pixels": 2560}, 4),
    ],
)
def test_images_beyond_the_processors_sizes(
    tmp_path: Path, policy: Path, sides: list[tuple[int, int]], settings: dict[str, Any], tokens: int
) -> None:
    (text,) = by_verl(write(_made(tmp_path / "text"), [row(0, "Find x.", [])]), policy)[0].values()
    rows = [row(number, QUESTION, [png(*side)]) for number, side in enumerate(sides)]
    marks = 2
    lengths = same(_made(tmp_path / "images"), policy, rows, mm_processor_kwargs=settings)
    assert lengths[0] == text + marks + tokens


def verls_processor(kind: str, policy: Path) -> Any:
    """The processor of a policy as verl loads it; it asks for the model's configuration too."""
    transformers.AutoConfig.for_model(kind).save_pretrained(policy)
    return hf_processor(str(policy))


@pytest.mark.parametrize("kind", processors.READ_BY_VERL)
def test_ids_and_tensors_are_verls(tmp_path: Path, kind: str) -> None:
    """The processor makes the same of images of many sizes and modes, with settings and without, and of lists
    of frames."""
    policy = processors.save(kind, tmp_path / "policy")
    processor = verls_processor(kind, policy)
    patch_size = getattr(processor.image_processor, "patch_size", 14)
    ours = load_media_renderer(policy, root=tmp_path)
    assert ours is not None
    sizes = [(16, 16), (23, 41), (21, 122), (8, 8), (130, 130), (50, 30)]
    modes = ["RGB", "RGBA", "L", "P", "1", "LA"]
    settings: list[dict[str, int]] = [
        {},
        {"max_pixels": 640},
        {"min_pixels": 1280},
        {"resized_height": 24, "resized_width": 41},
    ]
    if kind == "mllama":  # of larger pieces
        size = {"resized_height": 60, "resized_width": 90}
        settings = [{}, {"max_pixels": 3200}, {"min_pixels": 6400}, size]
    parts: list[dict[str, Any]] = []
    for number, ((size, mode), own) in enumerate(itertools.product(zip(sizes, modes, strict=True), settings)):
        path = tmp_path / f"{number}.png"
        path.write_bytes(png(*size, mode))
        parts.append({"type": "image", "image": str(path), **own})
    for own in ({}, {"max_pixels": 9000}, {"resized_height": 24, "resized_width": 41}):
        for frames in ([1, 1, 1], [4, 4, 4, 4], [16] * 6) if kind != "mllama" else ():
            parts.append({"type": "video", "video": [str(tmp_path / f"{n}.png") for n in frames], **own})
    rows, lengths = [], []
    for part in parts:
        messages = [{"role": "user", "content": [part, {"type": "text", "text": "Find x."}]}]
        rows.append({"raw_prompt": messages})
        ids, inputs = ours.inputs(rows[-1])
        opened = verl_dataset.RLHFDataset._process_multi_modal_info(messages, patch_size, None)
        media = dict(zip(("images", "videos", "audio"), opened, strict=True))
        text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        theirs = build_multimodal_processor_inputs(processor, text=[text], **media)
        assert ids == theirs["input_ids"][0].tolist(), part
        lengths.append(len(ids))
        tensors = inputs.keys() - {"images_seqlens"}
        assert {"pixel_values", "pixel_values_videos"} & tensors
        for name in tensors:
            assert torch.equal(torch.as_tensor(inputs[name]), torch.as_tensor(theirs[name])), (name, part)
    measured = ours.render(rows)
    assert [one.error or len(one.ids) for one in measured] == lengths


def test_a_patch_size_that_is_not_the_processors_is_another_length(tmp_path: Path, policy: Path) -> None:
    """In verl's filter alone: an image of 3 × 4 tokens is first enlarged to 56 × 84 pixels."""
    file = write(tmp_path, [row(0, QUESTION, [png(24, 32)])])
    own, other = (by_verl(file, policy, image_patch_size=side)[0][0] for side in (None, 14))
    assert by_us(file, policy)[0] == {0: own}
    assert other != own


def test_a_tokenizers_own_bos_is_before_the_templates_unless_a_key_says_otherwise(tmp_path: Path) -> None:
    policy = processors.save("mllama", tmp_path / "policy")
    rows = [row(0, QUESTION, [png(24, 32)])]
    plain = same(_made(tmp_path / "plain"), policy, rows)
    alone = same(_made(tmp_path / "alone"), policy, rows, mm_processor_kwargs={"add_special_tokens": False})
    assert plain[0] == alone[0] + 1


@pytest.mark.parametrize("kind", ["gemma3", "llava", "qwen2_audio"])
def test_verl_loads_no_other_processor(tmp_path: Path, kind: str) -> None:
    assert verls_processor(kind, processors.save(kind, tmp_path / "policy")) is None


def test_verl_drops_every_row_under_settings_with_an_object_in_them(tmp_path: Path, policy: Path) -> None:
    """Its configuration hands them to the processor as no dict; transformers 5 refuses that."""
    settings = {"size": {"shortest_edge": 256, "longest_edge": 2560}}
    file = write(tmp_path, [row(0, QUESTION, [png(16, 24)])])
    assert by_verl(file, policy, mm_processor_kwargs=settings)[0] == {0: DROPPED}
    lengths, kept = by_us(file, policy, mm_processor_kwargs=settings)
    assert kept == [0]
    assert lengths[0] < DROPPED


def test_verl_drops_rows_whose_parts_stand_for_the_media_of_a_column(tmp_path: Path, policy: Path) -> None:
    """It counts placeholders in texts alone, finds none, and stops at a row with one image too many."""
    told = row(0, QUESTION, [png(24, 32)])
    told["prompt"] = told["prompt"][1:]
    (tmp_path / "told").mkdir()
    expected = same(tmp_path / "told", policy, [told])
    parts = [{"type": "image"}, {"type": "text", "text": "Find x."}]
    file = write(tmp_path, [{**told, "prompt": [{"role": "user", "content": parts}]}])
    assert by_verl(file, policy) == ({0: DROPPED}, [])
    assert by_us(file, policy) == (expected, [0])


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
