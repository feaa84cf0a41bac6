"""Rendering: how many rows the chat template refused, and how many prompts were cut."""

from collections import Counter

import dagster as dg

from rl_assets.base.tables import Table
from rl_assets.contract.rules.codes import CODES
from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import PLACE, SHOWN_ROWS, Findings, shown
from rl_assets.graph.dataset import GraphDataset


class _AsRejectRate(Check):
    """A check as grave as `checks.reject_rate`, unless the YAML says otherwise of it."""

    def _usual(self, dataset: GraphDataset) -> dg.AssetCheckSeverity:
        return dg.AssetCheckSeverity(dataset.spec.checks.reject_rate.severity.upper())


def _few_are_unrenderable(dataset: GraphDataset) -> Findings:
    limit = dataset.spec.checks.reject_rate.max
    refused = dataset.table("unrenderable_rows")
    rows, of = refused.num_rows, dataset.table("field_contract").num_rows
    share = rows / max(of, 1)
    findings = Findings({"unrenderable": rows, "accepted": of, "share": share, "allowed": limit})
    findings.fatal = of > 0 and rows == of
    if findings.fatal:
        findings.fail(_none_is_rendered(dataset, refused))
    if share > limit or findings.fatal:
        for row in refused.head(SHOWN_ROWS, [*PLACE, "code", "message"]):
            findings.fail(shown(dataset, f"[{row['code']}] {row['message']}"), row)
        findings.unlisted(rows - min(rows, SHOWN_ROWS))
    return findings


def _none_is_rendered(dataset: GraphDataset, refused: Table) -> str:
    reasons = Counter((row["code"], row["message"]) for row in refused.rows(["code", "message"]))
    ((code, message), rows) = reasons.most_common(1)[0]
    return shown(
        dataset,
        f"0 of {reasons.total():,} rows can be rendered with the policy {dataset.spec.policy.path} "
        f"({rows:,} are refused for the same reason, {code}): {message}. Take a policy that reads these rows "
        f"(`policy.path`), or repair them; `rl-assets codes {code}` explains the reason",
    )


def _prompts_are_whole(dataset: GraphDataset) -> Findings:
    findings = Findings({"lacking": 0})
    for batch in dataset.table("length_filtered").batches([*PLACE, "warnings"]):
        for row in batch.filter(batch["warnings"].is_valid()).to_pylist():
            lost = [one for one in row["warnings"] if CODES[one["code"]].stage == "render"]
            findings.count("lacking", bool(lost))
            for one in lost:
                findings.fail(shown(dataset, f"[{one['code']}] {one['path']}: {one['message']}"), row)
    return findings


def _none_is_cut(dataset: GraphDataset) -> Findings:
    findings = Findings({"cut": 0})
    for row in dataset.table("length_filtered").rows([*PLACE, "prompt_length", "uncut_length"]):
        if row["uncut_length"] is not None:
            findings.count("cut", 1)
            findings.fail(f"cut from {row['uncut_length']:,} to {row['prompt_length']:,} tokens", row)
    return findings


CHECKS = [
    _AsRejectRate(
        "length_filtered",
        "few_are_unrenderable",
        "No more accepted rows than `checks.reject_rate.max` allows are refused by the chat template or the "
        "processor; it has the severity of `checks.reject_rate`. Where all are refused, nothing is left to "
        "go on with, and the run stops.",
        _few_are_unrenderable,
        may_be_fatal=True,
    ),
    Check(
        "length_filtered",
        "prompts_are_whole",
        "No rendered prompt lacks a text, a tool or a tool call of its row. One that does refuses its row, "
        "unless `contract.severities` makes that a warning (such as `render.tools_lost`).",
        _prompts_are_whole,
        dg.AssetCheckSeverity.WARN,
    ),
    Check(
        "length_filtered",
        "none_is_cut",
        "No prompt was cut at `data.max_prompt_length` (`data.truncation`): the policy sees another question "
        "than the one that was written.",
        _none_is_cut,
        dg.AssetCheckSeverity.WARN,
    ),
]
