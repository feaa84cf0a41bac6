"""Media in training files read by the real verl; run by test_with_verl.py in a process that has it.

`RLHFDataset` loads a file with its processor and filters it. What it makes of every row, good or bad, is what
`VerlReader` says of it.
"""

import base64
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from omegaconf import OmegaConf
from qwen_vl_utils import vision_process
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.tokenizer import hf_processor

from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.media.decode import read_video
from rl_assets.media.source import MediaSource
from rl_assets.prompts.length import filter_by_length
from rl_assets.prompts.render import PromptRenderer
from rl_assets.trainset.curate import Selection, curate, read_prompts
from rl_assets.trainset.export import write_export
from rl_assets.trainset.media import MediaForm, MediaWriter
from rl_assets.trainset.verl_reader import DroppedError, VerlReader, VerlSource
from tests.prompts import media, processors

LIMIT = 120


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return processors.save("qwen2_5_vl", tmp_path_factory.mktemp("policy"))


class Measured(RLHFDataset):
    """verl's dataset, which remembers every length that its filter computes."""

    def maybe_filter_out_long_prompts(self, dataframe: Any = None) -> Any:
        self.lengths: list[int] = []

        class Frame:
            @staticmethod
            def filter(test: Any, **_: Any) -> Any:
                cells = [cell.cell_contents for cell in test.__closure__]
                measure = dict(zip(test.__code__.co_freevars, cells, strict=True))["doc2len"]
                self.lengths = [measure(row) for row in dataframe]
                return dataframe.select([n for n in range(len(dataframe)) if test(dataframe[n])])

        return super().maybe_filter_out_long_prompts(Frame())


def by_verl(file: Path, policy: Path, mm_processor_kwargs: dict[str, Any] | None = None) -> Measured:
    processor = transformers.AutoProcessor.from_pretrained(policy)
    settings = {"max_prompt_length": LIMIT, "mm_processor_kwargs": mm_processor_kwargs or {}}
    config = OmegaConf.create({"cache_dir": str(file.parent / "cache"), **settings})
    return Measured(str(file), processor.tokenizer, config, processor)


