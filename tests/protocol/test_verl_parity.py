"""Shards are what the real verl makes of the same rows; and what happens where there is no verl."""

import subprocess
import sys
from pathlib import Path

import pytest

from rl_assets.errors import InputError
from rl_assets.protocol.verl import to_verl
from tests.protocol.batches import text_batch
from tests.verl_wheel import ROOT, run_cases


def test_parity_with_the_real_verl(tmp_path: Path) -> None:
    run_cases(Path(__file__).with_name("parity_cases.py"), folder=tmp_path, passed=8)


def test_without_verl_the_message_says_what_to_install() -> None:
    with pytest.raises(
        InputError, match=r"found no verl that can be imported.*pip install --no-deps verl==0\.9\.1"
    ):
        to_verl(text_batch(1))


def test_importing_the_bridge_imports_no_verl() -> None:
    code = "import sys, rl_assets.protocol.verl; sys.exit('verl' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
