"""What a `defs.yaml` may say: plain pydantic models, usable without Dagster.

Keys below `data` and `rollout` carry verl's names, so that a `data:` block of a verl configuration can be
pasted. A key of verl's that has no effect in verl is honoured here or refused by name.
"""

from datetime import date
from typing import Annotated, Literal
from zoneinfo import available_timezones

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rl_assets.credentials import REMEDY, find_credentials
from rl_assets.cron import never_runs
from rl_assets.limits import (
    Column,
    ColumnOrNone,
    Count,
    Hours,
    MaxSamples,
    Name,
    PathText,
    Plain,
    Responses,
    Score,
    Seconds,
    Seed,
    Share,
    Temperature,
    TopK,
    Workers,
)
from rl_assets.verl_keys import schema_extra

Paths = PathText | list[PathText]
# A partition's key is the name of a folder, and stands in paths.
PartitionKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.=-]*$", max_length=100)]
PARTITION = "{partition}"
# A test holds these names and the checks together; they stand here so that the schema of a YAML lists them.
CheckName = Literal[
    "ability_rules",
    "agent_name_rules",
    "data_source_rules",
    "every_response_scored",
    "extra_info_rules",
    "few_are_left_out",
    "few_are_truncated",
    "few_are_unrenderable",
    "file_rules",
    "fills_a_batch",
    "ground_truths_agree",
    "groups",
    "learning_signal",
    "loads_whole",
    "media_rules",
    "no_file_is_empty",
    "none_is_cut",
    "perfect_answers_score",
    "placeholder_media",
    "prompt_rules",
    "prompts_are_whole",
    "reward_fields_unchanged",
    "reward_model_rules",
    "row_rules",
    "rows_conserved",
    "scorer_known",
    "scorer_works",
    "shard_rules",
    "splits_apart",
    "tensor_rules",
    "text_rules",
    "trainers_read_rows",
    "uid_rules",
    "uids",
    "value_rules",
    "values_exact",
]


class _Spec(BaseModel):
    # A value may come from the environment and be secret, so an error names the field and not the input.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )


