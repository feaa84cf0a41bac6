"""The sample datasets are what their scripts make, and hold what they promise."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from scripts import make_gsm_symbolic, make_needs_care

DATA = Path(__file__).parents[2] / "data"
SUM = re.compile(r"(\d+) ([+-]) (\d+) = (\d+)\n#### (\d+)")


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def assert_same_file(made: Path, committed: Path) -> None:
    """Same bytes; same schema and rows for parquet, whose bytes name the version that wrote them."""
    if made.suffix == ".parquet":
        assert pq.read_table(made).equals(pq.read_table(committed), check_metadata=True)
    else:
        assert made.read_bytes() == committed.read_bytes()


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def gsm_symbolic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of word problems, made anew."""
    pytest.importorskip("reasoning_gym")
    folder = tmp_path_factory.mktemp("gsm_symbolic")
    make_gsm_symbolic.make(folder)
    return folder


@pytest.fixture(scope="module")
def needs_care(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of broken rows, made anew."""
    folder = tmp_path_factory.mktemp("needs_care")
    make_needs_care.make(folder)
    return folder


class TestWordProblems:
    def test_the_committed_files_are_what_the_script_makes(self, gsm_symbolic: Path) -> None:
        assert files_below(gsm_symbolic) == files_below(DATA / "gsm_symbolic")
        for name in files_below(gsm_symbolic):
            assert_same_file(gsm_symbolic / name, DATA / "gsm_symbolic" / name)

    def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_problems(
        self, gsm_symbolic: Path, tmp_path: Path
    ) -> None:
        make_gsm_symbolic.make(tmp_path / "again")
        make_gsm_symbolic.make(tmp_path / "other", seed=1)
        for name in files_below(gsm_symbolic):
            first = (gsm_symbolic / name).read_bytes()
            assert (tmp_path / "again" / name).read_bytes() == first
            assert (tmp_path / "other" / name).read_bytes() != first

    def test_there_are_256_problems_and_the_splits_share_none(self) -> None:
        rows = [row for name in make_gsm_symbolic.FILES for row in rows_of(DATA / "gsm_symbolic" / name)]
        assert len(rows) == 256
        assert len({row["extra_info"]["question"] for row in rows}) == 256
        for split, count in (("train", 208), ("test", 48)):
            indices = [row["extra_info"]["index"] for row in rows if row["extra_info"]["split"] == split]
            assert indices == list(range(count))

    def test_the_ground_truth_is_the_number_after_the_hashes_and_sums_are_right(self) -> None:
        for name in make_gsm_symbolic.FILES:
            for row in rows_of(DATA / "gsm_symbolic" / name):
                info, truth = row["extra_info"], row["reward_model"]["ground_truth"]
                assert re.fullmatch(r"\d+", truth)
                assert info["answer"].endswith(f"\n#### {truth}")
                assert row["prompt"][-1] == {"role": "user", "content": info["question"]}
                if info["kind"].startswith("chain_sum"):
                    match = SUM.fullmatch(info["answer"])
                    assert match is not None
                    a, sign, b, result, final = match.groups()
                    assert int(a) + (int(b) if sign == "+" else -int(b)) == int(result) == int(final)
                    assert {a, b} <= set(re.findall(r"\d+", info["question"]))


class TestBrokenRows:
    def test_the_committed_files_are_what_the_script_makes(self, needs_care: Path) -> None:
        assert files_below(needs_care) == files_below(DATA / "needs_care")
        for name in files_below(needs_care):
            if not name.startswith("images/"):
                assert_same_file(needs_care / name, DATA / "needs_care" / name)

    def test_pictures_open_except_those_that_shall_not(self) -> None:
        images = DATA / "needs_care/images"
        for name, size in (("red.png", (28, 28)), ("green.jpg", (56, 28))):
            with Image.open(images / name) as image:
                image.load()
                assert image.size == size
        assert (images / "empty.png").read_bytes() == b""
        with Image.open(io.BytesIO((images / "cut.jpg").read_bytes())) as image, pytest.raises(OSError):
            image.load()

    def test_the_contract_accepts_the_good_rows_and_rejects_the_others(self, tmp_path: Path) -> None:
        train = [f"needs_care/{name}" for name in ("train.parquet", "train-parts.parquet", "train.jsonl")]
        manifest = scan_files(train, "needs_care/val.jsonl", root=DATA)
        options = ContractOptions(control_tokens=("<|im_start|>", "<|im_end|>"))
        result = apply_contract(manifest, options, root=DATA, folder=tmp_path)
        notes = [json.loads(row["extra_info"])["note"] for row in result.accepted.rows(["extra_info"])]
        good = [note for note in notes if note.startswith("a good row")]
        # These pass the contract: they are refused later, or only remarked on.
        later = [note for note in notes if re.search("this policy|200 tokens|legal", note)]
        assert len(good) + len(later) == len(notes)
        assert len(good) == text_count(DATA / "needs_care", '"a good row') >= 12
        assert len(later) == 4 + 1 + 2 + 2 + 2
        assert sum(result.by_code.values()) >= result.rejected_rows >= 36
        assert result.by_code["prompt.control_token"] == 1
        assert result.warnings["row.shared_with_train"] == 1
        assert result.repaired["null_keys_dropped"] > 0


def text_count(folder: Path, start: str) -> int:
    """Rows whose note begins with `start`."""
    rows = [row for path in folder.glob("*.parquet") for row in rows_of(path)]
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    noted = sum(row["extra_info"]["note"].startswith(start.lstrip('"')) for row in rows)
    return noted + sum(f'"note": {start}'.encode() in line for line in lines)
