"""The report of a build: what it is held against, what changed, and text that cannot break its tables."""

from pathlib import Path
from typing import Any

import pytest

from rl_assets.base.tables import TableWriter
from rl_assets.prompts.length import LENGTH_FILTERED_SCHEMA
from rl_assets.rewards.difficulty import measure_difficulty
from rl_assets.trainset.report import (
    BuildReport,
    Change,
    Mover,
    Snapshot,
    changes,
    movers,
    render_report,
    take_snapshot,
)
from tests.checks.stores import contract_row
from tests.rewards.builders import score_table, uid


def snapshot(**changes: Any) -> Snapshot:
    values = {"counts": {}, "rejects": {}, "lengths": {}, "sources": {}, "policy": "p", "pass_rates": {}}
    return Snapshot.model_validate({**values, **changes})


def source(rate: float, **outcomes: int) -> dict[str, Any]:
    return {"prompts": 4, "all_failed": 0, "mixed": 4, "all_solved": 0, "mean_pass_rate": rate, **outcomes}


def rendered(report: BuildReport, **samples: Any) -> list[str]:
    return render_report("toy", report, plot=None, samples=samples, limit=8).splitlines()


def test_a_snapshot_holds_counts_lengths_and_rates(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "rows.parquet", LENGTH_FILTERED_SCHEMA) as writer:
        writer.write_rows(
            {**contract_row(number), "prompt_ids": [1], "prompt_length": length}
            for number, length in enumerate((3, 9))
        )
    scores = score_table(tmp_path, {0: [1.0, 0.0], 1: [None, None]})
    difficulty = measure_difficulty(scores, policy="f00d", pass_score=0.5, most=2, folder=tmp_path)
    settings = {"rollout": {"temperature": 1.0, "stop": ["\n"]}, "reward": {}}
    taken = take_snapshot({"raw_files": 2}, {"x": 1}, writer.table, scores, difficulty, settings=settings)
    assert taken == Snapshot(
        counts={"raw_files": 2},
        rejects={"x": 1},
        lengths={
            "median_prompt_length": 6.0,
            "longest_prompt": 9.0,
            "median_response_length": 5.0,
            "longest_response": 5.0,
            "truncated_share": 0.0,
        },
        sources={
            "train · openai/gsm8k": {
                "prompts": 1.0,
                "all_failed": 0.0,
                "mixed": 1.0,
                "all_solved": 0.0,
                "mean_pass_rate": 0.5,
            }
        },
        policy="f00d",
        pass_rates={uid(0): 0.5, uid(1): None},
        settings={"rollout.temperature": "1.0", "rollout.stop": '["\\n"]', "reward": "{}"},
    )
    assert Snapshot.model_validate_json(taken.model_dump_json()) == taken


def test_a_build_is_held_against_the_last_that_differed() -> None:
    one, two = snapshot(policy="1"), snapshot(policy="2")
    first = BuildReport(current=one)
    assert first.followed_by(one) == first
    second = first.followed_by(two)
    assert (second.previous, second.current) == (one, two)
    assert second.followed_by(two) == second
    assert second.followed_by(one) == BuildReport(current=one, previous=two)
    assert len({first.digest, second.digest}) == 2


def test_settings_that_changed_are_named_with_both_values() -> None:
    before = snapshot(settings={"rollout.temperature": "1.0", "rollout.n": "4", "data.old": "1"})
    now = snapshot(settings={"rollout.temperature": "0.7", "rollout.n": "4", "rollout.new": '"a | b"'})
    lines = rendered(BuildReport(current=now, previous=before))
    assert any("answered by the same policy, and 3 settings changed." in line for line in lines)
    assert "| `rollout.temperature` | 1.0 | 0.7 |" in lines
    assert '| `rollout.new` | – | "a \\| b" |' in lines
    assert "| `data.old` | 1 | – |" in lines
    assert not any("rollout.n`" in line for line in lines)
    assert "## Changed settings" not in rendered(BuildReport(current=now, previous=now))