class DataSpec(_Spec):
    """verl's `data:` block: where the rows are, what their columns are called, how long a prompt may be."""

    model_config = ConfigDict(
        # Inside allOf, since an anyOf at the top hides the keys from the component's page and template.
        json_schema_extra={
            "allOf": [
                {"anyOf": [{"required": ["train_files"]}, {"required": ["val_files"]}]},
                *schema_extra("data")["allOf"],
            ]
        }
    )

    train_files: Paths = Field([])
    """Raw files that are rolled out in training mode: paths, globs or folders, relative to the project's
    top folder. parquet, json and jsonl."""

    val_files: Paths = Field([])
    """Raw files that are rolled out in validation mode (`rollout.val_kwargs`)."""

    follow_links: bool = False
    """True reads raw files to which a link leads out of the project (or out of a folder outside of it that is
    named here). False refuses them by name: what is there is read, and rejected rows are kept as they are."""

    train_max_samples: MaxSamples = -1
    """Take at most this many train prompts to the shards; -1 takes all. The choice is made after the
    length filter (verl makes it before) and by uid, so it is the same on every rebuild."""

    val_max_samples: MaxSamples = -1
    """The same for validation prompts."""

    prompt_key: Column = "prompt"
    """Column that holds the list of messages."""

    reward_fn_key: Column = "data_source"
    """Column that names the source of a row, by which the scorer is chosen."""

    max_prompt_length: Count = 512
    """Longest rendered prompt in tokens, chat template and tools included; a prompt of exactly this
    length is kept."""

    max_response_length: Count = 512
    """Longest response in tokens."""

    filter_overlong_prompts: bool = True
    """True sets overlong prompts aside in `overlong_rows`. False does with them what `truncation` says."""

    image_key: ColumnOrNone = "images"
    """Column that holds a row's images; an empty string means that there are none."""

    video_key: ColumnOrNone = "videos"
    """Column that holds a row's videos."""

    audio_key: ColumnOrNone = "audios"
    """Column that holds a row's audio clips."""

    apply_chat_template_kwargs: dict[str, Plain] = Field({})
    """Settings of the chat template, such as `enable_thinking: false`; one that the template does not read is
    refused. A row may have its own in a column `chat_template_kwargs`, or under that key in `extra_info`:
    they count more than these, and the column more than `extra_info`. (verl has none for a row.)"""

    tool_config_path: PathText | None = None
    """YAML file of tool schemas in verl's form; they are rendered into every prompt and counted. A row's own
    column `tools`, a list of such schemas, takes their place."""

    trust_remote_code: bool = False
    """Let the policy's repository run code of its own when its tokenizer or model is loaded."""

    train_batch_size: Count | None = None
    """The trainer's batch size. A check warns when fewer train prompts than this survive."""

    truncation: Literal["error", "left", "right", "middle"] = "error"
    """Where `filter_overlong_prompts` is false: `error` stops the run at an overlong prompt; `left`, `right`
    and `middle` take tokens away there, template tokens too (`left` takes the system prompt). A prompt with
    media is never cut but set aside."""

    tokenizer: None = None
    """Only null, as in verl, where it has no effect: the tokenizer is the policy's (`policy.path`)."""

    function_tool_path: None = None
    """Only null: tools are read as schemas (`tool_config_path`), no Python file is run for them."""

    return_raw_chat: Literal[True] = True
    """Only true, as in verl: `raw_prompt` is in every shard."""

    return_raw_input_ids: Literal[False] = False
    """Only false: the ids of the rendered prompt are in every shard as `prompt_ids`."""

    return_full_prompt: Literal[False] = False
    """Only false: it has no effect in verl."""

    return_multi_modal_inputs: Literal[True] = True
    """Only true, as in verl: it has no effect there."""

    custom_cls: dict[str, None] = Field({})
    """Only nulls: rows are read by the field contract, not by a dataset class of your own."""

    sampler: dict[str, None] = Field({})
    """Only nulls: the sampler is the trainer's."""

    datagen: dict[str, None] = Field({})
    """Only nulls: rows are read from files, none are made."""

    mm_processor_kwargs: dict[str, Plain] = Field({})
    """Arguments for every call of the policy's media processor, such as `fps: 2` or
    `size: {shortest_edge: 3136, longest_edge: 1003520}` (pixels); they hold for the length gate and for the
    rollouts. What is not said here, the processor's own files say. Where verl loads the policy's processor
    (Qwen-VL, GLM-V, Gemma 4, Llama 3.2 Vision), `max_pixels`, `fps` and the like may also stand beside one
    image or video of a row, for it alone."""

    gen_batch_size: Annotated[int, Field(ge=0, le=10**9)] | None = None
    """Belongs to the trainer's loader; no asset depends on it."""

    val_batch_size: Annotated[int, Field(ge=0, le=10**9)] | None = None
    """Belongs to the trainer's loader; no asset depends on it."""

    shuffle: bool = True
    """Belongs to the trainer's loader; shards are ordered by uid."""

    validation_shuffle: bool = False
    """Belongs to the trainer's loader; shards are ordered by uid."""

    seed: Seed | None = None
    """Belongs to the trainer's loader; the seed of the rollouts is `rollout.seed`."""

    dataloader_num_workers: Annotated[int, Field(ge=0, le=1024)] = 8
    """Belongs to the trainer's loader; no asset depends on it."""

    filter_overlong_prompts_workers: Annotated[int, Field(ge=0, le=10**9)] | None = None
    """No effect: the length gate sizes its own pool by the machine's cores."""

    image_patch_size: Annotated[int, Field(ge=0, le=10**9)] | None = None
    """null, or the side in pixels of the patches of the policy's image processor: of another number, verl's
    length filter would make other images than its rollouts. It is not looked at where verl loads no processor
    of the policy."""

    use_shm: bool = False
    """Belongs to the trainer's loader; no asset depends on it."""

    @model_validator(mode="after")
    def _has_files(self) -> "DataSpec":
        if not self.train_paths and not self.val_paths:
            raise ValueError("data.train_files and data.val_files are both empty: name at least one raw file")
        return self

    @property
    def train_paths(self) -> list[str]:
        """`train_files` as a list."""
        return [self.train_files] if isinstance(self.train_files, str) else list(self.train_files)

    @property
    def val_paths(self) -> list[str]:
        """`val_files` as a list."""
        return [self.val_files] if isinstance(self.val_files, str) else list(self.val_files)

    def max_samples(self, split: str) -> int | None:
        """The cap on prompts of `split` ("train" or "val"), or None where there is none."""
        cap = self.train_max_samples if split == "train" else self.val_max_samples
        return None if cap < 0 else cap


