"""Reward fields: what reaches the reward function is what the raw file said."""

import json

from rl_assets.assets.dataset import Dataset
from rl_assets.checks.check import Check
from rl_assets.checks.findings import Findings, shown


def _unchanged(dataset: Dataset) -> Findings:
    columns = ["uid", "data_source", "reward_model", "extra_info"]
    contract = {row["uid"]: row for row in dataset.table("field_contract").rows(columns)}
    findings = Findings()
    rows = 0
    for row in dataset.table("reward_inputs").rows():
        rows += 1
        source = contract.get(row["uid"])
        if source is None:
            findings.fail("the contract has no row with this uid", row)
            continue
        expected = {
            "data_source": source["data_source"],
            "ground_truth": json.loads(source["reward_model"])["ground_truth"],
            "extra_info": json.loads(source["extra_info"]),
        }
        found = {
            "data_source": row["data_source"],
            "ground_truth": json.loads(row["ground_truth"]),
            "extra_info": json.loads(row["extra_info"]),
        }
        # Compared as text, since 1 == 1.0 == True in Python but not for a scorer.
        for field, value in expected.items():
            if json.dumps(value) != json.dumps(found[field]):
                problem = f"`{field}` differs: it is {found[field]!r}, and the contract says {value!r}"
                findings.fail(shown(dataset, problem), row)
    findings.numbers["rows"] = rows
    return findings


CHECKS = [
    Check(
        "reward_inputs",
        "reward_fields_unchanged",
        "`data_source`, `ground_truth` and `extra_info` of every reward input equal those of the contract "
        "row with the same uid, types included.",
        _unchanged,
    )
]
