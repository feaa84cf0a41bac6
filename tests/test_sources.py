"""What is read beside the raw files, as assets: what they show, and what changes their data version."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_assets.graph.assets.sources import build_sources
from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.io import store_resources
from rl_assets.policy.fingerprint import policy_fingerprint
from rl_assets.rewards.function import RewardFunction
from tests.build import failure, make_dataset
from tests.small import save_small_policy

SCORE = "def compute_score(data_source, solution_str, ground_truth, extra_info, token=None):\n    return 1\n"
TOOLS = """
tools:
- class_name: anything
  tool_schema:
    type: function
    function: {name: add, description: Adds two numbers.}
"""


@pytest.fixture
def dataset(tmp_path: Path) -> GraphDataset:
    save_small_policy(tmp_path / "policy")
    (tmp_path / "score.py").write_text(SCORE)
    (tmp_path / "tools.yaml").write_text(TOOLS)
    return make_dataset(
        tmp_path,
        data={"train_files": "absent.jsonl", "tool_config_path": "tools.yaml"},
        policy=Path("policy"),
        reward={"custom_reward_function": {"path": "score.py", "reward_kwargs": {"token": "secret"}}},
        previews=False,
    )


def look(dataset: GraphDataset, *names: str) -> dg.ExecuteInProcessResult:
    """Materialise the sources, or those named, without anything else."""
    return dg.materialize(
        [build_sources(dataset)],
        selection=[dataset.key(name) for name in names] or None,
        resources=store_resources(dataset.root),
        raise_on_error=False,
    )


def shown(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    return {
        event.asset_key.path[-1]: {k: v.value for k, v in event.materialization.metadata.items()}
        for event in result.get_asset_materialization_events()
    }


def version(dataset: GraphDataset, name: str) -> str:
    (event,) = look(dataset, name).get_asset_materialization_events()
    return event.materialization.tags["dagster/data_version"]


def test_they_show_what_they_are(dataset: GraphDataset) -> None:
    found = shown(look(dataset))
    assert found["policy"]["architecture"] == "LlamaForCausalLM"
    # Embedding and head of 49,152 × 16, one layer of attention and MLP, and three norms.
    assert found["policy"]["parameters"] == 2 * 49152 * 16 + 4 * 16 * 16 + 3 * 16 * 16 + 3 * 16
    assert found["policy"]["config"]["hidden_size"] == 16
    template = (dataset.root / "policy/chat_template.jinja").read_text()
    assert template in found["tokenizer"]["chat_template"]
    (tool,) = found["tool_schemas"]["tools"].records
    assert tool.data == {"name": "add", "description": "Adds two numbers."}
    assert SCORE in found["reward_function"]["code"]
    assert "secret" not in str(found["reward_function"])
    for source in found.values():
        assert source["bytes"] > 0
        assert len(source["digest"]) == 32


def test_the_policys_data_version_is_the_fingerprint_that_rollouts_are_named_by(
    dataset: GraphDataset,
) -> None:
    assert version(dataset, "policy") == policy_fingerprint(dataset.root / "policy")


def test_one_can_be_looked_at_alone(dataset: GraphDataset) -> None:
    assert list(shown(look(dataset, "tokenizer"))) == ["tokenizer"]


def test_of_a_known_policy_they_import_neither_torch_nor_transformers(dataset: GraphDataset) -> None:
    assert look(dataset).success
    code = f"""
import sys
from pathlib import Path
from rl_assets.graph.dataset import GraphDataset
from rl_assets.spec.dataset import DataToRolloutSpec
from tests.test_sources import look
spec = DataToRolloutSpec.model_validate_json({dataset.spec.model_dump_json()!r})
assert look(GraphDataset(spec, Path({str(dataset.root)!r}))).success
print(sorted({{"torch", "transformers"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("name", "file"), [("tool_schemas", "tools.yaml"), ("policy", "policy")])
def test_one_that_is_missing_is_named(dataset: GraphDataset, name: str, file: str) -> None:
    (dataset.root / file).rename(dataset.root / "elsewhere")
    result = look(dataset, name)
    assert not result.success
    assert failure(result).startswith((file, str(dataset.root / file)))
    assert "found no such f" in failure(result)


@pytest.mark.parametrize(
    ("code", "field", "found"),
    [
        (None, "path", "no such file"),
        ("def score(**_): return 0", "name", "no function 'compute_score'"),
        ("def compute_score(solution_str, ground_truth): return 0", "name", "which cannot be called"),
        ("import os; os._exit(3)", "path", "code that ends its process"),
    ],
    ids=["no file", "another name", "other arguments", "dies"],
)
def test_a_reward_function_that_cannot_be_called_stops_here(
    dataset: GraphDataset, code: str | None, field: str, found: str
) -> None:
    (dataset.root / "score.py").unlink()
    if code is not None:
        (dataset.root / "score.py").write_text(code)
    result = look(dataset, "reward_function")
    assert not result.success
    place = f"{dataset.root / 'score.py'}: field `reward.custom_reward_function.{field}`: found "
    assert failure(result).startswith(place)
    assert found in failure(result)


def test_the_built_in_scorers_have_a_version_too(tmp_path: Path) -> None:
    save_small_policy(tmp_path / "policy")
    dataset = make_dataset(tmp_path, data={"train_files": "absent.jsonl"}, policy=Path("policy"))
    assert version(dataset, "reward_function") == RewardFunction().digest
    assert list(RewardFunction().files) == ["rl_assets.rewards.builtin", "rl_assets.contract.rules.scorers"]


def test_a_reward_function_of_a_module_changes_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_scores.py").write_text(SCORE)
    function = RewardFunction("pkg://my_scores")
    before = function.digest
    assert RewardFunction(str(tmp_path / "my_scores.py")).digest == before  # wherever it lies
    (tmp_path / "my_scores.py").write_text(SCORE.replace("1", "2"))
    assert function.digest != before
    assert RewardFunction("pkg://no_such_module").files == {}
