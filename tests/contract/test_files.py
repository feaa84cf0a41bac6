"""Which raw files a setting means, and what is said where it means none."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_assets.contract import ContractOptions, RawManifest, apply_contract, gate, scan_files
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
