"""The length gate keeps the rows with images that verl's own filter keeps, at the same lengths; the tensors
of a rollout are verl's."""

from pathlib import Path

from tests.verl_wheel import run_cases


def test_the_cases_that_need_verl_pass(tmp_path: Path) -> None:
    here = Path(__file__).parent
    cases = here / "verl_image_cases.py", here.parent / "rollout/verl_tensor_cases.py"
    run_cases(*cases, folder=tmp_path, passed=37)
