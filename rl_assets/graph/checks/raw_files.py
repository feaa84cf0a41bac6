"""Checks of the raw files and of how much of them is left."""

import dagster as dg

from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import Findings
from rl_assets.graph.dataset import GraphDataset


def _no_file_is_empty(dataset: GraphDataset) -> Findings:
    manifest = dataset.raw_manifest()
    findings = Findings({"files": len(manifest.files)})
    for file in manifest.files:
        if file.rows == 0:
            findings.fail("the file has no rows", {"source_file": file.path})
    return findings


def _fills_a_batch(dataset: GraphDataset) -> Findings:
    wanted = dataset.spec.data.train_batch_size or 1
    kept = dataset.table("length_filtered").counts("split")["train"]
    findings = Findings({"train_prompts": kept, "train_batch_size": wanted})
    if dataset.spec.data.train_paths and kept < wanted:
        findings.fail(f"{kept:,} train prompts are left, and a training batch takes {wanted:,}")
    return findings


CHECKS = [
    Check(
        "raw_files",
        "no_file_is_empty",
        "Every raw file has at least one row. An empty file is often one that was not written to its end.",
        _no_file_is_empty,
        dg.AssetCheckSeverity.WARN,
    ),
    Check(
        "length_filtered",
        "fills_a_batch",
        "At least one training batch (`data.train_batch_size`) of prompts is left. verl starts with an "
        "empty loader otherwise.",
        _fills_a_batch,
        dg.AssetCheckSeverity.WARN,
    ),
]
