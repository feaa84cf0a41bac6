"""`prompt_difficulty`: how often the policy solves each prompt, and how sure that is."""

from collections.abc import Iterator

import dagster as dg

from rl_assets.base.files import staging
from rl_assets.base.tables import Table
from rl_assets.contract.files.manifest import SPLITS
from rl_assets.graph.columns import column_metadata
from rl_assets.graph.dataset import GraphDataset, refusals
from rl_assets.graph.display import histogram, table
from rl_assets.graph.unchanged import step
from rl_assets.protocol.manifest import ShardManifest

DESCRIPTION = """\
One row per prompt: of its `n` responses, how many passed (`reward.pass_score`), the pass rate with its
Wilson interval, unbiased pass@k, mean and spread of the scores, the share of responses that were cut off,
how many different answers were given, and the fingerprint of the policy that gave them."""


def build_prompt_difficulty(dataset: GraphDataset) -> dg.AssetsDefinition:
    """The asset `<dataset>/prompt_difficulty`."""
    pass_score = dataset.spec.reward.pass_score

    @dg.asset(
        **dataset.describe("prompt_difficulty", DESCRIPTION, "parquet", reads={"pass_score": pass_score}),
        ins={
            "reward_scores": dg.AssetIn(key=dataset.key("reward_scores")),
            "rollouts": dg.AssetIn(key=dataset.key("rollouts")),
        },
        partitions_def=dataset.partitions,
    )
    @step(dataset)
    def prompt_difficulty(
        dataset: GraphDataset,
        context: dg.AssetExecutionContext,
        reward_scores: Table,
        rollouts: ShardManifest,
    ) -> Iterator[dg.MaterializeResult[Table]]:
        from rl_assets.rewards.difficulty import (
            SourceDifficulty,
            difficulty_by_source,
            measure_difficulty,
            pass_rates,
        )

        with staging(dataset.storage) as folder, refusals():
            difficulty = measure_difficulty(
                reward_scores,
                policy=rollouts.stamps["policy"],
                pass_score=pass_score,
                most=max(map(dataset.responses_per_prompt, SPLITS)),
                folder=folder,
            )
            lines = difficulty_by_source(difficulty)
            rates = {
                f"{split} · {source}": found for (split, source), found in pass_rates(difficulty).items()
            }
            train = [line for line in lines if line.split == "train"]
            yield dg.MaterializeResult(
                value=difficulty,
                data_version=dg.DataVersion(difficulty.digest),
                metadata={
                    "dagster/row_count": difficulty.num_rows,
                    **column_metadata(dataset, "prompt_difficulty", difficulty.schema),
                    "all_failed": sum(line.all_failed for line in train),
                    "mixed": sum(line.mixed for line in train),
                    "all_solved": sum(line.all_solved for line in train),
                    "by_source": table((line._asdict() for line in lines), SourceDifficulty._fields),
                    "pass_rates": histogram(rates, "pass rate"),
                },
            )

    return prompt_difficulty
