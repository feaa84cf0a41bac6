"""What a user may choose about the contract."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from rl_assets.base.modalities import MEDIA_COLUMNS, MODALITIES
from rl_assets.contract.rules.code import Severity
from rl_assets.contract.rules.codes import CODES
from rl_assets.contract.rules.scorers import has_scorer
from rl_assets.errors import InputError
from rl_assets.media.files import MediaRules

AGENT_NAMES = frozenset({"single_turn_agent", "tool_agent"})

# Names that verl's dataset, trainer, agent loops or reward managers give to fields of their own; a user's
# column of that name is overwritten or collides with them (`uid` has rules of its own).
_RESERVED = """
    raw_prompt dummy_tensor index tools_kwargs interaction_kwargs prompts responses input_ids attention_mask
    position_ids response_mask loss_mask rm_scores token_level_scores token_level_rewards advantages returns
    values old_log_probs ref_log_prob rollout_log_probs routed_experts multi_modal_inputs multi_modal_data
    __num_turns__ num_turns turn_scores tool_rewards extra_fields extras min_global_steps max_global_steps
    priority session_id global_steps validate __do_sample__ __rollout_n__ tool_extra_fields prompt_len
    response_len request_id acc score pred lenient_acc
"""
RESERVED_COLUMNS = frozenset(_RESERVED.split())
# Names that this project gives to what it carries beside a row through shards and rollouts.
CARRIED_COLUMNS = frozenset(
    {
        "split",
        "source_file",
        "source_row",
        "prompt_ids",
        "prompt_length",
        "sample_index",
        "finish_reason",
        "response_length",
    }
)
RESERVED_PREFIX = "user_"

# How rendered prompts begin: ChatML, gpt-oss, Llama 3 and 4, Granite, Command, Phi, GLM and Kimi, DeepSeek,
# Llama 2 and Mistral, Gemma.
RENDERED = re.compile(
    r"\s*(?:<\|(?:im_start|start)\|>(?:system|user|developer)"
    r"|<\|(?:begin_of_text|start_header_id|header_start|start_of_role|START_OF_TURN_TOKEN)\|>"
    r"|<\|(?:im_)?(?:system|user)\|>|<｜(?:begin▁of▁sentence|User)｜>"
    r"|(?:<s>\s*)?\[(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS)\]|(?:<bos>)?<start_of_turn>|\[gMASK\])"
)
# Letters, some of which are in every text that it matches.
_RENDERED_STARTS = {"<|", "<s", "[I", "[SYS", "[AVA", "<b", "<｜", "[g"}


@dataclass(frozen=True, kw_only=True)
class ContractOptions(MediaRules):
    """How raw rows are read, judged and repaired. The defaults are the strict ones.

    Attributes:
        prompt_key, reward_fn_key: columns that hold the prompt and the data source.
        image_key, video_key, audio_key: media columns; an empty string switches the modality off.
        prompt_format: `messages` takes lists of messages, `text` takes plain text and makes it one user
            message.
        reserved_columns: `refuse` rejects a row with a column of a reserved name, `prefix` carries the
            column as `user_<name>`.
        known_data_sources: sources that the user's own scorer knows, besides verl's built-in table.
        custom_scorer: True says that a scorer of the user's own reads every row: no source is unknown, and
            only that scorer knows what a ground truth looks like.
        known_agent_names: agent loops of the user's own, besides verl's.
        severities: `error` or `warning` by code, for the codes that `CODES` says are adjustable.
        drop_nulls: repair keys with a null value in messages, parts, media items, tools and tools_kwargs.
        wrap_scalars: repair a single media value by putting it into a list, and bare bytes by putting them
            into an object.
        parse_json: repair a prompt, tools, reward_model and extra_info that are JSON text.
        has_processor: True applies the media rules in full to rows without media columns as well.
        special_tokens: control tokens of the policy's tokenizer that stand for media, refused in text in
            addition to those of well-known models.
        control_tokens: other control tokens of it, such as the end of a turn.
    """

    prompt_key: str = "prompt"
    reward_fn_key: str = "data_source"
    image_key: str = "images"
    video_key: str = "videos"
    audio_key: str = "audios"
    prompt_format: Literal["messages", "text"] = "messages"
    reserved_columns: Literal["refuse", "prefix"] = "refuse"
    known_data_sources: tuple[str, ...] = ()
    custom_scorer: bool = False
    known_agent_names: tuple[str, ...] = ()
    severities: Mapping[str, Severity] = field(default_factory=dict)
    drop_nulls: bool = True
    wrap_scalars: bool = False
    parse_json: bool = False
    has_processor: bool = False
    special_tokens: tuple[str, ...] = ()
    control_tokens: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for code, severity in self.severities.items():
            if code not in CODES:
                raise InputError(
                    field="severities",
                    found=f"the code {code!r}",
                    remedy="`rl-assets codes` lists the codes there are.",
                )
            if severity not in ("error", "warning"):
                raise InputError(
                    field=f"severities.{code}",
                    found=repr(severity),
                    expected="`error` or `warning`",
                    remedy="Correct the value.",
                )
            if not CODES[code].adjustable:
                raise InputError(
                    field=f"severities.{code}",
                    found=f"a severity for {code}, which is always an {CODES[code].severity}",
                    remedy="Leave the code out: rows like that cannot be used.",
                )

    @cached_property
    def severity(self) -> dict[str, Severity]:
        """The severity of every code under these options."""
        return {code: self.severities.get(code, rule.severity) for code, rule in CODES.items()}

    @cached_property
    def control_pattern(self) -> re.Pattern[str] | None:
        """Any of `control_tokens`, the longest first; None where there are none."""
        longest = sorted(self.control_tokens, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest))) if longest else None

    @cached_property
    def control_starts(self) -> tuple[str, ...]:
        """Pieces of JSON text, one of which is in every prompt that may hold one, or is rendered already."""
        starts = {json.dumps(token, ensure_ascii=False)[1:-1][:2] for token in self.control_tokens}
        return tuple(sorted(starts | _RENDERED_STARTS))

    @cached_property
    def media_keys(self) -> dict[str, str]:
        """Column of each modality that is switched on: `image`, `video`, `audio` in this order."""
        keys = zip(MODALITIES, (self.image_key, self.video_key, self.audio_key), strict=True)
        return {modality: key for modality, key in keys if key}

    @cached_property
    def media_columns(self) -> frozenset[str]:
        """Columns of the modalities that are switched on."""
        return frozenset(self.media_keys.values())

    @cached_property
    def fields(self) -> frozenset[str]:
        """Columns that have a place of their own in the contract's schema."""
        own = {self.prompt_key, self.reward_fn_key, "ability", "reward_model", "extra_info", "uid"}
        return frozenset(own | self.media_columns)

    @cached_property
    def reserved(self) -> frozenset[str]:
        """Column names that a user's own column may not have; verl's names for renamed columns are among
        them, since an accepted row comes out under verl's names."""
        names = {"prompt", "data_source", *MEDIA_COLUMNS}
        return (RESERVED_COLUMNS | CARRIED_COLUMNS | names) - self.fields

    def knows_source(self, source: str) -> bool:
        """Whether a scorer is known for `data_source`."""
        return self.custom_scorer or has_scorer(source) or source in self.known_data_sources

    def knows_agent(self, name: str) -> bool:
        """Whether an agent loop of this name is known."""
        return name in AGENT_NAMES or name in self.known_agent_names
