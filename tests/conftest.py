"""What every test shares: no network, no telemetry, and the demo policy."""

import os
from pathlib import Path

import pytest

os.environ["DAGSTER_DISABLE_TELEMETRY"] = "yes"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def policy() -> Path:
    """The demo policy's folder, which `make setup` makes."""
    folder = ROOT / "data/policies/SmolLM2-135M-Instruct"
    assert (folder / "config.json").is_file(), "run `make setup` first: it makes the demo policy"
    return folder
