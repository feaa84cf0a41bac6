"""`reward_inputs`: what a reward function is called with, one row per response."""

from collections.abc import Iterator

import dagster as dg

from rl_assets.base.files import staging
from rl_assets.base.tables import Table
from rl_assets.graph.columns import column_metadata
from rl_assets.graph.dataset import GraphDataset, refusals
from rl_assets.graph.display import PREVIEW_ROWS
from rl_assets.graph.unchanged import step
from rl_assets.protocol.manifest import ShardManifest

DESCRIPTION = """\
One row per response, with the arguments of verl's `compute_score`: `data_source`, `solution_str`,
`ground_truth` and `extra_info`, beside `uid`, `sample_index`, `finish_reason` and the raw file and row
that the prompt came from. `ground_truth` and `extra_info` are JSON text, so that values keep their type."""


def build_reward_inputs(dataset: GraphDataset) -> dg.AssetsDefinition:
    """The asset `<dataset>/reward_inputs`."""

    @dg.asset(
        **dataset.describe("reward_inputs", DESCRIPTION, "parquet"),
        ins={"rollouts": dg.AssetIn(key=dataset.key("rollouts"))},
        deps=dataset.depends("tokenizer"),
        partitions_def=dataset.partitions,
    )
    @step(dataset)
    def reward_inputs(
        dataset: GraphDataset, context: dg.AssetExecutionContext, rollouts: ShardManifest
    ) -> Iterator[dg.MaterializeResult[Table]]:
        from rl_assets.rewards.inputs import REWARD_INPUT_SCHEMA
        from rl_assets.rewards.inputs import build_reward_inputs as build

        with staging(dataset.storage) as folder, refusals():
            rows = build(
                rollouts,
                dataset.storage / "rollouts",
                dataset.renderer().tokenizer,
                folder=folder,
                log=context.log.info,
            )
            columns = ["uid", "sample_index", "data_source", "solution_str", "ground_truth", "finish_reason"]
            # Yielded, so that the table is published while its staging folder is still there.
            yield dg.MaterializeResult(
                value=rows,
                data_version=dg.DataVersion(rows.digest),
                metadata={
                    "dagster/row_count": rows.num_rows,
                    **column_metadata(dataset, "reward_inputs", REWARD_INPUT_SCHEMA),
                    "preview": dataset.preview(rows.head(PREVIEW_ROWS, columns), columns),
                },
            )

    return reward_inputs
