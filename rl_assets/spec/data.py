"""The block `data`: raw files, keys of a row, chat template, lengths; under the names of verl's block."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from rl_assets.spec.common import Paths, SpecModel
from rl_assets.spec.limits import Column, ColumnOrNone, Count, MaxSamples, PathText, Plain, Seed
from rl_assets.spec.verl_keys import schema_extra


class DataSpec(SpecModel):
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
