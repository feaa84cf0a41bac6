"""The component in a project of another name, as `create-dagster` writes one, beside other assets."""

from pathlib import Path

import yaml

from rl_assets.base.tables import Table
from tests.build import problem, write_jsonl
from tests.project import run, write_frame

ROOT = Path(__file__).parent.parent

DEFINITIONS = """
from pathlib import Path
from dagster import Definitions, definitions, in_process_executor, load_from_defs_folder

@definitions
def defs():
    loaded = load_from_defs_folder(path_within_project=Path(__file__).parent)
    # The default executor starts a process per step, which takes minutes.
    return Definitions.merge(loaded, Definitions(executor=in_process_executor))
"""

OTHER_ASSET = """
import dagster as dg

@dg.asset
def of_another_kind() -> int:
    return 1

@dg.asset
def after_it(of_another_kind: int) -> int:
    return of_another_kind + 1
"""


def test_a_dataset_is_scaffolded_and_built_there_beside_other_assets(
    tmp_path: Path, small_policy: Path
) -> None:
    package = tmp_path / "src/other_package"
    write_frame(tmp_path, package, DEFINITIONS, ["other_package.components.*"])
    (package / "components").mkdir()
    (package / "components/__init__.py").touch()
    (package / "defs/other.py").write_text(OTHER_ASSET)
    write_jsonl(tmp_path / "data/sums/train.jsonl", [problem(number) for number in range(3)])

    made = run(
        tmp_path,
        *("dg", "scaffold", "defs", "rl_assets.DataToRollout", "sums"),
        *("--train-files", "data/sums/train.jsonl", "--policy", str(small_policy)),
    )
    assert made.returncode == 0, made.stdout
    file = package / "defs/sums/defs.yaml"
    written = yaml.safe_load(file.read_text())
    written["attributes"]["data"] |= {"max_prompt_length": 96, "max_response_length": 4}
    file.write_text(yaml.safe_dump(written))
    before = {path for path in (ROOT / "data").rglob("*") if "policies" not in path.parts}

    built = run(tmp_path, "dg", "launch", "--assets", "*")
    assert built.returncode == 0, built.stdout
    store = tmp_path / "data/storage/sums"
    assert Table(store / "reward_scores.parquet").num_rows == 3 * written["attributes"]["rollout"]["n"]
    for name in ("raw_files.json", "field_contract.parquet", "proto_shards.json", "verl_dataset.json"):
        assert (store / name).is_file(), name
    assert {path for path in (ROOT / "data").rglob("*") if "policies" not in path.parts} == before

    assert "after_it - STEP_SUCCESS" in built.stdout