class ContractSpec(_Spec):
    """What the field contract takes, refuses and mends. The defaults are the strict ones."""

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
    """Mend keys with a null value in messages, parts, media and tools, which parquet fills in."""

    wrap_scalars: bool = False
    """Mend a single image, video or clip by putting it into a list."""

    parse_json: bool = False
    """Read a prompt, tools, a reward_model or an extra_info that are JSON text."""

    media_root: PathText | None = None
    """Folder that media paths are relative to and may not leave; null is the folder of the data file."""


class PolicySpec(_Spec):
    """The checkpoint that answers the prompts; its tokenizer and chat template render them."""

    model_config = ConfigDict(json_schema_extra=schema_extra("policy"))

    path: PathText
    """A local folder (relative to the project's top folder) or a hub id; verl's
    `actor_rollout_ref.model.path`."""

    device: Column = "auto"
    """`auto` is CUDA where there is one and the CPU otherwise; or `cpu`, `cuda`, `cuda:1`."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is bfloat16 on CUDA and float32 on the CPU; verl's `actor_rollout_ref.rollout.dtype`."""

    attn_implementation: Column = "auto"
    """An attention implementation of transformers; `auto` is its default, sdpa."""


class ValKwargs(_Spec):
    """verl's `val_kwargs`: how the prompts of `val_files` are answered."""

    model_config = ConfigDict(json_schema_extra=schema_extra("rollout.val_kwargs"))

    n: Responses = 1
    """Responses per prompt."""

    do_sample: bool = False
    """False, or a temperature of 0, is greedy."""

    temperature: Temperature = 0.0
    """Sampling temperature."""

    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; 1 is off."""

    top_k: TopK = -1
    """Sample among this many tokens; -1 is off."""


class RolloutSpec(_Spec):
    """verl's `actor_rollout_ref.rollout` block, for Hugging Face generate."""

    model_config = ConfigDict(json_schema_extra=schema_extra("rollout"))

    name: Literal["hf"] = "hf"
    """The engine."""

    n: Responses = 1
    """Responses per train prompt."""

    do_sample: bool = True
    """False, or a temperature of 0, is greedy."""

    temperature: Temperature = 1.0
    """Sampling temperature."""

    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; 1 is off."""

    top_k: TopK = -1
    """Sample among this many tokens; -1 is off."""

    stop: list[Column] = Field([])
    """A response ends with the token that completes one of these texts."""

    seed: Seed = 0
    """With the uid and the sample index it decides every sampled token, whatever the batch."""

    micro_batch_size: Count | None = None
    """Most sequences that are decoded at once; null lets the engine choose."""

    val_kwargs: ValKwargs = Field(default_factory=ValKwargs)
    """How validation prompts are answered."""


class ShardSpec(_Spec):
    """How rows are spread over shards: by uid modulo the count."""

    count: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Shards per split; null takes the smallest power of two that keeps every shard within the budget."""

    max_rows: Count = 8192
    """Most prompts in a shard, where `count` is null."""

    max_bytes: Annotated[int, Field(ge=1, le=2**40)] = 64 * 2**20
    """Largest shard in bytes, about, where `count` is null; media are kept apart and do not count."""


class CustomRewardFunctionSpec(_Spec):
    """verl's `custom_reward_function`: a scorer of the user's own, in place of the built-in ones."""

    path: PathText | None = None
    """Python file (relative to the project's top folder), or `pkg://` and a module's name; null takes the
    built-in scorers. The code is run, in processes of its own, as Python runs a file: helpers beside it can
    be imported, and a change of one makes the scores stale. What a call starts ends with its process."""

    name: Column = "compute_score"
    """The function there. It is called with `data_source`, `solution_str`, `ground_truth` and `extra_info`
    and returns a number, or a dict with `score`."""

    reward_kwargs: dict[str, Plain] = Field({})
    """Further keyword arguments of every call. Their texts, at any depth, are replaced by the argument's name
    wherever a result, an error or a printed line of the function holds them."""


