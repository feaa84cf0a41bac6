"""With a scorer of the user's own, the rules of the built-in scorers do not hold."""

from pathlib import Path
from typing import Any

import pytest

from tests.contract.rows import accepted, codes, judge, row


@pytest.mark.parametrize(
    "changes",
    [
        {"data_source": "acme/sums"},
        {"reward_model": {"ground_truth": ["72"]}},
        {"reward_model": {"ground_truth": 72}},
        {"reward_model": {"ground_truth": "1,000"}},
    ],
    ids=str,
)
def test_it_reads_every_source_and_every_ground_truth(tmp_path: Path, changes: dict[str, Any]) -> None:
    raw = row(**changes)
    result = judge(tmp_path, raw, custom_scorer=True)
    assert accepted(result) == [raw]
    assert codes(result) == set()


@pytest.mark.parametrize("model", [{}, {"ground_truth": None}, None], ids=str)
def test_a_ground_truth_there_must_be(tmp_path: Path, model: Any) -> None:
    assert judge(tmp_path, row(reward_model=model), custom_scorer=True).rejected_rows == 1
