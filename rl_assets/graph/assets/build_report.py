"""`build_report`: this build compared with the last one, to be looked at in the morning."""

import json
from collections.abc import Sequence
from typing import Any

import dagster as dg

from rl_assets.base.files import write_file
from rl_assets.base.manifests import last_manifest
from rl_assets.graph.assets.verl_dataset import rejects, stage_counts
from rl_assets.graph.dataset import HIDDEN, GraphDataset
from rl_assets.graph.display import histogram, last_message
from rl_assets.graph.unchanged import step
from rl_assets.trainset.report import BuildReport, Mover, movers, render_report, take_snapshot

NAME = "build_report"
DESCRIPTION = """\
This build and the last one that differed from it: changed settings, rows in and out by reason, lengths, pass
rates by source, and the prompts whose pass rate changed most, each with a response. `build_report.md` beside
this asset is the same as a file."""

_MOVERS = 8


def build_build_report(dataset: GraphDataset) -> dg.AssetsDefinition:
    """The asset `<dataset>/build_report`."""

    @dg.asset(
        **dataset.describe(NAME, DESCRIPTION, "markdown"),
        deps=dataset.depends("length_filtered", "reward_scores", "prompt_difficulty", "verl_dataset"),
        partitions_def=dataset.partitions,
    )
    @step(dataset)
    def build_report(
        dataset: GraphDataset, context: dg.AssetExecutionContext
    ) -> dg.MaterializeResult[BuildReport]:
        counts = {**stage_counts(dataset), "responses": dataset.table("reward_scores").num_rows}
        counts |= {file.name: file.rows for file in dataset.export().files}
        snapshot = take_snapshot(
            counts,
            {**rejects(dataset), **dataset.export().left_out},
            dataset.table("length_filtered"),
            dataset.table("reward_scores"),
            dataset.table("prompt_difficulty"),
            settings=_settings(dataset),
        )
        last = last_manifest(BuildReport, dataset.storage / f"{NAME}.json")
        report = last.followed_by(snapshot) if last else BuildReport(current=snapshot)
        moved = movers(report.previous, report.current, _MOVERS) if report.previous else []
        text = render_report(
            dataset.name, report, plot=_plot(report), samples=_samples(dataset, moved), limit=_MOVERS
        )
        write_file(dataset.storage / f"{NAME}.md", text.encode())
        return dg.MaterializeResult(
            value=report,
            data_version=dg.DataVersion(report.digest),
            metadata={"report": dg.MetadataValue.md(text), "moved": len(moved)},
        )

    return build_report


def _settings(dataset: GraphDataset) -> dict[str, Any]:
    """The settings that decide rows, responses and scores; of `reward_kwargs`, the names alone."""
    blocks = {"data", "contract", "policy", "rollout", "reward", "curation"}
    settings = dataset.spec.model_dump(mode="json", include=blocks)
    function = settings["reward"]["custom_reward_function"]
    function["reward_kwargs"] = sorted(function["reward_kwargs"])
    return settings


def _plot(report: BuildReport) -> str | None:
    builds = {"this": report.current, **({"last": report.previous} if report.previous else {})}
    rates = {
        name: [rate for rate in build.pass_rates.values() if rate is not None]
        for name, build in builds.items()
    }
    return histogram(rates, "pass rate", stacked=False).value if any(rates.values()) else None


def _samples(dataset: GraphDataset, moved: Sequence[Mover]) -> dict[str, dict[str, Any]]:
    """The prompt and the first response of every mover."""
    samples: dict[str, dict[str, Any]] = {mover.uid: {} for mover in moved}
    for row in dataset.table("length_filtered").rows(["uid", "prompt"]):
        if row["uid"] in samples:
            samples[row["uid"]]["prompt"] = last_message(json.loads(row["prompt"]))
    for row in dataset.table("reward_scores").rows(["uid", "sample_index", "solution_str", "score"]):
        if row["uid"] in samples and row["sample_index"] == 0:
            samples[row["uid"]] |= {"solution_str": row["solution_str"], "score": row["score"]}
    if not dataset.spec.previews:
        for sample in samples.values():
            sample |= {"prompt": HIDDEN, "solution_str": HIDDEN}
    return samples
