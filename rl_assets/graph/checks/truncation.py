"""Truncation: how many responses were cut before they came to an end."""

from typing import Any

import dagster as dg

from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import SHOWN_ROWS, Findings, place
from rl_assets.graph.dataset import GraphDataset


def _few_are_cut(dataset: GraphDataset) -> Findings:
    limit = dataset.spec.checks.truncated_share
    responses = cut = 0
    findings = Findings()
    examples: list[dict[str, Any]] = []
    for ref, data in dataset.shards("rollouts"):
        fields = data.non_tensor_batch
        with findings.shard(ref.name, len(data)) as line:
            indices = (fields["finish_reason"] == "length").nonzero()[0].tolist()
            line["truncated"] = len(indices)
        responses += len(data)
        cut += len(indices)
        examples += [
            {**place(data, index), "sample_index": fields["sample_index"][index]}
            for index in indices[: SHOWN_ROWS - len(examples)]
        ]
    share = cut / max(responses, 1)
    findings.numbers = {"responses": responses, "truncated": cut, "truncated_share": share}
    if share > limit:
        findings.fail(f"{share:.0%} of the responses were cut, and {limit:.0%} may be; among them these")
        for row in examples:
            findings.fail(f"response {row['sample_index']} was cut", row)
        findings.unlisted(cut - len(examples))
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
