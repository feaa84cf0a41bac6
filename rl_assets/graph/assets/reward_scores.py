"""`reward_scores`: every response scored, or the reason why it could not be."""

from collections.abc import Iterator

import dagster as dg

from rl_assets.base.files import staging
from rl_assets.base.tables import Table
from rl_assets.graph.columns import column_metadata
from rl_assets.graph.dataset import GraphDataset, refusals
from rl_assets.graph.display import PREVIEW_ROWS, table
from rl_assets.graph.unchanged import step

DESCRIPTION = """\
The reward inputs with a `score` each, from `reward.custom_reward_function` or, without one, from the
built-in scorer of the row's `data_source`. A response whose scoring raised, took longer than
`reward.compute_score_timeout` or ended its process has no score and says why in `error`. What a scorer
returns beside the score (`acc`, `pred`, …) is a column of its own. `near_misses` counts the responses that
the built-in scorer calls wrong, as verl's does, and a kinder reading calls right (`lenient_acc`), such as
`Answer: 34.` or an answer without its box. `rl-assets trace UID` shows a prompt, its responses and their
scores."""

_PREVIEW = ["uid", "sample_index", "data_source", "score", "error", "solution_str", "ground_truth"]


def build_reward_scores(dataset: GraphDataset) -> dg.AssetsDefinition:
    """The asset `<dataset>/reward_scores`."""

    @dg.asset(
        **dataset.describe(
            "reward_scores",
            DESCRIPTION,
            "python",
            "parquet",
            reads=dataset.spec.reward.model_dump(include={"compute_score_timeout", "pass_score"}),
        ),
        ins={"reward_inputs": dg.AssetIn(key=dataset.key("reward_inputs"))},
        deps=dataset.depends("reward_function"),
        partitions_def=dataset.partitions,
    )
    @step(dataset)
    def reward_scores(
        dataset: GraphDataset, context: dg.AssetExecutionContext, reward_inputs: Table
    ) -> Iterator[dg.MaterializeResult[Table]]:
        from rl_assets.rewards.groups import SourceSummary, near_misses, preview_advantages, summarise
        from rl_assets.rewards.scoring import score_table

        with staging(dataset.storage) as folder, refusals():
            scores = score_table(reward_inputs, dataset.score_pool, folder=folder, log=context.log.info)
            by_source = summarise(scores, dataset.spec.reward.pass_score)
            scored = sum(line.scored for line in by_source)
            missed = near_misses(scores)
            yield dg.MaterializeResult(
                value=scores,
                data_version=dg.DataVersion(scores.digest),
                metadata={
                    "dagster/row_count": scores.num_rows,
                    **column_metadata(dataset, "reward_scores", scores.schema),
                    "scored": scored,
                    "without_score": scores.num_rows - scored,
                    **({} if missed is None else {"near_misses": missed}),
                    "by_source": table((line._asdict() for line in by_source), SourceSummary._fields),
                    "advantages": table(
                        preview_advantages(scores, PREVIEW_ROWS),
                        ["uid", "scores", "mean", "std", "advantages"],
                    ),
                    "preview": dataset.preview(scores.head(PREVIEW_ROWS, _PREVIEW), _PREVIEW),
                },
            )

    return reward_scores
