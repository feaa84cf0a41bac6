"""The block `curation`: which prompts are taken into the training set, and its forms."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from rl_assets.spec.common import Paths, SpecModel
from rl_assets.spec.limits import Column, Seed, Share

Cap = Annotated[int, Field(ge=0, le=10**9)]


class CurationSpec(SpecModel):
    """Which prompts `verl_dataset` takes. Validation keeps all but exact copies."""

    # A list, since Dagster's sample of the YAML cannot be made from the schema of a tuple.
    pass_rate: Annotated[list[Share], Field(min_length=2, max_length=2)] | None = None
    """Lowest and highest pass rate of a train prompt that is taken, both included: `[0.1, 0.9]` leaves out
    what the policy never or always solves, and what it was not asked. null takes all."""

    max_per_source: Cap | dict[Column, Cap] | None = None
    """Most train prompts of a `data_source`: one number for all, or by name; null has no limit."""

    seed: Seed = 0
    """With the uid it decides which prompts a limit takes."""

    near_duplicates: Annotated[float, Field(gt=0, le=1)] | None = None
    """Leave out a train prompt of which at least this share of five-word sequences is in another prompt,
    such as 0.8 (Jaccard similarity); null compares exact copies only."""

    contamination_files: Paths = Field([])
    """Benchmarks that no train prompt may quote: paths, globs or folders, as in `data.train_files`."""

    contamination_ngram: Annotated[int, Field(ge=1, le=1000)] = 13
    """Words in a row that make a quotation."""

    forms: list[Literal["trl", "openrlhf", "datasets"]] = Field([])
    """Further forms in which the rows are written: `trl` for TRL's GRPOTrainer, `openrlhf` for OpenRLHF
    (`--data.input_key prompt --data.label_key label --data.apply_chat_template`), `datasets` for
    `load_from_disk`. The check `trainers_read_rows` names what a row says and such a trainer does not read,
    such as tools."""

    media: Literal["bytes", "paths"] = "bytes"
    """How images, videos and audio clips are written: `bytes` in the files, which then open anywhere; or
    absolute `paths`, which leave the files small and open on machines that have the media at the same place.
    A video file and an audio clip can be written as a path only."""

    @field_validator("pass_rate")
    @classmethod
    def _is_band(cls, value: list[float] | None) -> list[float] | None:
        if value is not None and not 0 <= value[0] <= value[1] <= 1:
            raise ValueError(f"{list(value)} is not a band of pass rates, such as [0.1, 0.9]")
        return value
