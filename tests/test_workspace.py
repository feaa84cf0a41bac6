"""The doors of the project: they open on the same definitions."""

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def test_workspace_yaml_and_tool_dg_name_the_same_code_location() -> None:
    (loaded,) = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["dg"]["project"]
    assert loaded["python_module"] == {
        "module_name": f"{project['root_module']}.definitions",
        "location_name": project["code_location_name"],
    }


def test_plain_dg_check_yaml_reads_both_sample_datasets() -> None:
    """dg 1.13 keeps the last file of each type name, so the samples name their type in two ways."""
    samples = [ROOT / f"rl_assets/defs/{name}/defs.yaml" for name in ("gsm_symbolic", "needs_care")]
    assert len({yaml.safe_load(path.read_text())["type"] for path in samples}) == 2
