"""The block `contract`: which rows are accepted."""

from typing import Literal

from pydantic import Field

from rl_assets.spec.common import SpecModel
from rl_assets.spec.limits import Column, PathText


class ContractSpec(SpecModel):
    """What the field contract accepts, refuses and repairs. The defaults are the strict ones."""

    prompt_format: Literal["messages", "text"] = "messages"
    """`messages` takes lists of messages; `text` takes plain text and makes it one user message."""

    reserved_columns: Literal["refuse", "prefix"] = "refuse"
    """A column of a name that the trainer gives to a field of its own: `refuse` rejects the row, `prefix`
    carries the column as `user_<name>`."""

    known_data_sources: list[Column] = Field([])
    """Sources that are scored elsewhere (by a reward model, by a service): their rows are accepted, and their
    responses get no score here. With a `reward.custom_reward_function`, every source is known."""

    known_agent_names: list[Column] = Field([])
    """Agent loops of your own, besides verl's."""

    severities: dict[str, Literal["error", "warning"]] = Field({})
    """By reason code, reject the row or only warn; docs/reject-codes.md says which codes are adjustable."""

    drop_nulls: bool = True
    """Remove keys with a null value in messages, parts, media and tools, which parquet fills in."""

    wrap_scalars: bool = False
    """Put a single image, video or clip into a list."""

    parse_json: bool = False
    """Read a prompt, tools, a reward_model or an extra_info that are JSON text."""

    media_root: PathText | None = None
    """Folder that media paths are relative to and may not leave; null is the folder of the data file."""
