"""Truncation: how many responses were cut before they came to an end."""

import dagster as dg

from rl_assets.assets.dataset import Dataset
from rl_assets.checks.check import Check, Findings


def _few_are_cut(dataset: Dataset) -> Findings:
    limit = dataset.spec.checks.truncated_share
    responses = cut = 0
    for _, data in dataset.shards("rollouts"):
        reasons = data.non_tensor_batch["finish_reason"]
        responses += len(reasons)
        cut += int((reasons == "length").sum())
    share = cut / max(responses, 1)
    findings = Findings({"responses": responses, "truncated": cut, "truncated_share": share})
    if share > limit:
        findings.fail(f"{share:.0%} of the responses were cut, and {limit:.0%} may be")
    return findings


CHECKS = [
    Check(
        "rollouts",
        "few_are_truncated",
        "No more responses than `checks.truncated_share` were cut at `data.max_response_length`: a response "
        "without an end is scored as wrong, however well it began.",
        _few_are_cut,
        dg.AssetCheckSeverity.WARN,
    )
]
