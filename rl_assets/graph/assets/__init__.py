"""The Dagster side of the graph: one file per asset, thin over the inner packages."""

import dagster as dg

from rl_assets.graph.assets.build_report import build_build_report
from rl_assets.graph.assets.field_contract import build_field_contract
from rl_assets.graph.assets.length_filtered import build_length_filtered
from rl_assets.graph.assets.prompt_difficulty import build_prompt_difficulty
from rl_assets.graph.assets.proto_shards import build_proto_shards
from rl_assets.graph.assets.raw_files import build_raw_files
from rl_assets.graph.assets.reward_inputs import build_reward_inputs
from rl_assets.graph.assets.reward_scores import build_reward_scores
from rl_assets.graph.assets.rollouts import build_rollouts
from rl_assets.graph.assets.sources import build_sources
from rl_assets.graph.assets.verl_dataset import build_verl_dataset
from rl_assets.graph.dataset import GraphDataset


def build_assets(dataset: GraphDataset) -> list[dg.AssetsDefinition]:
    """Every asset of a dataset, in the order in which data walks through them."""
    return [
        build_sources(dataset),
        build_raw_files(dataset),
        build_field_contract(dataset),
        build_length_filtered(dataset),
        build_proto_shards(dataset),
        build_rollouts(dataset),
        build_reward_inputs(dataset),
        build_reward_scores(dataset),
        build_prompt_difficulty(dataset),
        build_verl_dataset(dataset),
        build_build_report(dataset),
    ]