def uri(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def asked(content: Any, **columns: Any) -> dict[str, Any]:
    return {
        "data_source": "hiyouga/geometry3k",
        "prompt": [{"role": "user", "content": content}],
        "reward_model": {"style": "rule", "ground_truth": "34"},
        **columns,
    }


def raw_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows in all the forms in which people give images: of a jsonl file, beside which the images are."""
    (folder / "img").mkdir(parents=True)
    rows = [asked("What is 17 + 17?")]
    for number, side in enumerate([(24, 32), (50, 30), (20, 60), (33, 47), (64, 64)]):
        name = f"img/{number}.png"
        (folder / name).write_bytes(media.png(*side))
        rows += [
            asked(f"<image>Find {number}.", images=[name]),
            asked(f"<image> Find {number}", images=[{"path": name}]),
            asked(f"What is <image>, {number}?", images=[uri(media.png(side[1], side[0]))]),
            asked([{"type": "image", "image": name}, {"type": "text", "text": f"Part {number}?"}]),
        ]
    name = "img/0.png"
    rows += [
        asked("<image>, <image> and <image>?", images=[name, {"path": "img/1.png"}, uri(media.png(16, 40))]),
        asked([{"type": "image"}, {"type": "text", "text": "?"}], images=[name]),
        asked("<image> What does <video> mean in HTML?", images=[name]),
        asked("What does <image> mean in HTML?"),
    ]
    return rows


def write_jsonl(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def exported(root: Path, policy: Path, rows: list[dict[str, Any]], form: MediaForm = "bytes") -> Path:
    """The training set of the rows, after the contract and the length gate; none is lost on the way."""
    write_jsonl(root / "raw/train.jsonl", rows)
    (root / "made").mkdir()
    tags = ContractOptions(severities={"media.orphan_placeholder": "warning"})
    contract = apply_contract(scan_files("raw", root=root), tags, root=root, folder=root / "made")
    assert not list(contract.rejected.rows(["message"]))
    gate = filter_by_length(
        contract.accepted,
        PromptRenderer.load(policy, root=root),
        max_prompt_length=10_000,
        folder=root / "made",
        log=lambda _: None,
    )
    assert not list(gate.refused.rows(["message"]))
    curated = curate(read_prompts(gate.kept), Selection(), {})
    target = root / "verl_dataset"
    target.mkdir()
    writer = MediaWriter.of(gate.kept, MediaSource(root), form, target, target)
    made = write_export(gate.kept, curated, media=writer, parameters={}, folder=target)
    assert made.rows == gate.kept.num_rows
    return target / "train.parquet"


def table_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file as `datasets` reads them."""
    return list(datasets.Dataset.from_parquet(str(file), cache_dir=str(file.parent / "own")))


def write_json_columns(file: Path, rows: list[dict[str, Any]], *names: str) -> None:
    """A parquet file of columns whose values differ in shape, each as JSON."""
    columns = [[None if row.get(name) is None else json.dumps(row[name]) for row in rows] for name in names]
    arrays = [pa.ExtensionArray.from_storage(pa.json_(), pa.array(values)) for values in columns]
    pq.write_table(pa.table(arrays, names=list(names)), file)


def compare(
    file: Path, policy: Path, mm_processor_kwargs: dict[str, Any] | None = None
) -> tuple[list[int | DroppedError], Measured]:
    """Hold the verdict on every row against verl's: the same length, or dropped by both."""
    theirs = by_verl(file, policy, mm_processor_kwargs)
    renderer = PromptRenderer.load(policy, mm_processor_kwargs=mm_processor_kwargs)
    ours = VerlReader(renderer).measure(table_rows(file))
    told = [LIMIT + 1 if isinstance(length, DroppedError) else length for length in ours]
    assert told == theirs.lengths
    return ours, theirs


@pytest.mark.parametrize("form", ["bytes", "paths"])
def test_verl_keeps_every_row_with_media_in_any_folder(
    tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch, form: MediaForm
) -> None:
    file = exported(tmp_path, policy, raw_rows(tmp_path / "raw"), form)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    lengths, theirs = compare(file, policy)
    assert not [length for length in lengths if isinstance(length, DroppedError)]
    assert len(theirs) == sum(length <= LIMIT for length in theirs.lengths)


def test_settings_of_some_images_stay_with_them(tmp_path: Path, policy: Path) -> None:
    """A null in their place would be a size for verl."""
    rows = raw_rows(tmp_path / "raw")
    size = {"resized_height": 24, "resized_width": 41}
    rows += [
        asked(f"<image> {n} <image>", images=["img/3.png", {"image": "img/4.png", **own}])
        for n, own in enumerate([{"max_pixels": 640}, {"min_pixels": 1280, "max_pixels": 1920}, size])
    ]
    lengths, theirs = compare(exported(tmp_path, policy, rows), policy)
    assert not [length for length in lengths if isinstance(length, DroppedError)]
    plain = [asked(f"<image> {n} <image>", images=["img/3.png", "img/4.png"]) for n in range(3)]
    (tmp_path / "plain").mkdir()
    raw_rows(tmp_path / "plain/raw")
    assert theirs.lengths[-3:] != compare(exported(tmp_path / "plain", policy, plain), policy)[1].lengths


def test_images_of_every_size_are_measured_as_verl_measures_them(tmp_path: Path, policy: Path) -> None:
    """Those too that the processor or qwen-vl-utils makes smaller or larger."""
    sides = [(8, 8), (8, 90), (21, 122), (16, 16), (71, 52), (130, 130), (37, 200), (400, 30), (23, 41)]
    rows = [asked(f"<image> {n}", images=[{"bytes": media.png(*side)}]) for n, side in enumerate(sides)]
    file = tmp_path / "train.parquet"
    image = pa.list_(pa.struct([("bytes", pa.binary())]))
    table = pa.Table.from_pylist([{"prompt": row["prompt"]} for row in rows])
    pq.write_table(table.append_column("images", pa.array([row["images"] for row in rows], image)), file)
    lengths, _ = compare(file, policy)
    assert len(set(lengths)) > 4


def test_lists_of_frames_are_opened_and_measured_as_verl_does(tmp_path: Path, policy: Path) -> None:
    raw_rows(tmp_path / "raw")
    frames = [f"img/{n}.png" for n in (0, 0, 0, 0)]
    rows = [
        asked("A film: <video>", videos=[frames]),
        asked("One: <video>", videos=[{"video": frames}]),
        asked("<video>", videos=[frames[:3]]),
        asked("<video> <image>", videos=[frames], images=["img/1.png"]),
        asked("Large: <video>", videos=[{"video": frames, "max_pixels": 9000}]),
        asked("Sized: <video>", videos=[{"video": frames, "resized_height": 24, "resized_width": 41}]),
        asked([{"type": "video", "video": frames}, {"type": "text", "text": "?"}]),
    ]
    lengths, theirs = compare(exported(tmp_path, policy, rows), policy)
    assert len(theirs) == sum(length <= LIMIT for length in theirs.lengths)
    assert not [length for length in lengths if isinstance(length, DroppedError)]


def test_frames_that_verl_takes_of_a_video_count_where_a_key_gives_the_gate_fewer(
    tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl uses no `fps` of `mm_processor_kwargs`: a row may be within the limit here and beyond it there.
    torchvision, with which it reads videos, reads none now: its reader is given the frames as we decode
    them."""

    def read(path: str, **_: Any) -> tuple[torch.Tensor, None, dict[str, float]]:
        everything, about = read_video(Path(path), lambda about: range(about["total_num_frames"]))
        return torch.from_numpy(everything), None, {"video_fps": about["fps"]}

    monkeypatch.setattr(vision_process.io, "read_video", read, raising=False)
    clip = str(media.video(tmp_path / "v.mp4", rate=4))
    asks = ({}, {"fps": 0.5}, {"nframes": 4}, {"fps": 1, "max_pixels": 9000}, {"nframes": 400})
    rows = [asked("<video>", videos=[{"video": clip, **own}]) for own in asks]
    file = tmp_path / "train.parquet"
    write_json_columns(file, rows, "prompt", "videos")
    kwargs = {"fps": 0.5}
    ours, theirs = compare(file, policy, kwargs)
    assert [isinstance(length, DroppedError) for length in ours] == [False] * 4 + [True]
    renderer = PromptRenderer.load(policy, mm_processor_kwargs=kwargs)
    assert renderer.media is not None
    gate = renderer.media.opening(VerlSource(Path())).render(rows[:2])
    fewer, same = (len(one.ids or ()) for one in gate)
    assert (fewer, same) == (theirs.lengths[1], theirs.lengths[1])
    assert fewer < LIMIT < theirs.lengths[0]


def bad_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows that verl drops, and rows beside them that it keeps though they look like those."""
    picture = folder / "a.png"
    picture.write_bytes(media.png(24, 32))
    (folder / "cut.png").write_bytes(media.png(64, 64)[:1500])
    (folder / "no.png").write_text("no image")
    path, data = str(picture), uri(media.png(24, 32))
    system = {"role": "system", "content": "Be brief."}
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    items: list[Any] = [
        path,
        data,
        f"file://{path}",
        "a.png",
        str(folder / "cut.png"),
        str(folder / "no.png"),
        str(folder / "missing.png"),
        "data:application/octet-stream;base64," + data.partition(",")[2],
        data.replace("base64,", ""),
        {"image": path},
        {"image": path, "max_pixels": 640, "min_pixels": None},
        {"image": path, "resized_height": None, "resized_width": None},
        {"image": path, "resized_height": 24, "resized_width": 41},
        {"image_url": path},
        {"path": path},
        {"url": path},
        {"bytes": None, "path": path},
        {"image": None},
        {"image": {"url": path}},
        {},
        None,
        7,
        [path],
    ]
    part = {"type": "image", "image": path}
    text = {"type": "text", "text": "?"}
    return [
        *(asked("<image> What?", images=[item]) for item in items),
        asked("What?", images=[path]),
        asked("<image> <image>", images=[path]),
        asked("<image>", images=[]),
        asked("<image>", images=[path], videos=[[path]]),
        asked([part, text]),
        asked([{"type": "image", "image": "a.png"}, text]),
        asked([{"type": "image"}, text]),
        asked([{"type": "image"}, text], images=[path]),
        asked([{"type": "image", "bytes": None, "image": path}, text]),
        asked([part, {**text, "image": None}]),
        asked("<image>" + "long " * 40, images=[path]),
        asked("word " * 60),
        asked("<image>", images=[path]) | {"prompt": [system, {"role": "user", "content": "<image>"}]},
        asked("") | {"prompt": [{"role": "user", "content": [part]}, call]},
    ]


def test_a_row_that_verl_drops_is_known(tmp_path: Path, policy: Path) -> None:
    rows = bad_rows(tmp_path)
    file = tmp_path / "train.parquet"
    write_json_columns(file, rows, "prompt", "images", "videos")
    lengths, theirs = compare(file, policy)
    dropped = [length for length in lengths if isinstance(length, DroppedError)]
    assert len(dropped) > 15
    assert all(map(str, dropped))
    assert len(theirs) > 8


def test_verl_stops_at_media_of_a_policy_whose_processor_it_does_not_load(tmp_path: Path) -> None:
    """Its filter takes the placeholder for text and keeps the row."""
    policy = processors.save("gemma3", tmp_path / "policy")
    transformers.AutoConfig.for_model("gemma3").save_pretrained(policy)
    assert hf_processor(str(policy)) is None
    file = tmp_path / "train.parquet"
    image = pa.list_(pa.struct([("bytes", pa.binary())]))
    table = pa.table({"prompt": [[{"role": "user", "content": text}] for text in ("What?", "<image>")]})
    images = pa.array([None, [{"bytes": media.png(24, 32)}]], image)
    pq.write_table(table.append_column("images", images), file)
    config = OmegaConf.create({"max_prompt_length": LIMIT, "cache_dir": str(tmp_path / "cache")})
    theirs = RLHFDataset(str(file), transformers.AutoTokenizer.from_pretrained(policy), config, None)
    assert len(theirs) == 2
    with pytest.raises(AssertionError, match="processor is needed"):
        theirs[1]
    part = {"prompt": [{"role": "user", "content": [{"type": "image", "image": "/a.png"}]}]}
    length, *refused = VerlReader(PromptRenderer.load(policy)).measure([*table_rows(file), part])
    assert isinstance(length, int)
    assert ["Gemma3Processor" in str(one) for one in refused] == [True, True]


def test_bytes_that_are_damaged_are_known(tmp_path: Path, policy: Path) -> None:
    whole = media.png(64, 64)
    some = [whole, whole[:1500], b"", b"no image", None, media.png(24, 32, "RGBA"), media.png(24, 32, "L")]
    rows = [asked("<image> What?") | {"images": [{"bytes": data}]} for data in some]
    file = tmp_path / "train.parquet"
    image = pa.list_(pa.struct([("bytes", pa.binary())]))
    table = pa.Table.from_pylist([{"prompt": row["prompt"]} for row in rows])
    pq.write_table(table.append_column("images", pa.array([row["images"] for row in rows], image)), file)
    lengths, _ = compare(file, policy)
    assert [isinstance(length, DroppedError) for length in lengths] == [False, *[True] * 4, False, False]
