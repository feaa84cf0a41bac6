"""Tiny policies with random weights, saved and loaded as real ones are."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from rl_assets.rollout.policy import Policy, load_policy
from tests.rollout import tiny


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Policy]:
    """Loads the tiny policy of an architecture, a key of `tiny.MODELS`, once."""
    loaded: dict[str, Policy] = {}

    def load(kind: str) -> Policy:
        if kind not in loaded:
            loaded[kind] = load_policy(tiny.save(kind, tmp_path_factory.mktemp("policies") / kind))
        return loaded[kind]

    return load


@pytest.fixture(scope="session")
def llama(tiny_policy: Callable[[str], Policy]) -> Policy:
    """A tiny random Llama."""
    return tiny_policy("llama")


@pytest.fixture
def llama_folder(tmp_path: Path) -> Path:
    """The same as saved files, to be changed by the test."""
    return tiny.save("llama", tmp_path / "llama")
