"""The definitions, which Dagster loads in every process: quickly."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_definitions_load_without_heavy_libraries() -> None:
    code = """
import sys
from rl_assets.definitions import defs
defs()
print(sorted({"torch", "transformers", "datasets", "pandas", "matplotlib"} & set(sys.modules)))
"""
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert loaded.stdout.strip() == "[]"
