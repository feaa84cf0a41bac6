"""Rendering: how many rows the chat template refused, and how many prompts were cut."""

import dagster as dg

from rl_assets.assets.dataset import Dataset
from rl_assets.checks.check import Check
from rl_assets.checks.findings import SHOWN_ROWS, Findings, shown

_PLACE = ["uid", "source_file", "source_row"]


class _AsRejectRate(Check):
    """A check as grave as `checks.reject_rate`, unless the YAML says otherwise of it."""

    def severity_in(self, dataset: Dataset) -> dg.AssetCheckSeverity:
        if self.name in dataset.spec.checks.severities:
            return super().severity_in(dataset)
        return dg.AssetCheckSeverity(dataset.spec.checks.reject_rate.severity.upper())


def _few_are_unrenderable(dataset: Dataset) -> Findings:
    limit = dataset.spec.checks.reject_rate.max
    refused = dataset.table("unrenderable_rows")
    rows, of = refused.num_rows, dataset.table("field_contract").num_rows
    share = rows / max(of, 1)
    findings = Findings({"unrenderable": rows, "accepted": of, "share": share, "allowed": limit})
    if share > limit:
        for row in refused.head(SHOWN_ROWS, [*_PLACE, "code", "message"]):
            findings.fail(shown(dataset, f"[{row['code']}] {row['message']}"), row)
        findings.failures = rows
    return findings


def _none_is_cut(dataset: Dataset) -> Findings:
    findings = Findings({"cut": 0})
    for row in dataset.table("length_filtered").rows([*_PLACE, "prompt_length", "uncut_length"]):
        if row["uncut_length"] is not None:
            findings.count("cut", 1)
            findings.fail(f"cut from {row['uncut_length']:,} to {row['prompt_length']:,} tokens", row)
    return findings


CHECKS = [
    _AsRejectRate(
        "length_filtered",
        "few_are_unrenderable",
        "No more accepted rows than `checks.reject_rate.max` allows are refused by the chat template or the "
        "processor; it has the severity of `checks.reject_rate`.",
        _few_are_unrenderable,
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
