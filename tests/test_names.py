"""The names that a package offers are there, and only their use imports torch or Dagster."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["rl_assets", "rl_assets.protocol", "rl_assets.rollout"])
def test_every_name_of_the_stub_is_there_and_imported_on_use(package: str) -> None:
    code = (
        f"import sys, {package} as package; assert set(package.__all__) <= set(dir(package)); "
        "assert not {'torch', 'dagster'} & set(sys.modules); "
        "assert all(getattr(package, name) for name in package.__all__) and package.__all__"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
