"""The real TRL and OpenRLHF read the files that are written for them."""

from pathlib import Path

from tests.verl_wheel import overlay, run_cases

TRL = ("trl==1.16.0",)
OPENRLHF = ("openrlhf==0.11.2", "pylatexenc==2.10")


def test_trl_reads_its_form(tmp_path: Path) -> None:
    case = Path(__file__).with_name("trl_cases.py")
    run_cases(case, folder=tmp_path, passed=3, site=overlay("trl", TRL))


def test_openrlhf_reads_its_form(tmp_path: Path) -> None:
    case = Path(__file__).with_name("openrlhf_cases.py")
    run_cases(case, folder=tmp_path, passed=6, site=overlay("openrlhf", OPENRLHF))
