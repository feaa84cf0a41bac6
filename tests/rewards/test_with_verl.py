"""The real verl reads our reward inputs and training set, and its scorers agree with ours."""

from pathlib import Path

from tests.verl_wheel import run_cases


def test_the_cases_that_need_verl_pass(policy: Path, tmp_path: Path) -> None:
    run_cases(Path(__file__).with_name("verl_cases.py"), folder=tmp_path, passed=27)


def test_the_cases_of_media_pass(tmp_path: Path) -> None:
    run_cases(Path(__file__).with_name("verl_media_cases.py"), folder=tmp_path, passed=9)
