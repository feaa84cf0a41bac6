"""Rows that the template refuses count like rejects, and a cut prompt is seen."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_assets.contract.schema import REJECT_SCHEMA, reject
from rl_assets.errors import InputError
from rl_assets.graph.checks.gate import require_passed
from rl_assets.prompts.length import LENGTH_FILTERED_SCHEMA
from tests.checks.stores import (
    bare_dataset,
    contract_row,
    evaluate,
    put,
    put_contract,
    the_check,
    the_others_warn,
)

REFUSED = [("render.template_error", "prompt", "the chat template refuses it: System role not supported")]


def store(root: Path, unrenderable: int, **checks: Any) -> Any:
    dataset = bare_dataset(root, checks=checks)
    rows = [contract_row(number) for number in range(10)]
    put_contract(dataset, *rows)
    put(
        dataset,
        "unrenderable_rows",
        REJECT_SCHEMA,
        [reject(row | NO_MEDIA, REFUSED) for row in rows[:unrenderable]],
    )
    return dataset


NO_MEDIA = dict.fromkeys(("images", "videos", "audios"))


@pytest.mark.parametrize(("unrenderable", "passes"), [(0, True), (2, True), (3, False)])
def test_no_more_rows_are_unrenderable_than_may_be_rejected(
    tmp_path: Path, unrenderable: int, passes: bool
) -> None:
    dataset = store(tmp_path, unrenderable, reject_rate={"max": 0.2})
    findings = evaluate(dataset, "length_filtered", "few_are_unrenderable")
    assert findings.passed == passes
    assert findings.numbers["share"] == unrenderable / 10
    if not passes:
        assert findings.failures == 3
        assert findings.rows[0]["problem"].startswith("[render.template_error] the chat template refuses it")


@pytest.mark.parametrize(
    ("checks", "severity"),
    [
        ({}, "ERROR"),
        ({"reject_rate": {"severity": "warn"}}, "WARN"),
        ({"reject_rate": {"severity": "warn"}, "severities": {"few_are_unrenderable": "error"}}, "ERROR"),
    ],
)
def test_its_severity_is_that_of_the_reject_rate(tmp_path: Path, checks: Any, severity: str) -> None:
    check = the_check("length_filtered", "few_are_unrenderable")
    assert check.severity_in(bare_dataset(tmp_path, checks=checks)).value == severity


@pytest.mark.parametrize("reject_rate", [{"max": 1.0}, {"severity": "warn"}])
def test_where_all_rows_are_refused_the_run_stops_with_the_commonest_reason(
    tmp_path: Path, reject_rate: dict[str, Any]
) -> None:
    others = the_others_warn("few_are_unrenderable")
    dataset = store(tmp_path, 10, reject_rate=reject_rate, **others)
    check = the_check("length_filtered", "few_are_unrenderable")
    findings = check.find(dataset)
    assert findings.rows[0]["problem"].startswith(
        "0 of 10 rows can be rendered with the policy p (10 are refused for the same reason, "
        "render.template_error): the chat template refuses it: System role not supported. Take a policy"
    )
    assert check.spec(dataset).blocking
    assert check.result(dataset, findings).severity == dg.AssetCheckSeverity.ERROR
    with pytest.raises(InputError, match="0 of 10 rows can be rendered with the policy p"):
        require_passed(dataset, ["length_filtered"])


def test_where_some_rows_are_left_the_severity_is_kept(tmp_path: Path) -> None:
    dataset = store(tmp_path, 9, reject_rate={"severity": "warn"})
    check = the_check("length_filtered", "few_are_unrenderable")
    result = check.result(dataset)
    assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.WARN)


@pytest.mark.parametrize("previews", [True, False])
def test_what_a_prompt_lacks_is_a_finding(tmp_path: Path, previews: bool) -> None:
    dataset = bare_dataset(tmp_path, previews=previews)
    lost = {"code": "render.tools_lost", "path": "tools[0].function.name", "message": "'abc' is not there"}
    seen = {"code": "media.image_mode", "path": "images[0]", "message": "an image in mode L"}
    warnings = [None, [seen], [seen, lost]]
    rows = [{**contract_row(n), "prompt_ids": [1], "prompt_length": 1} for n in range(3)]
    for row, found in zip(rows, warnings, strict=True):
        row["warnings"] = found
    put(dataset, "length_filtered", LENGTH_FILTERED_SCHEMA, rows[:2])
    assert evaluate(dataset, "length_filtered", "prompts_are_whole").passed
    put(dataset, "length_filtered", LENGTH_FILTERED_SCHEMA, rows)
    findings = evaluate(dataset, "length_filtered", "prompts_are_whole")
    assert findings.numbers == {"lacking": 1}
    problem = "[render.tools_lost] tools[0].function.name" + (": 'abc' is not there" if previews else "")
    assert [(row["source_row"], row["problem"]) for row in findings.rows] == [(2, problem)]


def test_every_cut_prompt_is_a_finding(tmp_path: Path) -> None:
    dataset = bare_dataset(tmp_path)
    rows = [{**contract_row(n), "prompt_ids": [1, 2], "prompt_length": 2} for n in range(3)]
    put(dataset, "length_filtered", LENGTH_FILTERED_SCHEMA, rows)
    assert evaluate(dataset, "length_filtered", "none_is_cut").passed
    rows[1]["uncut_length"] = 9_000
    put(dataset, "length_filtered", LENGTH_FILTERED_SCHEMA, rows)
    findings = evaluate(dataset, "length_filtered", "none_is_cut")
    assert findings.numbers == {"cut": 1}
    assert findings.rows == [
        {
            "uid": rows[1]["uid"],
            "source_file": "data/toy/train.jsonl",
            "source_row": 1,
            "problem": "cut from 9,000 to 2 tokens",
        }
    ]
