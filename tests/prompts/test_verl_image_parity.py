"""The length gate keeps the rows with images that verl's own filter keeps, at the same lengths."""

import re
from pathlib import Path

from tests.verl_wheel import ROOT, run_pytest, verl_site


def test_the_cases_that_need_verl_pass(tmp_path: Path) -> None:
    cases = Path(__file__).with_name("verl_image_cases.py")
    result = run_pytest(
        "-q",
        f"--basetemp={tmp_path / 'cases'}",
        cases,
        path=[verl_site(), ROOT],
        env={"HF_HOME": str(tmp_path)},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^11 passed", result.stdout, re.MULTILINE), result.stdout
