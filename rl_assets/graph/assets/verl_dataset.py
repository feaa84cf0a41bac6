"""`verl_dataset`: train and validation files that a trainer loads whole."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from upath import UPath

from rl_assets.base.digests import digest_json
from rl_assets.base.files import publish_file, staging
from rl_assets.base.tables import Table
from rl_assets.contract.files.manifest import RawManifest
from rl_assets.contract.files.scan import scan_files
from rl_assets.errors import InputError
from rl_assets.graph.columns import column_metadata
from rl_assets.graph.dataset import GraphDataset, refusals
from rl_assets.graph.display import table
from rl_assets.graph.unchanged import step
from rl_assets.trainset.export import Export

if TYPE_CHECKING:
    pass

NAME = "verl_dataset"
DESCRIPTION = """\
`train.parquet` and `val.parquet` in verl's row schema, which verl's own `RLHFDataset` loads with nothing
dropped and every value as the raw file had it, media with their bytes; `left_out.parquet`, the prompts that
were not taken, each with its reason; and `README.md`, the dataset's card. They are in the folder
`verl_dataset` beside this manifest.

Exact copies, and train prompts that are also in validation, are always left out; `curation` says what else
the prompts are chosen by."""


def build_verl_dataset(dataset: GraphDataset) -> dg.AssetsDefinition:
    """The asset `<dataset>/verl_dataset`.

    It reads `prompt_difficulty` only where prompts are chosen by it, but always comes after it: what a check
    on the rollouts or scores stops does not reach a trainer. Its card quotes the dataset's description and
    counts what every stage before set aside.
    """
    curation = dataset.spec.curation
    reads = {"curation": curation.model_dump(), "rollout": _rollout(dataset) if curation.pass_rate else None}

    @dg.asset(
        **dataset.describe(NAME, DESCRIPTION, "parquet", "huggingface", reads=reads),
        deps=dataset.depends(
            "raw_files",
            "rejected_rows",
            "overlong_rows",
            "unrenderable_rows",
            "length_filtered",
            "prompt_difficulty",
        ),
        partitions_def=dataset.partitions,
    )
    @step(dataset, world=_world)
    def verl_dataset(
        dataset: GraphDataset, context: dg.AssetExecutionContext
    ) -> dg.MaterializeResult[Export]:
        from rl_assets.trainset.card import CARD, dataset_card
        from rl_assets.trainset.curate import Selection, curate, read_prompts
        from rl_assets.trainset.export import LEFT_OUT, write_export
        from rl_assets.trainset.media import COPIES
        from rl_assets.trainset.similar import Benchmark, prompt_texts

        rows, target = dataset.table("length_filtered"), dataset.storage / NAME
        with staging(dataset.storage) as folder, refusals():
            benchmarks = _benchmarks(dataset)
            pass_rates, parameters = _difficulty(dataset)
            if benchmarks:
                parameters["contamination_files"] = {file.path: file.digest for file in benchmarks.files}
            curated = curate(
                read_prompts(rows),
                Selection(**curation.model_dump(exclude={"contamination_files", "forms", "media"})),
                pass_rates,
                partial(prompt_texts, rows),
                Benchmark(benchmarks, dataset.root, dataset.contract_options) if benchmarks else None,
            )
            media = dataset.media_writer(rows, folder)
            export = write_export(
                rows, curated, media=media, parameters=parameters, folder=folder, forms=curation.forms
            )
            counts, reasons = stage_counts(dataset), rejects(dataset)
            card = dataset_card(
                dataset.name,
                export,
                description=dataset.spec.description,
                raw=dataset.raw_manifest(),
                counts=counts,
                rejects=reasons,
            )
            (folder / CARD).write_text(card)
            copies = [str(path.relative_to(folder)) for path in (folder / COPIES).glob("*")]
            _publish(folder, target, [*copies, *(file.name for file in export.all_files), LEFT_OUT, CARD])
        context.log.info(f"verl_dataset: {export.rows:,} of {rows.num_rows:,} prompts in {target}")
        return dg.MaterializeResult(
            value=export,
            # With the numbers on its card: what every stage set aside.
            data_version=dg.DataVersion(digest_json([export.digest, counts, reasons])),
            metadata={
                "dagster/row_count": export.rows,
                **column_metadata(dataset, NAME, Table(target / export.files[0].name).schema),
                "folder": dg.MetadataValue.path(str(target)),
                "left_out": rows.num_rows - export.rows,
                "reasons": table(
                    ({"reason": reason, "prompts": n} for reason, n in export.left_out.items()),
                    ["reason", "prompts"],
                ),
                "files": table(
                    (file.model_dump() for file in export.all_files),
                    ["name", "rows", "bytes", "digest"],
                ),
                "card": dg.MetadataValue.md(card),
            },
        )

    return verl_dataset


def _publish(folder: Path, target: UPath, names: list[str]) -> None:
    """Put the files in place, and remove what an earlier build left beside them."""
    for name in names:
        publish_file(folder / name, target / name)
    for stale in set(target.rglob("*")) - {target / name for name in names}:
        if stale.is_file():
            stale.unlink()


def _world(dataset: GraphDataset) -> dict[str, Any]:
    with refusals():
        benchmarks = _benchmarks(dataset)
    return {"benchmarks": benchmarks and benchmarks.digest, "description": dataset.spec.description}


def _rollout(dataset: GraphDataset) -> dict[str, Any]:
    return dataset.spec.rollout.model_dump(include={"n", "temperature", "top_p", "top_k", "seed"})


def _benchmarks(dataset: GraphDataset) -> RawManifest | None:
    """The files that no train prompt may quote, where there are any."""
    files = dataset.spec.curation.contamination_files
    if not files:
        return None
    try:
        return scan_files(files, root=dataset.root, follow_links=dataset.spec.data.follow_links)
    except InputError as error:
        raise InputError(**{**vars(error), "field": "curation.contamination_files"}) from None


def _difficulty(dataset: GraphDataset) -> tuple[dict[str, float | None], dict[str, Any]]:
    """The pass rates that prompts are chosen by, and what the card says the choice was made with."""
    parameters = dataset.spec.curation.model_dump()
    if dataset.spec.curation.pass_rate is None:
        return {}, parameters
    rates, policies = {}, set()
    for row in dataset.table("prompt_difficulty").rows(["uid", "policy", "pass_rate"]):
        rates[row["uid"]] = row["pass_rate"]
        policies.add(row["policy"])
    return rates, {**parameters, "policy": sorted(policies), "rollout": _rollout(dataset)}


def stage_counts(dataset: GraphDataset) -> dict[str, int]:
    """Rows at each stage up to the choice."""
    names = ("rejected_rows", "overlong_rows", "unrenderable_rows", "length_filtered")
    return {"raw_files": dataset.raw_manifest().rows} | {name: dataset.table(name).num_rows for name in names}


def rejects(dataset: GraphDataset) -> dict[str, int]:
    """Rows that were set aside up to the choice, by reason code."""
    reasons = Counter({"prompt.overlong": dataset.table("overlong_rows").num_rows})
    for name in ("rejected_rows", "unrenderable_rows"):
        reasons.update(dataset.table(name).counts("code"))
    return {reason: rows for reason, rows in reasons.most_common() if rows}
