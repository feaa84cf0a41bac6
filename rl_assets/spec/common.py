"""What all blocks of a defs.yaml share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rl_assets.spec.limits import PathText

Paths = PathText | list[PathText]
# A partition's key is the name of a folder, and stands in paths.
PartitionKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.=-]*$", max_length=100)]
PARTITION = "{partition}"


class SpecModel(BaseModel):
    # A value may come from the environment and be secret, so an error names the field and not the input.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )
