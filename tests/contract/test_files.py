"""Which raw files a setting means, and what is said where it means none."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_assets.contract import gate
from rl_assets.contract.files.manifest import RawManifest, open_regular
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.files.watch import Sighting, look
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.errors import InputError
from tests.contract.rows import accepted, row, run, said, write_jsonl


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.jsonl", "b.jsonl", "deep/c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_jsonl(tmp_path / name, [said(name), row()])
    (tmp_path / "notes.txt").write_text("not data")
    (tmp_path / ".hidden.jsonl").write_text("{}\n")
    return tmp_path


def paths(manifest: RawManifest) -> list[str]:
    return [file.path for file in manifest.files]


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("a.jsonl", ["a.jsonl"]),
        (["b.jsonl", "a.jsonl"], ["a.jsonl", "b.jsonl"]),
        ("./deep/../a.jsonl", ["a.jsonl"]),
        ("*.jsonl", ["a.jsonl", "b.jsonl"]),
        (["*.jsonl", "a.jsonl"], ["a.jsonl", "b.jsonl"]),
        ("**/*.jsonl", ["a.jsonl", "b.jsonl", "deep/c.jsonl"]),
        (".", ["a.jsonl", "b.jsonl", "deep/c.jsonl"]),
        ("deep/", ["deep/c.jsonl"]),
    ],
)
def test_paths_globs_and_folders(folder: Path, setting: str | list[str], found: list[str]) -> None:
    assert paths(scan_files(setting, root=folder)) == found


def test_a_manifest_says_what_each_file_is(folder: Path) -> None:
    manifest = scan_files("a.jsonl", ["b.jsonl"], root=folder)
    train, val = manifest.files
    assert (train.split, train.format, train.rows) == ("train", "jsonl", 2)
    assert (val.split, val.rows, val.bytes) == ("val", 2, (folder / "b.jsonl").stat().st_size)
    assert manifest.rows == 4
    assert RawManifest.model_validate_json(manifest.model_dump_json()) == manifest


def test_the_digest_follows_the_bytes_and_not_the_order_or_the_place(folder: Path) -> None:
    before = scan_files(["a.jsonl", "b.jsonl"], root=folder).digest
    assert scan_files(["b.jsonl", "a.jsonl"], root=folder).digest == before
    os.utime(folder / "a.jsonl")
    assert scan_files(["a.jsonl", "b.jsonl"], root=folder).digest == before
    (folder / "a.jsonl").write_text((folder / "a.jsonl").read_text().replace("40", "41"))
    assert scan_files(["a.jsonl", "b.jsonl"], root=folder).digest != before


def test_the_home_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert paths(scan_files("~/a.jsonl", root=elsewhere)) == [str(folder / "a.jsonl")]


def test_a_file_whose_name_looks_like_a_glob(folder: Path) -> None:
    write_jsonl(folder / "part[1].jsonl", [row()])
    assert paths(scan_files("part[1].jsonl", root=folder)) == ["part[1].jsonl"]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("gone.jsonl", ["gone.jsonl", "data.train_files", "no file of this name", "Check the spelling"]),
        ("*.parquet", ["*.parquet", "data.train_files", "no file"]),
        ("gone/", ["gone", "no file of this name"]),
        ("notes.txt", ["notes.txt", "'.txt'", ".parquet, .json or .jsonl", "Convert the file"]),
        ("memory://nothing/*.jsonl", ["memory://nothing/*.jsonl", "no file"]),
        ([], ["no file", "at least one row"]),
        ("hub://someone/something", ["without a revision", "hub://<owner>/<name>@<revision>#<split>"]),
    ],
)
def test_settings_that_mean_nothing(folder: Path, setting: str, says: list[str]) -> None:
    with pytest.raises(InputError) as error:
        scan_files(setting, root=folder)
    assert all(part in str(error.value) for part in says), str(error.value)


def test_validation_files_are_named_by_their_own_setting(folder: Path) -> None:
    with pytest.raises(InputError, match=r"data\.val_files"):
        scan_files("a.jsonl", "gone.jsonl", root=folder)


@pytest.mark.parametrize("data", [b"", b"PAR1 is not enough PAR1", b"PAR1" + b"\x00" * 100])
def test_a_parquet_file_without_a_footer(folder: Path, data: bytes) -> None:
    (folder / "x.parquet").write_bytes(data)
    with pytest.raises(
        InputError, match=r"x\.parquet: field `data\.train_files`: found a file that cannot be read"
    ):
        scan_files("x.parquet", root=folder)


def test_files_without_rows(folder: Path) -> None:
    (folder / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"empty\.jsonl: .*no row in 1 files"):
        scan_files("empty.jsonl", root=folder)
    assert scan_files(["a.jsonl", "empty.jsonl"], root=folder).rows == 2


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda path: path.unlink(), "no such file any more"),
        (lambda path: path.write_text(path.read_text() + "{}\n"), "bytes, expected the"),
        (lambda path: path.write_text(path.read_text().replace("40 + 2", "42 + 0")), "other content"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "bytes, expected the"),
    ],
    ids=["gone", "longer", "other content in as many bytes", "a pipe"],
)
def test_a_file_that_changed_since_the_scan(
    folder: Path, change: Callable[[Path], object], found: str
) -> None:
    manifest = scan_files("a.jsonl", root=folder)
    change(folder / "a.jsonl")
    with pytest.raises(InputError, match=rf"a\.jsonl: found .*{found}.*Scan the raw files again"):
        apply_contract(manifest, ContractOptions(), root=folder, folder=folder)


@pytest.mark.parametrize("name", ["a.jsonl", "big.parquet"])
@pytest.mark.parametrize("size", [10, 10**6], ids=["cut", "grown"])
def test_a_file_that_changes_while_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    pq.write_table(
        pa.Table.from_pylist([said(f"{n}?") for n in range(3000)]), folder / "big.parquet", row_group_size=100
    )
    manifest = scan_files(name, root=folder)
    judge_row, calls = gate.check_row, iter(range(10**6))

    def change_at_the_second(*arguments: Any) -> Any:
        if next(calls) == 1:
            os.truncate(folder / name, size)
        return judge_row(*arguments)

    monkeypatch.setattr(gate, "check_row", change_at_the_second)
    with pytest.raises(InputError, match=rf"{name}: found a file that .*Scan the raw files again"):
        apply_contract(manifest, ContractOptions(), root=folder, folder=folder)


@pytest.mark.parametrize("setting", [".", "*", "**/*.jsonl"])
@pytest.mark.parametrize("make", [lambda path: path.symlink_to("nowhere"), os.mkfifo], ids=["link", "pipe"])
def test_what_is_named_like_a_raw_file_and_is_none_is_not_passed_over(
    folder: Path, setting: str, make: Callable[[Path], object]
) -> None:
    (folder / "notes.txt").unlink()
    make(folder / "z.jsonl")
    with pytest.raises(InputError, match=r"z\.jsonl: field `data\.train_files`: found (no file|a file that)"):
        scan_files(setting, root=folder)


def test_a_folder_named_like_a_file_is_read_where_a_glob_matches_it(folder: Path) -> None:
    (folder / "spark.jsonl").mkdir()
    write_jsonl(folder / "spark.jsonl/part-0.jsonl", [row()])
    (folder / "spark.jsonl/_SUCCESS").touch()
    assert paths(scan_files("*.jsonl", root=folder)) == ["a.jsonl", "b.jsonl", "spark.jsonl/part-0.jsonl"]


def test_a_footer_that_claims_more_rows_than_its_bytes_can_hold(folder: Path) -> None:
    pq.write_table(pa.table({"prompt": pa.nulls(3 << 20, pa.string())}), folder / "x.parquet")
    with pytest.raises(InputError, match=r"x\.parquet: .*claims 3,145,728 rows in [\d,]+ bytes"):
        scan_files("x.parquet", root=folder)


def test_a_file_name_that_cannot_be_shown(folder: Path) -> None:
    write_jsonl(folder / os.fsdecode(b"caf\xe9.jsonl"), [row()])
    with pytest.raises(InputError, match="Rename the file"):
        scan_files("caf*.jsonl", root=folder)


def test_a_dataset_folder_through_datasets(tmp_path: Path) -> None:
    rows = [said(f"{n}?", extra_info={"index": n}) for n in range(4)]
    source = tmp_path / "set/data"
    source.mkdir(parents=True)
    datasets.Dataset.from_list(rows[:2]).to_parquet(source / "train-00000-of-00002.parquet")
    datasets.Dataset.from_list(rows[2:3]).to_parquet(source / "train-00001-of-00002.parquet")
    datasets.Dataset.from_list(rows[3:]).to_parquet(source / "test-00000-of-00001.parquet")
    manifest = scan_files("hub://set", "hub://set#test", root=tmp_path)
    assert paths(manifest) == [
        "set/data/train-00000-of-00002.parquet",
        "set/data/train-00001-of-00002.parquet",
        "set/data/test-00000-of-00001.parquet",
    ]
    assert accepted(run(tmp_path, "hub://set", "hub://set#test")) == rows
    with pytest.raises(InputError, match=r"no split 'dev', expected one of 'train', 'test'"):
        scan_files("hub://set#dev", root=tmp_path)


def test_a_parquet_file_is_known_by_its_bytes(tmp_path: Path) -> None:
    rows = [said(f"{n}?", extra_info={"index": n}) for n in range(4)]
    names = ["a.parquet.gzip", "b.parquet.snappy", "c.bin", "d.parquet.br"]
    for name, one in zip(names, rows, strict=True):
        pq.write_table(pa.Table.from_pylist([one]), tmp_path / name, compression="gzip")
    assert accepted(run(tmp_path, names)) == rows
    assert accepted(run(tmp_path, ".")) == rows


def test_a_compression_is_known_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "squeezed.jsonl").write_bytes(gzip.compress(json.dumps(row()).encode()))
    (tmp_path / "plain.jsonl.gz").write_text(json.dumps(row()))
    assert accepted(run(tmp_path, "squeezed.jsonl")) == accepted(run(tmp_path, "plain.jsonl.gz")) == [row()]
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b"{}")[3:])
    with pytest.raises(InputError, match=r"torn\.jsonl\.gz: .*its name says gzip, and its bytes do not"):
        scan_files("torn.jsonl.gz", root=tmp_path)


@pytest.mark.parametrize("setting", ["set", "set/**/*.jsonl", ["set/train-0.jsonl", "set"]])
def test_validation_files_that_a_folder_or_glob_takes_for_training_are_named(
    tmp_path: Path, setting: str | list[str]
) -> None:
    names = ["train-0.jsonl", "test-0.jsonl", "latest.jsonl", "contest.jsonl", "deep/my_Validation.jsonl"]
    for name in names:
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(tmp_path / "set" / name, [row()])
    manifest = scan_files(setting, root=tmp_path)
    assert manifest.rows == len(names)
    assert manifest.named_for_validation == ["set/deep/my_Validation.jsonl", "set/test-0.jsonl"]
    (note,) = manifest.notes
    assert "set/test-0.jsonl" in note
    assert "data.val_files" in note


def test_a_file_that_is_named_itself_is_meant(tmp_path: Path) -> None:
    for name in ("test.jsonl", "val.jsonl"):
        write_jsonl(tmp_path / name, [said(name)])
    assert scan_files(["test.jsonl"], ["*.jsonl"], root=tmp_path).notes == []


def test_what_a_folder_holds_besides_raw_files_is_named_once(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", [row()])
    for name in ("dataset_infos.json", "dataset_dict.json", "README.md", "more.csv", "_SUCCESS"):
        (folder / name).write_text('{"prompt": 1}')
    (folder / "_delta_log").mkdir()
    write_jsonl(folder / "_delta_log/0.json", [row()])
    (folder / ".cache/huggingface").mkdir(parents=True)
    write_jsonl(folder / ".cache/huggingface/x.json", [row()])
    (folder / "img").mkdir()
    for number in range(20):
        (folder / f"img/{number}.png").write_bytes(b"PAR1")
    manifest = scan_files("set", root=tmp_path)
    assert paths(manifest) == ["set/train.jsonl"]
    assert sorted(manifest.passed_over) == [
        "20 files ending in .png",
        "set/.cache/",
        "set/README.md",
        "set/_SUCCESS",
        "set/_delta_log/",
        "set/dataset_dict.json",
        "set/dataset_infos.json",
        "set/more.csv",
    ]
    assert scan_files("set/*.json*", root=tmp_path).passed_over == [
        "set/dataset_dict.json",
        "set/dataset_infos.json",
    ]
    assert scan_files(["set", "set/train.jsonl"], root=tmp_path).rows == 1
    (folder / "train.jsonl").unlink()
    with pytest.raises(InputError, match=r"set: .*no raw file, only .*more\.csv"):
        scan_files("set", root=tmp_path)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A project with links to rows outside of it: a file, a folder, and a folder among others."""
    for place in ("elsewhere", "project/data/set", "project/data/mixed"):
        (tmp_path / place).mkdir(parents=True)
    write_jsonl(tmp_path / "elsewhere/a.jsonl", [said("a?")])
    write_jsonl(tmp_path / "project/data/mixed/b.jsonl", [said("b?")])
    data = tmp_path / "project/data"
    (data / "set/a.jsonl").symlink_to(tmp_path / "elsewhere/a.jsonl")
    (data / "folder").symlink_to(tmp_path / "elsewhere")
    (data / "mixed/more").symlink_to(tmp_path / "elsewhere")
    (data / "mixed/up").symlink_to(data / "mixed")
    return tmp_path / "project"


