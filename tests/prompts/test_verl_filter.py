"""The gate keeps the rows that verl's own filter keeps, with the same lengths."""

from pathlib import Path

from tests.verl_wheel import run_pytest, verl_site


def test_parity_with_verls_overlong_filter(tmp_path: Path) -> None:
    result = run_pytest(
        "-q",
        "-rA",
        f"--basetemp={tmp_path / 'cases'}",
        Path(__file__).with_name("verl_filter_cases.py"),
        path=[verl_site()],
        env={"HF_HOME": str(tmp_path)},
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert result.stdout.count("PASSED ") == 17, result.stdout[-3000:]
