"""The media of a training set: whole whatever form the raw files gave them, and readable from any folder."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rl_assets.base.tables import Table, TableWriter
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.errors import InputError
from rl_assets.media.source import MediaSource
from rl_assets.prompts.length import LENGTH_FILTERED_SCHEMA
from rl_assets.trainset.curate import Selection, curate, read_prompts
from rl_assets.trainset.export import Export, write_export
from rl_assets.trainset.media import COPIES, MediaForm, MediaWriter, as_seen
from tests.build import problem, write_jsonl
from tests.prompts import media


def contract(root: Path, files: str = "raw") -> Table:
    """The rows of the raw files as the length gate would keep them; the contract refuses none."""
    folder = root / f"made-{files.replace('/', '-')}"
    folder.mkdir()
    made = apply_contract(scan_files(files, root=root), ContractOptions(), root=root, folder=folder)
    assert list(made.rejected.rows(["message"])) == []
    with TableWriter(folder / "length_filtered.parquet", LENGTH_FILTERED_SCHEMA) as writer:
        writer.write_rows(
            {**row, "prompt_ids": [1], "prompt_length": 1, "uncut_length": None}
            for row in made.accepted.rows()
        )
    return writer.table


def export(
    root: Path, rows: Table, form: MediaForm = "bytes", forms: Sequence[str] = ()
) -> tuple[Export, Path]:
    target = root / "verl_dataset"
    target.mkdir()
    writer = MediaWriter.of(rows, MediaSource(root), form, target, target)
    curated = curate(read_prompts(rows), Selection(), {})
    return write_export(rows, curated, media=writer, parameters={}, folder=target, forms=forms), target


def asked(number: int, *images: Any, **more: Any) -> dict[str, Any]:
    content = f"{number}: " + "<image>" * len(images)
    return problem(number, prompt=[{"role": "user", "content": content}], images=list(images), **more)


def mixed(root: Path) -> Table:
    """Rows of two files: one with images in files, one with their bytes."""
    folder = root / "raw"
    (folder / "img").mkdir(parents=True)
    for side in (24, 32, 40):
        (folder / f"img/{side}.png").write_bytes(media.png(side, side))
    rows = [asked(n, f"img/{side}.png") for n, side in enumerate((24, 32, 40))]
    rows += [asked(3, "img/24.png", {"path": "img/32.png"}), problem(4)]
    write_jsonl(folder / "paths.jsonl", rows)
    image = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    stored = [asked(n, {"bytes": media.png(n, n), "path": None}) for n in (16, 48)]
    table = pa.Table.from_pylist(stored)
    at = table.schema.get_field_index("images")
    table = table.set_column(at, "images", pa.array([row["images"] for row in stored], image))
    pq.write_table(table, folder / "bytes.parquet")
    return contract(root)


def with_parts(root: Path) -> Table:
    """Rows whose images stand in columns, in parts, and in both."""
    (root / "raw").mkdir()
    for side in (24, 32, 40):
        (root / f"raw/{side}.png").write_bytes(media.png(side, side))
    text = {"type": "text", "text": " What?\n"}
    parts = [{"type": "image", "image": "24.png"}, text, {"type": "image"}]
    system = {"role": "system", "content": "Be brief."}
    prompts = [
        ["<image>\n Which one, <image>?"],
        [[{"type": "image", "image": "40.png"}, text]],
        [parts],
        ["Look: <image>", "And <image>"],
    ]
    columns = [["24.png", "32.png"], None, ["40.png"], ["32.png", "24.png"]]
    write_jsonl(
        root / "raw/rows.jsonl",
        [
            problem(
                n, prompt=[system, *({"role": "user", "content": one} for one in contents)], images=images
            )
            for n, (contents, images) in enumerate(zip(prompts, columns, strict=True))
        ],
    )
    return contract(root)


def test_forms_that_files_mix_are_one_column_and_no_row_is_lost(tmp_path: Path) -> None:
    rows = mixed(tmp_path)
    made, folder = export(tmp_path, rows)
    assert (made.rows, made.left_out) == (7, {})
    table = pq.read_table(folder / "train.parquet")
    assert made.files[0].json_columns == []
    assert table.schema.field("images").type.value_type == pa.struct([("bytes", pa.binary())])
    found = {
        row["prompt"][0]["content"].partition(":")[0]: [image["bytes"] for image in row["images"] or []]
        for row in table.to_pylist()
    }
    assert found["3"] == [media.png(24, 24), media.png(32, 32)]
    assert found["48"] == [media.png(48, 48)]


def test_what_was_written_comes_back_in_with_its_uids_and_media(tmp_path: Path) -> None:
    rows = mixed(tmp_path)
    export(tmp_path, rows)
    again = contract(tmp_path, "verl_dataset/train.parquet")

    def seen(table: Table) -> dict[str, list[str]]:
        return {
            row["uid"]: [image["digest"] for image in row["images"] or []]
            for row in table.rows(["uid", "images"])
        }

    assert seen(again) == seen(rows)


def test_the_same_rows_in_another_folder_give_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(export(tmp_path / name, mixed(tmp_path / name))[0])
    assert made[0] == made[1]


def test_paths_are_absolute_and_bytes_become_files(tmp_path: Path) -> None:
    _, folder = export(tmp_path, mixed(tmp_path), "paths")
    rows = pq.read_table(folder / "train.parquet").to_pylist()
    paths = [Path(image["image"]) for row in rows for image in row["images"] or []]
    assert len(paths) == 7
    assert all(path.is_absolute() for path in paths)
    assert {path.parent for path in paths} == {tmp_path / "raw/img", folder / COPIES}
    assert sorted(path.read_bytes() for path in paths if path.parent == folder / COPIES) == sorted(
        [media.png(16, 16), media.png(48, 48)]
    )


def test_settings_stay_beside_their_medium_and_get_no_nulls(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.png").write_bytes(media.png(24, 24))
    items = ["a.png", {"image": "a.png", "resized_height": 24, "resized_width": 40}]
    write_jsonl(tmp_path / "raw/rows.jsonl", [asked(n, item) for n, item in enumerate(items)])
    made, folder = export(tmp_path, contract(tmp_path))
    import datasets

    (plain,), (sized,) = datasets.Dataset.from_parquet(
        str(folder / "train.parquet"), cache_dir=str(tmp_path / "cache")
    )["images"]
    assert plain.keys() == {"image"}
    assert sized.keys() == {"image", "resized_height", "resized_width"}
    assert made.files[0].json_columns == ["images"]


def test_parts_and_frames_hold_their_media(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.png").write_bytes(media.png(24, 24))
    part = {"type": "image", "image": "a.png", "max_pixels": 900}
    content = [part, {"type": "image"}, {"type": "text", "text": "?"}]
    rows = [
        problem(0, prompt=[{"role": "user", "content": content}], images=["a.png"]),
        problem(1, prompt=[{"role": "user", "content": "<video>"}], videos=[["a.png", "a.png"]]),
    ]
    write_jsonl(tmp_path / "raw/rows.jsonl", rows)
    _, folder = export(tmp_path, contract(tmp_path))
    import datasets

    one, two = datasets.Dataset.from_parquet(str(folder / "train.parquet"), cache_dir=str(tmp_path / "cache"))
    first, second, text = one["prompt"][0]["content"]
    assert first == {"type": "image", "image": second["image"], "max_pixels": 900}
    assert second["image"].startswith("data:image/png;base64,")
    assert text == {"type": "text", "text": "?"}
    assert two["videos"] == [{"video": [second["image"]] * 2}]


@pytest.mark.parametrize("name", ["video", "audio"])
def test_a_clip_in_a_file_is_refused_by_name_unless_it_is_written_as_a_path(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "raw").mkdir()
    clip = {"video": media.video, "audio": media.sound}[name](tmp_path / f"raw/{name}.mp4")
    content = [{"role": "user", "content": f"<{name}>"}]
    write_jsonl(tmp_path / "raw/rows.jsonl", [problem(0, prompt=content, **{f"{name}s": [clip.name]})])
    rows = contract(tmp_path)
    with pytest.raises(InputError, match=f"{name}s.*curation.media: paths"):
        export(tmp_path, rows)
    (tmp_path / "verl_dataset").rename(tmp_path / "refused")
    _, folder = export(tmp_path, rows, "paths")
    (row,) = pq.read_table(folder / "train.parquet").to_pylist()
    assert row[f"{name}s"] == [{name: str(clip)}]


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, kind, **options)
    return sink.getvalue()


def test_an_image_that_trainers_see_otherwise_is_written_as_it_is_seen_here() -> None:
    assert as_seen(media.png(24, 24)) == media.png(24, 24)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(media.picture(24, 40), "JPEG", exif=exif)
    plain = encoded(media.picture(24, 40), "JPEG")
    assert as_seen(plain) == plain
    assert Image.open(io.BytesIO(as_seen(turned))).getexif().get(0x0112, 1) == 1
    deep = encoded(Image.fromarray(np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)))
    assert Image.open(io.BytesIO(as_seen(deep))).mode == "RGB"


def test_a_medium_that_is_gone_is_named(tmp_path: Path) -> None:
    rows = mixed(tmp_path)
    (tmp_path / "raw/img/32.png").unlink()
    with pytest.raises(InputError, match=r"no file img/32.png"):
        export(tmp_path, rows)


def test_the_prompt_of_a_row_without_media_is_not_touched(tmp_path: Path) -> None:
    row = {"prompt": [{"role": "user", "content": "<image> What?"}], "uid": "u"}
    assert MediaWriter(MediaSource(tmp_path)).row(row, "raw/rows.jsonl") is row
