"""CONTRIBUTING.md names files and commands that are there."""

import re
from pathlib import Path

import pytest

from tests.test_house import ROOMS

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PATHS = sorted(set(re.findall(r"(?:rl_assets|tests|docs)/[\w./-]*\w/?", TEXT)))


@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_map_has_every_room_in_its_order() -> None:
    rooms = re.findall(r"^\| `rl_assets/(\w+)(?:/|\.py)` \|", TEXT, re.MULTILINE)
    assert rooms == [room for room in ROOMS if room != "definitions"]


def test_every_make_target_is_there() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets
    assert set(re.findall(r"^make ([\w-]+)", TEXT, re.MULTILINE)) <= set(targets[1].split())
