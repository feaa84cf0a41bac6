"""What `rl-assets trace` shows of a row: a model per stage of the graph."""

from datetime import datetime
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field


class Place(NamedTuple):
    """Which row it is. `uid` is None for a row that was refused before it had one."""

    uid: str | None
    source_file: str
    source_row: int
    split: str

    def __str__(self) -> str:
        return f"{self.source_file}:{self.source_row}" + (f" (uid {self.uid})" if self.uid else "")


class Made(BaseModel):
    """The run that made an asset as it is now; both None where no run history knows it."""

    run_id: str | None = None
    time: datetime | None = None


class Problem(BaseModel):
    """Why a stage refused the row: reason code, path of the field, message."""

    code: str
    path: str | None
    message: str


class Tools(BaseModel):
    """Names of the tools that the chat template is given, and where they come from."""

    names: list[str]
    source: str


class Contract(BaseModel):
    """The field contract's verdict; of an accepted row its warnings, its tools, and the reward fields as they
    are in the file."""

    verdict: Literal["accepted", "rejected"]
    problems: list[Problem] = Field(default_factory=list)
    row: str | None = None
    data_source: str | None = None
    ability: str | None = None
    ground_truth: Any = None
    extra_info: Any = None
    tools: Tools | None = None
    warnings: list[Problem] = Field(default_factory=list)


class Prompt(BaseModel):
    """The rendered prompt: its text with all control tokens, its length in tokens, and what it lacks."""

    verdict: Literal["fits", "overlong", "unrenderable"]
    tokens: int | None = None
    limit: int
    text: str | None = None
    problems: list[Problem] = Field(default_factory=list)
    warnings: list[Problem] = Field(default_factory=list)


class Shard(BaseModel):
    """Where the prompt is among the shards; `row` is None where `train_max_samples` left it out."""

    name: str
    path: str
    row: int | None
    rows: int


class Response(BaseModel):
    """A response; `score` is None before scoring, and where `error` says why there is none. `near_miss`: the
    scorer calls it wrong, and a kinder reading right."""

    sample_index: int
    finish_reason: str
    tokens: int
    text: str
    score: float | None = None
    error: str | None = None
    near_miss: bool = False


class Training(BaseModel):
    """Whether verl_dataset took the row: the file it is in, or the reason why it is in none."""

    taken: bool
    file: str | None = None
    reason: str | None = None
    detail: str | None = None


class Trace(BaseModel):
    """A row at every stage; a stage is None where the row did not come to it, or nothing was made yet.

    Attributes:
        made: per asset that was materialised, the run that made it.
        history: False where there is no run history to read runs from.
        notes: what a reader should know besides.
    """

    dataset: str
    partition: str | None = None
    uid: str | None
    source_file: str
    source_row: int
    split: str
    contract: Contract | None = None
    prompt: Prompt | None = None
    shard: Shard | None = None
    responses: list[Response] = Field(default_factory=list)
    difficulty: dict[str, Any] | None = None
    verl_dataset: Training | None = None
    made: dict[str, Made] = Field(default_factory=dict)
    history: bool
    notes: list[str] = Field(default_factory=list)
