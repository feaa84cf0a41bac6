"""`DataToRollout`: one YAML becomes one dataset's asset graph, checks, job and schedule."""

from typing import Self

import dagster as dg
from dagster.components.core.decl import YamlDecl
from pydantic import BaseModel

from rl_assets.graph.assets import build_assets
from rl_assets.graph.automation import automate
from rl_assets.graph.checks import build_checks
from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.io import store_resources
from rl_assets.graph.scaffolder import DataToRolloutScaffolder
from rl_assets.spec.dataset import DataToRolloutSpec
from rl_assets.spec.yaml_file import read_spec


@dg.scaffold_with(DataToRolloutScaffolder)
class DataToRollout(dg.Component):
    """Raw prompt files to rollouts, scores and a training set, as one checked asset graph per dataset.

    Makes the assets `raw_files`, `field_contract` and `rejected_rows`, `length_filtered`, `overlong_rows`
    and `unrenderable_rows`, `proto_shards`, `rollouts`, `reward_inputs`, `reward_scores`,
    `prompt_difficulty`, `verl_dataset` and `build_report` under the dataset's name, upstream of them what
    they read beside the raw files (`policy`, `tokenizer`, `tool_schemas`, `reward_function`), their asset
    checks, the job `<dataset>_rebuild`, a schedule for it, and a sensor that watches the raw files.
    """

    def __init__(self, spec: DataToRolloutSpec) -> None:
        self.spec = spec

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """The model against which `dg check yaml` holds the attributes."""
        return DataToRolloutSpec

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Make the component of a YAML's attributes, with `{{ env('X') }}` evaluated and nothing else.

        Raises:
            InputError: the YAML is wrong; the message has file, line and field.
        """
        assert isinstance(context.component_decl, YamlDecl)
        return cls.of(context.component_decl)

    @classmethod
    def of(cls, decl: YamlDecl) -> Self:
        """The component of one document of a YAML file; for errors see `load`."""
        tree = decl.source_tree
        assert tree is not None
        return cls(read_spec(tree.value, tree.source_position_tree, decl.context.project_root))

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The dataset's definitions."""
        dataset = GraphDataset(self.spec, context.project_root)
        job = dg.define_asset_job(
            f"{dataset.name}_rebuild",
            selection=dg.AssetSelection.groups(dataset.name),
            description=f"Rebuilds every asset of {dataset.name} in order and evaluates its checks.",
        )
        defs = dg.Definitions(
            assets=build_assets(dataset),
            asset_checks=build_checks(dataset),
            resources=store_resources(context.project_root),
        )
        return automate(dataset, job, defs)
