"""Reward fields: what reaches the reward function is what the raw file said."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import SHOWN_ROWS, Findings, shown
from rl_assets.graph.dataset import GraphDataset

_FIELDS = ("data_source", "ground_truth", "extra_info")


def _unchanged(dataset: GraphDataset) -> Findings:
    # About 350 bytes a prompt: the values themselves are looked up again where they differ.
    contract = {uid: list(map(_digest, values)) for uid, values in _contract(dataset)}
    findings, more = Findings({"rows": 0}), 0
    differing: list[tuple[dict[str, Any], int, Any]] = []
    for row in dataset.table("reward_inputs").rows():
        findings.count("rows", 1)
        expected = contract.get(row["uid"])
        if expected is None:
            findings.fail("the contract has no row with this uid", row)
            continue
        found = [row["data_source"], json.loads(row["ground_truth"]), json.loads(row["extra_info"])]
        for place, value in enumerate(found):
            if _digest(value) == expected[place]:
                continue
            if len(differing) < SHOWN_ROWS:
                differing.append((row, place, value))
            else:
                more += 1
    uids = {row["uid"] for row, _, _ in differing}
    says = {uid: values for uid, values in _contract(dataset) if uid in uids} if uids else {}
    for row, place, value in differing:
        problem = (
            f"`{_FIELDS[place]}` differs: it is {value!r}, and the contract says {says[row['uid']][place]!r}"
        )
        findings.fail(shown(dataset, problem), row)
    findings.unlisted(more)
    return findings


def _contract(dataset: GraphDataset) -> Iterator[tuple[str, list[Any]]]:
    """The uid of every row of the contract, and its values of `_FIELDS`."""
    for row in dataset.table("field_contract").rows(["uid", "data_source", "reward_model", "extra_info"]):
        truth = json.loads(row["reward_model"])["ground_truth"]
        yield row["uid"], [row["data_source"], truth, json.loads(row["extra_info"])]


def _digest(value: Any) -> bytes:
    """Of the value as text, since 1 == 1.0 == True in Python but not for a scorer."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).digest()


CHECKS = [
    Check(
        "reward_inputs",
        "reward_fields_unchanged",
        "`data_source`, `ground_truth` and `extra_info` of every reward input equal those of the contract "
        "row with the same uid, types included.",
        _unchanged,
    )
]
