"""The names of the package are there for whoever lists them, before torch is."""

import subprocess
import sys


def test_names_that_are_imported_late_are_listed() -> None:
    code = (
        "import sys, rl_assets.protocol as p; assert set(p.__all__) <= set(dir(p)); "
        "assert 'torch' not in sys.modules; p.read_shard"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
