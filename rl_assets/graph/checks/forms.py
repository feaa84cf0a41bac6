"""Training files: what a row says and a trainer does not read is known before anything is generated."""

from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import Findings
from rl_assets.graph.dataset import GraphDataset

NAME = "trainers_read_rows"


def _read_whole(dataset: GraphDataset) -> Findings:
    findings = Findings()
    for one in dataset.trainers.unread(dataset.table("length_filtered")):
        findings.fail(one.problem, one.record)
    return findings


CHECKS = [
    Check(
        "length_filtered",
        NAME,
        "Every trainer of the files, verl and those of `curation.forms`, reads all that a row says: its "
        "media, its tools, its template settings. What one would pass over is named before the rollouts.",
        _read_whole,
    )
]