@pytest.mark.parametrize(
    "setting",
    ["data/set/a.jsonl", "data/set", "data/set/*", "data/folder", "data/folder/a.jsonl", "data/*/a*"],
)
def test_a_link_out_of_the_project_needs_a_word(linked: Path, setting: str) -> None:
    with pytest.raises(InputError, match=r"data/.*leads to .*elsewhere.*`data\.follow_links: true`"):
        scan_files(setting, root=linked)
    assert scan_files(setting, root=linked, follow_links=True).rows >= 1
    with pytest.raises(InputError, match="follow_links"):
        look([setting], [], root=linked, before=Sighting())
    assert look([setting], [], root=linked, before=Sighting(), follow_links=True).files


def test_a_linked_folder_beside_raw_files_is_named_or_followed(linked: Path) -> None:
    manifest = scan_files("data/mixed", root=linked)
    assert (paths(manifest), manifest.passed_over) == (
        ["data/mixed/b.jsonl"],
        ["data/mixed/more/", "data/mixed/up/"],
    )
    followed = scan_files("data/mixed", root=linked, follow_links=True)
    assert paths(followed) == ["data/mixed/b.jsonl", "data/mixed/more/a.jsonl"]


def test_links_within_the_project_and_links_to_it_need_none(linked: Path) -> None:
    (linked / "data/set/a.jsonl").unlink()
    (linked / "data/set/c.jsonl").symlink_to("../mixed/b.jsonl")
    (linked.parent / "shortcut").symlink_to(linked)
    for root in (linked, linked.parent / "shortcut"):
        assert paths(scan_files("data/set", root=root)) == ["data/set/c.jsonl"]
    outside = linked.parent / "shortcut/data"
    assert scan_files(str(outside / "mixed/b.jsonl"), root=linked.parent / "elsewhere").rows == 1


