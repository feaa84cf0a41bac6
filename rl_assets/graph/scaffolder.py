"""What `dg scaffold defs rl_assets.DataToRollout NAME` writes."""

import dagster as dg
from pydantic import BaseModel

from rl_assets.dataset.scaffold import DEFAULT_POLICY, Draft, Guess, write_new, yaml_text
from rl_assets.errors import InputError


class DataToRolloutParams(BaseModel):
    """Flags of `dg scaffold defs rl_assets.DataToRollout`."""

    train_files: str | None = None
    """Raw files: a path, glob or folder, relative to the project's top folder."""

    val_files: str | None = None
    """Raw files for validation."""

    policy: str | None = None
    """The checkpoint: a folder or a hub id."""


class DataToRolloutScaffolder(dg.Scaffolder[DataToRolloutParams]):
    """Writes a commented defs.yaml; what no flag says has a value to be replaced."""

    @classmethod
    def get_scaffold_params(cls) -> type[DataToRolloutParams]:
        """The flags."""
        return DataToRolloutParams

    def scaffold(self, request: dg.ScaffoldRequest[DataToRolloutParams]) -> None:
        """Write the file.

        Raises:
            InputError: Python was asked for, or the file is there already.
        """
        if request.scaffold_format != "yaml":
            raise InputError(
                field="--format",
                found=request.scaffold_format,
                expected="yaml",
                remedy="A dataset is a YAML file; leave --format out.",
            )
        name, given = request.target_path.name, request.params
        draft = Draft(
            name,
            [
                Guess("data.train_files", given.train_files or f"data/{name}/*.jsonl", "by the name"),
                Guess("data.val_files", given.val_files, "as given"),
                Guess("policy.path", given.policy or DEFAULT_POLICY, "a small one from the hub"),
            ],
        )
        write_new(request.target_path / "defs.yaml", yaml_text(draft))
