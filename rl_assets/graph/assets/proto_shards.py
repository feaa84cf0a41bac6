"""`proto_shards`: the prompts as collated DataProto shards."""

from typing import Any

import dagster as dg

from rl_assets.base.files import staging
from rl_assets.base.manifests import last_manifest
from rl_assets.base.tables import Table
from rl_assets.contract.files.manifest import SPLITS
from rl_assets.graph.columns import column_metadata, shard_types
from rl_assets.graph.dataset import GraphDataset, refusals
from rl_assets.graph.display import table
from rl_assets.graph.provenance import code_digest
from rl_assets.graph.unchanged import step
from rl_assets.protocol.manifest import ShardManifest

DESCRIPTION = """\
The prompts that fit, collated as verl collates them: `DataProto` shards of `raw_prompt`, `prompt_ids`,
the reward fields and everything else that a row carries.

A row's shard is its uid modulo the number of shards, so a changed row touches one shard. A shard is a folder
of `tensors.safetensors`, `rows.parquet` and `meta.json`, named by its content; this asset is the
manifest."""


def build_proto_shards(dataset: GraphDataset) -> dg.AssetsDefinition:
    """The asset `<dataset>/proto_shards`."""
    spec = dataset.spec

    @dg.asset(
        **dataset.describe(
            "proto_shards",
            DESCRIPTION,
            "torch",
            "parquet",
            reads={
                "shards": spec.shards.model_dump(),
                "data": spec.data.model_dump(include={"train_max_samples", "val_max_samples"}),
            },
        ),
        ins={"length_filtered": dg.AssetIn(key=dataset.key("length_filtered"))},
        partitions_def=dataset.partitions,
    )
    @step(dataset)
    def proto_shards(
        dataset: GraphDataset, context: dg.AssetExecutionContext, length_filtered: Table
    ) -> dg.MaterializeResult[ShardManifest]:
        from rl_assets.media.store import MediaStore
        from rl_assets.prompts.length import render_stamp
        from rl_assets.protocol.sharding import ShardBudget, shard_rows

        with staging(dataset.storage) as folder, refusals():
            manifest = shard_rows(
                length_filtered,
                dataset.storage / "proto_shards",
                count=spec.shards.count,
                budget=ShardBudget(rows=spec.shards.max_rows, bytes=spec.shards.max_bytes),
                caps={split: spec.data.max_samples(split) for split in SPLITS},
                stamps=render_stamp(length_filtered),
                media=MediaStore(dataset.storage / "media"),
                folder=folder,
                log=context.log.info,
                before=last_manifest(ShardManifest, dataset.storage / "proto_shards.json"),
                code=code_digest(__name__),
            )
        return dg.MaterializeResult(
            value=manifest,
            data_version=dg.DataVersion(manifest.digest),
            metadata=shard_metadata(dataset, "proto_shards", manifest),
        )

    return proto_shards


def shard_metadata(dataset: GraphDataset, asset: str, manifest: ShardManifest) -> dict[str, Any]:
    """What a manifest of shards shows of itself."""
    return {
        "dagster/row_count": manifest.rows,
        **column_metadata(dataset, asset, shard_types(dataset, asset, manifest)),
        "bytes": manifest.bytes,
        "shards": table((ref.model_dump() for ref in manifest.shards), ["name", "rows", "bytes"]),
    }