def test_a_link_out_of_a_named_folder_outside_of_the_project_needs_a_word(linked: Path) -> None:
    root = linked.parent / "elsewhere"
    for setting in ("set", "set/a.jsonl", "set/*.jsonl"):
        with pytest.raises(InputError, match=r"follow_links"):
            scan_files(f"{linked}/data/{setting}", root=root)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (os.mkfifo, "no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
        (lambda path: path.symlink_to(path.name), "Too many levels"),
    ],
    ids=["pipe", "device", "loop"],
)
def test_a_look_opens_regular_files_only(tmp_path: Path, make: Callable[[Path], object], found: str) -> None:
    write_jsonl(tmp_path / "a.jsonl", [row()])
    first = look(["a.jsonl"], [], root=tmp_path, before=Sighting())
    assert look(["a.jsonl"], [], root=tmp_path, before=first).unsettled == []
    (tmp_path / "a.jsonl").unlink()
    make(tmp_path / "a.jsonl")
    for entry in ("a.jsonl", "*.jsonl"):
        with pytest.raises(InputError, match=rf"a\.jsonl: .*{found}"):
            look([entry], [], root=tmp_path, before=first, follow_links=True)
        with pytest.raises(InputError, match=rf"a\.jsonl: .*{found}"):
            scan_files(entry, root=tmp_path, follow_links=True)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    status = (tmp_path / "a.jsonl").stat()
    os.mkfifo(tmp_path / "pipe")

    class Replaced(type(tmp_path)):  # type: ignore[misc]
        def stat(self, **_: Any) -> os.stat_result:
            return status

    with pytest.raises(OSError, match="no regular file"):
        open_regular(Replaced(tmp_path / "pipe"))
