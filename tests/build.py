"""Builders: small real projects, and runs of their graph."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from rl_assets.graph.assets import build_assets
from rl_assets.graph.checks import build_checks
from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.io import store_resources
from rl_assets.spec.dataset import DataToRolloutSpec

POLICY = Path(__file__).parent.parent / "data/policies/SmolLM2-135M-Instruct"


def problem(number: int, **changes: Any) -> dict[str, Any]:
    """A row in the schema of verl's gsm8k; `changes` replace or, where None, remove columns."""
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [
            {"role": "user", "content": f"What is {number} + {number}? End with #### and the number."}
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * number)},
        "extra_info": {"split": "train", "index": number},
        **changes,
    }
    return {key: value for key, value in row.items() if value is not None}


LONG = problem(90, prompt=[{"role": "user", "content": "word " * 200}])
IN_PARTS = problem(91, prompt=[{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}])
BROKEN = problem(92, reward_model={"style": "rule"})
TRAIN = [*(problem(number) for number in range(5)), LONG, IN_PARTS, BROKEN]
"""Five good rows, an overlong one, one that ChatML cannot render, and one without a ground truth."""
VAL = [problem(number, extra_info={"split": "test", "index": number}) for number in range(50, 53)]


def write_jsonl(path: Path, rows: Sequence[Any]) -> None:
    """One line per row; a row that is text is written as it stands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))


def make_dataset(
    root: Path,
    train: Sequence[Any] = (),
    val: Sequence[Any] = (),
    *,
    data: dict[str, Any] | None = None,
    rollout: dict[str, Any] | None = None,
    policy: Path = POLICY,
    **attributes: Any,
) -> GraphDataset:
    """A dataset `toy` in the project folder `root`, with its raw rows written to jsonl files."""
    block: dict[str, Any] = {"max_prompt_length": 96, "max_response_length": 8, **(data or {})}
    for split, rows in (("train", train), ("val", val)):
        if rows:
            write_jsonl(root / f"data/toy/{split}.jsonl", rows)
            block.setdefault(f"{split}_files", f"data/toy/{split}.jsonl")
    spec = DataToRolloutSpec.model_validate(
        {
            "dataset": "toy",
            "data": block,
            "policy": {"path": str(policy)},
            "rollout": {"n": 2, **(rollout or {})},
            **attributes,
        }
    )
    return GraphDataset(spec, root)


def definitions(dataset: GraphDataset) -> dg.Definitions:
    """The dataset's assets and checks on its own store."""
    return dg.Definitions(
        assets=build_assets(dataset),
        asset_checks=build_checks(dataset),
        resources=store_resources(dataset.root),
        executor=dg.in_process_executor,
    )


def materialize(
    dataset: GraphDataset, *assets: str, instance: dg.DagsterInstance | None = None
) -> dg.ExecuteInProcessResult:
    """Materialise the named assets (all, where none is named) with their checks, for real."""
    job = definitions(dataset).resolve_implicit_global_asset_job_def()
    return job.execute_in_process(
        instance=instance,
        asset_selection=[dataset.key(name) for name in assets] or None,
        raise_on_error=False,
    )


def evaluations(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    """The checks that were evaluated, by `<asset>.<check>`."""
    return {
        f"{check.asset_key.path[-1]}.{check.check_name}": check
        for check in result.get_asset_check_evaluations()
    }


def failed(result: dg.ExecuteInProcessResult) -> set[str]:
    """The checks that failed, as `<asset>.<check>`."""
    return {name for name, check in evaluations(result).items() if not check.passed}


def materialized(result: dg.ExecuteInProcessResult) -> list[str]:
    """Names of the assets that were materialised, in order."""
    return [
        event.asset_key.path[-1] for event in result.get_asset_materialization_events() if event.asset_key
    ]


def versions(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """Data version of every asset that was materialised."""
    return {
        event.asset_key.path[-1]: event.step_materialization_data.materialization.tags["dagster/data_version"]
        for event in result.get_asset_materialization_events()
        if event.asset_key
    }


def failure(result: dg.ExecuteInProcessResult) -> str:
    """The message of the step that failed."""
    (event,) = [event for event in result.all_events if event.is_step_failure]
    data = event.step_failure_data
    metadata = data.user_failure_data
    return (metadata.description if metadata else None) or str(data.error)