class RewardSpec(_Spec):
    """verl's `reward:` block: how responses are scored."""

    model_config = ConfigDict(json_schema_extra=schema_extra("reward"))

    custom_reward_function: CustomRewardFunctionSpec = Field(default_factory=CustomRewardFunctionSpec)
    """A scorer of the user's own. Without one, the built-in scorers read the data_sources of verl's table,
    except those whose scorer runs the response as code."""

    compute_score_timeout: Seconds = 10.0
    """Seconds that one response may take; after that it has no score, and the others go on."""

    num_workers: Workers | None = None
    """Worker processes; null takes one per core, at most 8."""

    pass_score: Score = 0.5
    """A response passes when its score is at least this."""


class RejectRateSpec(_Spec):
    """When rejected rows stop the run."""

    max: Share = 0.0
    """Largest share of rejected rows that passes."""

    severity: Literal["error", "warn"] = "error"
    """`error` stops the run before the contract is replaced; `warn` shows the failed check and goes on."""


class ChecksSpec(_Spec):
    """Thresholds of the asset checks."""

    reject_rate: RejectRateSpec = Field(default_factory=RejectRateSpec)
    """Share of raw rows that the contract may refuse."""

    truncated_share: Share = 0.5
    """Largest share of responses cut at `data.max_response_length` that passes without a warning."""

    left_out_share: float = Field(0.5, ge=0, le=1)
    """Largest share of prompts left out of the training set, by `curation` and as copies, that passes without
    a warning."""

    severities: dict[CheckName, Literal["error", "warn"]] = Field({})
    """By the name of a check: `error` stops the run before the next asset, and the next asset refuses what
    the check does not pass; `warn` shows the failure and goes on. `reject_rate` has a severity of its own,
    and `few_are_unrenderable` takes that one unless it is named here."""


Cap = Annotated[int, Field(ge=0, le=10**9)]


class CurationSpec(_Spec):
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


class ScheduleSpec(_Spec):
    """When the dataset is rebuilt."""

    cron: str = Field("0 2 * * *", pattern=r"^\s*(\S+\s+){4}\S+\s*$")
    """Cron expression of five fields."""

    timezone: str = "UTC"
    """IANA name of the time zone in which `cron` is read."""

    enabled: bool = True
    """True runs the schedule as soon as a daemon serves the project; false waits to be switched on."""

    max_age_hours: Hours | None = None
    """Age at which `reward_inputs`, `reward_scores` and `verl_dataset` fail their freshness policy; null is
    one and a half times the longest time between two runs of `cron`, and no age where `enabled` is false."""

    @field_validator("cron")
    @classmethod
    def _runs(cls, value: str) -> str:
        if problem := never_runs(value):
            raise ValueError(problem)
        return value

    @field_validator("timezone")
    @classmethod
    def _is_timezone(cls, value: str) -> str:
        if value not in available_timezones():
            raise ValueError(f"{value!r} is not an IANA time zone, such as UTC or Europe/Berlin")
        return value


class SensorSpec(_Spec):
    """Whether raw files are watched between two runs of the schedule."""

    enabled: bool = False
    """True rebuilds the dataset when a raw file is new, changed or gone; false waits to be switched on."""

    minimum_interval_seconds: Annotated[int, Field(ge=1, le=86_400)] = 60
    """Seconds between two looks. A change is acted on when two looks in a row see the same files, so that
    no half-written file is read. A look reads sizes and times, and the bytes of what changed."""


