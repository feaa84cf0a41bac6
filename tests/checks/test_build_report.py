"""The report as an asset: it follows the builds, and shows no private text where previews are off."""

from pathlib import Path
from typing import Any

import pytest

from rl_assets.graph.dataset import GraphDataset
from rl_assets.rewards.difficulty import measure_difficulty
from rl_assets.rewards.scoring import SCORE_SCHEMA
from rl_assets.trainset.report import BuildReport
from tests.build import materialize
from tests.checks.stores import contract_row, put
from tests.checks.test_verl_dataset import store
from tests.rewards.builders import reward_input, uid

pytestmark = pytest.mark.usefixtures("ungated")


def build(root: Path, scores: list[float], **attributes: Any) -> GraphDataset:
    """A build with one prompt, whose responses have these scores."""
    dataset = store(root, [contract_row(0)], **attributes)
    rows = ({**reward_input(0, n, "my answer"), "score": score} for n, score in enumerate(scores))
    table = put(dataset, "reward_scores", SCORE_SCHEMA, rows)
    folder = Path(str(dataset.storage))
    measure_difficulty(table, policy="f00d", pass_score=0.5, most=2, folder=folder)
    assert materialize(dataset, "verl_dataset", "build_report").success
    return dataset


def report(dataset: GraphDataset) -> BuildReport:
    return BuildReport.model_validate_json((dataset.storage / "build_report.json").read_bytes())


def test_the_first_build_has_nothing_before_it(tmp_path: Path) -> None:
    found = report(build(tmp_path, [1.0, 0.0]))
    assert found.previous is None
    assert found.current.pass_rates == {uid(0): 0.5}
    assert found.current.counts["length_filtered"] == 1
    assert found.current.counts["train.parquet"] == 1


def test_a_rebuild_without_change_is_the_same_report(tmp_path: Path) -> None:
    build(tmp_path, [0.0, 0.0])
    changed = report(build(tmp_path, [1.0, 0.0]))
    assert changed.previous is not None
    assert changed.previous.pass_rates == {uid(0): 0.0}
    assert report(build(tmp_path, [1.0, 0.0])) == changed


@pytest.mark.parametrize("previews", [True, False])
def test_movers_are_shown_with_a_response_unless_previews_are_off(tmp_path: Path, previews: bool) -> None:
    build(tmp_path, [0.0, 0.0], previews=previews)
    dataset = build(tmp_path, [1.0, 0.0], previews=previews)
    text = (dataset.storage / "build_report.md").read_text()
    assert f"| `{uid(0)}` | 0.00 → 0.50 |" in text
    assert ("my answer" in text) is previews
    assert ("What is 0 + 0?" in text) is previews
    assert "![pass rate](data:image/png;base64," in text


def test_a_changed_setting_is_named_and_no_secret_is_kept(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("def compute_score(**_): return 1.0")

    def built(scores: list[float], temperature: float, token: str) -> GraphDataset:
        function = {"path": "reward.py", "reward_kwargs": {"token": token}}
        how = {"rollout": {"temperature": temperature}, "reward": {"custom_reward_function": function}}
        return build(tmp_path, scores, **how)

    built([0.0, 0.0], 1.0, "sk-one")
    dataset = built([1.0, 0.0], 0.7, "sk-two")
    text = (dataset.storage / "build_report.md").read_text()
    assert "answered by the same policy, and a setting changed." in text
    assert "| `rollout.temperature` | 1.0 | 0.7 |" in text
    stored = (dataset.storage / "build_report.json").read_text()
    assert ("token" in stored, "sk-" in stored + text) == (True, False)


def test_a_report_of_another_layout_is_no_reason_to_stop(tmp_path: Path) -> None:
    dataset = build(tmp_path, [0.0, 0.0])
    (dataset.storage / "build_report.json").write_text('{"version": 0}')
    assert report(build(tmp_path, [1.0, 0.0])).previous is None
