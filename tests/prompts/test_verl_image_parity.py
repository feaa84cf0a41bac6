"""The length gate keeps the rows with images that verl's own filter keeps, at the same lengths; the tensors
of a rollout are verl's."""

import re
from pathlib import Path

from tests.verl_wheel import ROOT, run_pytest, verl_site


def test_the_cases_that_need_verl_pass(tmp_path: Path) -> None:
    here = Path(__file__).parent
    cases = [here / "verl_image_cases.py", here.parent / "rollout/verl_tensor_cases.py"]
    result = run_pytest(
        "-q",
        f"--basetemp={tmp_path / 'cases'}",
        *cases,
        path=[verl_site(), ROOT],
        env={"HF_HOME": str(tmp_path)},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^25 passed", result.stdout, re.MULTILINE), result.stdout