class PartitionSpec(_Spec):
    """An axis along which the whole dataset is cut. Each part is a dataset of its own, with its own raw files
    or its own policy: in `data.train_files`, `data.val_files` and `policy.path`, `{partition}` stands for its
    key."""

    kind: Literal["date", "static", "checkpoint"]
    """`date`: one partition per day, its key like 2026-01-31; a day is built once it is over. `static`: the
    `values`. `checkpoint`: the `values` too, which `policy.path` must name."""

    start: date | None = None
    """First day, where `kind` is `date`. Days begin and end in `schedule.timezone`."""

    values: list[PartitionKey] = Field([])
    """Keys of the partitions, where `kind` is `static` or `checkpoint`."""

    @model_validator(mode="after")
    def _is_axis(self) -> "PartitionSpec":
        if (self.kind == "date") != (self.start is not None) or (self.kind == "date") == bool(self.values):
            raise ValueError("partition_by takes `start` where kind is date, and `values` otherwise")
        if twice := sorted({value for value in self.values if self.values.count(value) > 1}):
            raise ValueError(f"partition_by.values has {', '.join(twice)} more than once")
        return self


class DataToRolloutSpec(_Spec):
    """One dataset: its raw files, its policy, and how its prompts are rolled out."""

    model_config = ConfigDict(json_schema_extra=schema_extra(""))

    dataset: Name
    """Name of the dataset: the first part of its asset keys and the name of its asset group."""

    data: DataSpec
    """verl's `data:` block."""

    contract: ContractSpec = Field(default_factory=ContractSpec)
    """What the field contract takes, refuses and mends."""

    policy: PolicySpec
    """The checkpoint that answers the prompts."""

    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    """verl's `actor_rollout_ref.rollout` block."""

    reward: RewardSpec = Field(default_factory=RewardSpec)
    """verl's `reward:` block."""

    curation: CurationSpec = Field(default_factory=CurationSpec)
    """Which prompts the training set takes."""

    shards: ShardSpec = Field(default_factory=ShardSpec)
    """How rows are spread over shards."""

    checks: ChecksSpec = Field(default_factory=ChecksSpec)
    """What the asset checks let pass."""

    partition_by: PartitionSpec | None = None
    """An axis along which the whole dataset is cut, such as a date or a checkpoint; null has none."""

    schedule: ScheduleSpec = Field(default_factory=ScheduleSpec)
    """The nightly rebuild."""

    sensor: SensorSpec = Field(default_factory=SensorSpec)
    """The watch over raw files."""

    previews: bool = True
    """False hides the text of prompts, responses and answers in the UI; its event log is kept and shared."""

    owners: list[Column] = Field([])
    """Owners of the assets: e-mail addresses, or teams as `team:NAME`."""

    description: str | None = None
    """What the dataset is, for the people who see it in the UI."""

    @model_validator(mode="after")
    def _has_no_credentials(self) -> "DataToRolloutSpec":
        hidden = {"reward": {"custom_reward_function": {"reward_kwargs"}}}
        for place in find_credentials(self.model_dump(exclude=hidden)):
            raise ValueError(f"{place} has credentials in its address, and addresses are shown. {REMEDY}")
        return self

    @model_validator(mode="after")
    def _names_its_partition(self) -> "DataToRolloutSpec":
        in_policy = PARTITION in self.policy.path
        named = in_policy or any(PARTITION in path for path in [*self.data.train_paths, *self.data.val_paths])
        if self.partition_by is None:
            if named:
                raise ValueError(f"a path has {PARTITION}, and there is no partition_by to take it from")
        elif self.partition_by.kind == "checkpoint" and not in_policy:
            raise ValueError(f"partition_by is checkpoint, and policy.path has no {PARTITION}")
        elif not named:
            raise ValueError(
                f"partition_by needs {PARTITION} in data.train_files, data.val_files or policy.path: its "
                "partitions would all be the same"
            )
        return self

    def at(self, partition: str) -> "DataToRolloutSpec":
        """What the YAML says of one partition: its key in place of `{partition}`."""

        def fill(path: str) -> str:
            return path.replace(PARTITION, partition)

        data = {
            "train_files": [fill(path) for path in self.data.train_paths],
            "val_files": [fill(path) for path in self.data.val_paths],
        }
        return self.model_copy(
            update={
                "data": self.data.model_copy(update=data),
                "policy": self.policy.model_copy(update={"path": fill(self.policy.path)}),
            }
        )
