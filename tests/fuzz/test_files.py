"""Damaged files, files that are none, and files that blow up: each is read or refused by name."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.fuzz.files import bombs, mutated_files, special_files

MEMORY_MIB = 1536


def fates(folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """What becomes of each file, in a process that may be killed by it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.child", str(folder)],
        input="\n".join(names),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    found = {fate["name"]: fate for fate in map(json.loads, done.stdout.splitlines())}
    unjudged = [name for name in names if name not in found]
    assert done.returncode == 0, f"{unjudged[:1]} ends the process:\n{done.stderr[-3000:]}"
    return found


@pytest.mark.parametrize(
    ("fate", "says"), [("time.sleep(60)", "Timeout"), ("bytes(child.ADDRESS_SPACE)", "MemoryError")]
)
def test_a_file_that_takes_too_long_or_too_much_ends_the_process(fate: str, says: str) -> None:
    code = (
        "import time; from tests.fuzz import child; child.SECONDS = 0.5; "
        f"child.fate = lambda name, folder: {fate}; child.main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "folder", "name"], cwd=ROOT, capture_output=True)
    assert done.returncode == 1
    assert says in done.stderr.decode()


def test_damaged_files_are_read_or_refused_by_name(tmp_path: Path) -> None:
    names = mutated_files(0, 500, tmp_path)
    found = fates(tmp_path, names)
    assert list(found) == names
    refused = {name: fate["refused"] for name, fate in found.items() if "refused" in fate}
    assert [message for name, message in refused.items() if not message.startswith(f"{name}: ")] == []
    assert {name: fate["peak"] for name, fate in found.items() if fate["peak"] > MEMORY_MIB} == {}
    assert len(refused) > 50
    assert sum(fate.get("accepted", 0) > 0 for fate in found.values()) > 50
    assert sum(fate.get("rejected", 0) > 0 for fate in found.values()) > 100


def test_what_is_no_regular_file_is_refused_by_name(tmp_path: Path) -> None:
    names = special_files(tmp_path)
    found = fates(tmp_path, names)
    assert [name for name in names if not found[name].get("refused", "").startswith(f"{name}: ")] == []


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What becomes of the files that blow up."""
    folder = tmp_path_factory.mktemp("bombs")
    names = bombs(folder)
    try:
        return fates(folder, names)
    finally:
        for name in names:
            (folder / name).unlink()


def test_files_that_blow_up_take_bounded_memory_and_time(grown: dict[str, dict[str, Any]]) -> None:
    assert {name: fate["peak"] for name, fate in grown.items() if fate["peak"] > MEMORY_MIB} == {}
    assert {name: fate["seconds"] for name, fate in grown.items() if fate["seconds"] > 20} == {}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("spaces.jsonl.zst", "file.corrupt"),
        ("lists.jsonl", "file.row_too_large"),
        ("objects.json", "file.row_too_large"),
        ("text.jsonl", "file.row_too_large"),
        ("text.json", "file.row_too_large"),
        ("deep.jsonl", "value.too_deep"),
        ("deep.json", "value.too_deep"),
        ("digits.jsonl", "value.not_json"),
        ("digits.json", "file.malformed"),
        ("nans.jsonl", "value.not_finite"),
        ("surrogates.jsonl", "text.lone_surrogate"),
        ("keys.jsonl", "value.not_finite"),
        ("messages.jsonl", "prompt.unknown_role"),
    ],
)
def test_a_row_that_blows_up_is_rejected_with_its_reason(
    grown: dict[str, dict[str, Any]], name: str, code: str
) -> None:
    assert grown[name]["codes"] == {code: 1}


@pytest.mark.parametrize("name", ["zeros.parquet.zst", "rows.parquet"])
def test_a_parquet_file_that_blows_up_is_refused(grown: dict[str, dict[str, Any]], name: str) -> None:
    assert grown[name]["refused"].startswith(f"{name}: ")


@pytest.mark.parametrize(("name", "rows"), [("long.parquet", 300), ("repeated.parquet", 1000)])
def test_long_rows_are_taken_a_few_at_a_time(grown: dict[str, dict[str, Any]], name: str, rows: int) -> None:
    assert grown[name]["accepted"] == rows


def test_pictures_that_blow_up_are_rejected_and_large_ones_taken(grown: dict[str, dict[str, Any]]) -> None:
    fate = grown["pictures.jsonl"]
    assert (fate["accepted"], fate["rejected"]) == (4, 4)
    assert set(fate["codes"]) == {"media.image_size", "media.unreadable"}