def test_a_stored_report_without_settings_is_read_and_says_of_none_that_it_changed() -> None:
    written = BuildReport(current=snapshot(counts={"raw_files": 1}), previous=snapshot()).model_dump()
    for build in written.values():
        del build["settings"]
    stored = BuildReport.model_validate(written)
    same = snapshot(counts={"raw_files": 1}, settings={"rollout.n": "4"})
    assert stored.followed_by(same) == BuildReport(current=same, previous=snapshot())
    other = snapshot(counts={"raw_files": 2}, settings={"rollout.n": "4"})
    followed = stored.followed_by(other)
    assert followed == BuildReport(current=other, previous=stored.current)
    assert "## Changed settings" not in rendered(followed)


def test_movers_are_prompts_of_both_builds_by_the_size_of_their_change() -> None:
    before = snapshot(pass_rates={"a": 0.5, "b": 0.0, "c": 0.5, "gone": 1.0, "d": None, "e": 0.5})
    now = snapshot(pass_rates={"a": 0.25, "b": 1.0, "c": 0.5, "new": 1.0, "d": 1.0, "e": None})
    assert movers(before, now, 8) == [Mover("b", 0.0, 1.0), Mover("a", 0.5, 0.25)]
    assert movers(before, now, 1) == [Mover("b", 0.0, 1.0)]


def test_changes_name_what_either_build_has() -> None:
    assert changes({"a": 1, "old": 2}, {"a": 3, "new": 4}) == [
        Change("a", 1, 3),
        Change("new", None, 4),
        Change("old", 2, None),
    ]


def test_the_first_report_says_that_there_is_none_before_it() -> None:
    lines = rendered(BuildReport(current=snapshot(counts={"raw_files": 1200})))
    assert "The first build that is reported: there is none to compare it with." in lines
    assert "| raw\\_files | – | 1,200 |  |" in lines
    assert "## Biggest movers" not in lines


def test_a_report_shows_numbers_side_by_side_and_the_movers() -> None:
    before = snapshot(
        counts={"raw_files": 10},
        rejects={"uid.invalid": 2},
        sources={"train · math": source(0.25)},
        pass_rates={"a": 0.0, "gone": 1.0},
        policy="1",
    )
    now = snapshot(
        counts={"raw_files": 12},
        sources={"train · math": source(0.5, mixed=3, all_solved=1)},
        pass_rates={"a": 1.0, "x": 0.0, "y": 0.0},
        policy="2",
    )
    sample = {"prompt": "What is\n1 | 1?", "solution_str": "**2** <b>", "score": 1.0}
    lines = rendered(BuildReport(current=now, previous=before), a=sample)
    assert "2 answered prompts came and 1 went. They were answered by another policy." in lines
    assert "| raw\\_files | 10 | 12 | +2 |" in lines
    assert "| uid.invalid | 2 | – |  |" in lines
    assert "| train · math | 0.25 | 0.5 | +0.25 |" in lines
    assert "| train · math: mixed | 4 | 3 | −1 |" in lines
    assert "| `a` | 0.00 → 1.00 | What is 1 \\| 1? | \\*\\*2\\*\\* &lt;b> | 1 |" in lines


@pytest.mark.parametrize(
    "text", ["a | b", "x\n\ny", "`code", "<script>", "# head", "[link](x)", "$x$", "w" * 999]
)
def test_no_text_of_a_users_ends_its_cell(text: str) -> None:
    before, now = snapshot(pass_rates={"a": 0.0}), snapshot(pass_rates={"a": 1.0})
    sample = {"prompt": text, "solution_str": text, "score": 0.0}
    (line,) = [
        line
        for line in rendered(BuildReport(current=now, previous=before), a=sample)
        if "0.00 → 1.00" in line
    ]
    assert line.replace("\\|", "").count("|") == 6
    assert len(line) < 600
