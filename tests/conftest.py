"""What every test shares: no network, no telemetry, and the demo policy."""

import os
import shutil
from pathlib import Path

import dagster as dg
import pytest

from rl_assets.graph.dataset import GraphDataset
from tests.build import TRAIN, VAL, make_dataset, materialize
from tests.small import save_small_policy

os.environ["DAGSTER_DISABLE_TELEMETRY"] = "yes"
# As `rl_assets.rollout.attention` sets it: it counts only before the first matrix product of a process.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def policy() -> Path:
    """The demo policy's folder, which `make setup` makes."""
    folder = ROOT / "data/policies/SmolLM2-135M-Instruct"
    assert (folder / "config.json").is_file(), "run `make setup` first: it makes the demo policy"
    return folder


@pytest.fixture(scope="session")
def small_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that answers quickly, for tests to which it does not matter what the answers are."""
    return save_small_policy(tmp_path_factory.mktemp("small") / "policy")


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[GraphDataset, dg.ExecuteInProcessResult]:
    """A small dataset after one run of its whole graph; not to be changed."""
    dataset = make_dataset(
        tmp_path_factory.mktemp("project"),
        TRAIN,
        VAL,
        checks={"reject_rate": {"max": 0.5}},
        shards={"count": 2},
        rollout={"n": 2},
    )
    return dataset, materialize(dataset)


@pytest.fixture
def toy(toy_run: tuple[GraphDataset, dg.ExecuteInProcessResult], tmp_path: Path) -> GraphDataset:
    """The same project in a folder of its own, to be changed."""
    dataset, _ = toy_run
    shutil.copytree(dataset.root, tmp_path / "project")
    return GraphDataset(dataset.spec, tmp_path / "project")
