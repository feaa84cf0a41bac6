"""Difficulty: prompts from whose responses a policy can learn."""

import dagster as dg

from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import Findings
from rl_assets.graph.dataset import GraphDataset
from rl_assets.rewards.difficulty import difficulty_by_source


def _learning_signal(dataset: GraphDataset) -> Findings:
    findings = Findings({"prompts": 0, "mixed": 0})
    for line in difficulty_by_source(dataset.table("prompt_difficulty")):
        if line.split != "train" or line.prompts == 0:
            continue
        findings.count("prompts", line.prompts)
        findings.count("mixed", line.mixed)
        if line.all_failed == line.prompts:
            findings.fail(f"{line.data_source}: no response to any of its {line.prompts:,} prompts passes")
        elif line.all_solved == line.prompts:
            findings.fail(f"{line.data_source}: every response to its {line.prompts:,} prompts passes")
    return findings


CHECKS = [
    Check(
        "prompt_difficulty",
        "learning_signal",
        "No `data_source` is all solved or all failed in training: where every response gets the same score, "
        "a group-relative trainer learns nothing.",
        _learning_signal,
        dg.AssetCheckSeverity.WARN,
    )
]
