"""The Dagster side of the graph: one file per asset, thin over the inner packages."""

import dagster as dg

from rl_assets.assets.build_report import build_build_report
from rl_assets.assets.dataset import Dataset
from rl_assets.assets.field_contract import build_field_contract
from rl_assets.assets.length_filtered import build_length_filtered
from rl_assets.assets.prompt_difficulty import build_prompt_difficulty
from rl_assets.assets.proto_shards import build_proto_shards
from rl_assets.assets.raw_files import build_raw_files
from rl_assets.assets.reward_inputs import build_reward_inputs
from rl_assets.assets.reward_scores import build_reward_scores
from rl_assets.assets.rollouts import build_rollouts
from rl_assets.assets.sources import build_sources
from rl_assets.assets.verl_dataset import build_verl_dataset

ASSETS = (
    "raw_files",
    "rejected_rows",
    "field_contract",
    "unrenderable_rows",
    "overlong_rows",
    "length_filtered",
    "proto_shards",
    "rollouts",
    "reward_inputs",
    "reward_scores",
    "prompt_difficulty",
    "verl_dataset",
    "build_report",
)
"""What becomes of a dataset's raw files, in the order in which a run makes it. A step stores its rejects
before its result, so that they are there where a check on them stops the run."""


def build_assets(dataset: Dataset) -> list[dg.AssetsDefinition]:
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
