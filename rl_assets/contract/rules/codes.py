"""The one table of rules: every way in which a row is refused or remarked on, with what to do about it.

The contract, the render stage, `rl-assets codes` and `docs/reject-codes.md` all read it. Its order is the
order of gravity: of the errors of one row, the one that stands first here names the rejection.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from rl_assets.contract.rules.scorers import KNOWN_SOURCES, SOURCE_PREFIX

Stage = Literal["read", "contract", "render", "score"]
Severity = Literal["error", "warning"]


class Finding(NamedTuple):
    """One thing that a rule found in a row.

    Attributes:
        code: key of `CODES`.
        path: path of the value inside the row (``prompt[2].content``), or None for the row as a whole.
        message: what was found and what was expected, without quoting the prompt.
    """

    code: str
    path: str | None
    message: str


@dataclass(frozen=True)
class Code:
    """One rule.

    Attributes:
        code: stable name, `<theme>.<problem>`.
        meaning: one line: what is wrong.
        remedy: one line: what to do.
        stage: the stage that applies the rule.
        severity: an error rejects the row, a warning is counted and the row goes on.
        adjustable: whether a user may turn the error into a warning or the warning into an error.
    """

    code: str
    meaning: str
    remedy: str
    stage: Stage
    severity: Severity
    adjustable: bool = False


_on_reading = partial(Code, stage="read", severity="error")
_error = partial(Code, stage="contract", severity="error")
_on_rendering = partial(Code, stage="render", severity="error")
_on_scoring = partial(Code, stage="score", severity="warning")
_warning = partial(Code, stage="contract", severity="warning", adjustable=True)

_MAKE_IT_TEXT = 'Store it as text or a number (pandas: `df["x"] = df["x"].astype(str)`), or drop the column.'

_TABLE = (
    # Reading
    _on_reading(
        "file.corrupt",
        "The file cannot be read from this row on (a damaged row group or compressed stream).",
        "Write the file again from its source.",
    ),
    _on_reading(
        "file.malformed",
        "A json file stops being JSON at this row; what follows cannot be read.",
        "Mend the file at the position named, or write it as jsonl, where one bad line costs one row.",
    ),
    _on_reading(
        "file.malformed_line",
        "A line is not JSON.",
        "Write each row as one JSON object on one line; a torn last line means that the writer was killed.",
    ),
    _on_reading(
        "file.row_too_large",
        "A row is larger than the reader takes.",
        "Keep media in files beside the dataset and name their paths in the row.",
    ),
    _on_reading(
        "text.not_utf8",
        "Text is not UTF-8.",
        "Convert the file to UTF-8.",
    ),
    _on_reading(
        "row.not_an_object",
        "A row is not an object of columns.",
        'Write rows as objects: {"prompt": …, "data_source": …, "reward_model": …}.',
    ),
    _on_reading(
        "row.duplicate_key",
        "An object names the same key twice; readers keep one value and lose the other.",
        "Give each key once.",
    ),
    # Values
    _error(
        "text.lone_surrogate",
        "Text holds half of a UTF-16 surrogate pair, which no tokenizer can encode.",
        "The text was cut in the middle of a character: make it again from its source.",
    ),
    _error(
        "value.not_json",
        "A value is of a type that JSON cannot say (a timestamp, bytes, a decimal).",
        _MAKE_IT_TEXT,
    ),
    _error(
        "value.not_finite",
        "A number is NaN or infinite; it is unequal to itself and breaks later comparisons.",
        "Use null, or leave the field out.",
    ),
    _error(
        "value.too_deep",
        "A value is nested too deeply to be carried safely.",
        "Store the structure as JSON text.",
    ),
    # Columns
    _error(
        "row.reserved_column",
        "A column has a name that the trainer gives to a field of its own and would overwrite.",
        "Rename the column, move it into extra_info, or set `contract.reserved_columns: prefix`.",
    ),
    _error(
        "row.tools_invalid",
        "The row's own `tools` is not a list of function schemas.",
        'Give each tool as {"type": "function", "function": {"name": …, "parameters": {…}}}; for JSON text '
        "set `contract.parse_json: true`; leave the column out where there are none.",
    ),
    # Prompt
    _error(
        "prompt.missing",
        "The row has no prompt.",
        "Check `data.prompt_key`, and that the column is filled in every file; narrow the glob where a file, "
        "such as a download's metadata.jsonl, holds no rows.",
    ),
    _error(
        "prompt.not_a_list",
        "The prompt is not a list of messages.",
        'Write [{"role": "user", "content": "…"}]; for JSON text of it set `contract.parse_json: true`, '
        "for plain text `contract.prompt_format: text`.",
    ),
    _error(
        "prompt.not_text",
        "The prompt is not text although the dataset says `contract.prompt_format: text`.",
        "Write the prompt as text, or set `contract.prompt_format: messages`.",
    ),
    _error(
        "prompt.empty",
        "The prompt holds no message.",
        "Give at least one user message.",
    ),
    _error(
        "prompt.too_large",
        "The prompt has millions of characters, more than any policy reads and than can be tokenised.",
        "Shorten it, or look for the bytes that were written as text.",
    ),
    _error(
        "prompt.message_not_an_object",
        "A message is not an object.",
        'Write messages as {"role": …, "content": …}.',
    ),
    _error(
        "prompt.unknown_role",
        "A message has no role, or one that chat templates do not know.",
        "Use system, developer, user, assistant or tool (in ShareGPT data: rename from/value).",
    ),
    _error(
        "prompt.content_missing",
        "A message has no content and is not an assistant's tool call.",
        "Give the message text, or remove it.",
    ),
    _error(
        "prompt.content_type",
        "The content of a message is neither text nor a list of parts.",
        'Write text, or parts such as [{"type": "text", "text": "…"}].',
    ),
    _error(
        "prompt.content_blank",
        "A user message says nothing.",
        "Give the message text or media, or remove it.",
    ),
    _error(
        "prompt.part_not_an_object",
        "A part of a message's content is not an object.",
        'Write parts as {"type": "text", "text": "…"} or {"type": "image"}.',
    ),
    _error(
        "prompt.part_type",
        "A part has no type, or one that is neither text nor media.",
        "Use text, image, video or audio.",
    ),
    _error(
        "prompt.part_text",
        "A text part has no text.",
        'Write {"type": "text", "text": "…"}.',
    ),
    _error(
        "prompt.null_key",
        "A message or part holds a key with a null value; templates ask whether the key is there.",
        "Leave the key out, or set `contract.drop_nulls: true`.",
    ),
    _error(
        "prompt.tool_calls",
        "tool_calls is not a list of calls, each with a name and with arguments that are an object.",
        'Write [{"type": "function", "function": {"name": …, "arguments": {…}}}]; JSON text of the arguments '
        "is read.",
    ),
    _error(
        "prompt.already_rendered",
        "A message is a whole prompt in the form of a chat template: it would be a turn inside of a turn.",
        "Write its turns as messages; the policy's own template renders them.",
        adjustable=True,
    ),
    _error(
        "prompt.control_token",
        "The row says a control token of the policy, such as `<|im_end|>`, which is not read as text.",
        "Write the text without it, or take another policy; what only mentions the token may let it pass.",
        adjustable=True,
    ),
    _error(
        "prompt.last_role",
        "The last message is not one that the policy can answer.",
        "End the prompt with a user or tool message: an answer that was begun is not continued. A reference "
        "answer belongs into reward_model.",
    ),
    # Media
    _error(
        "media.not_a_list",
        "A media column holds a single value instead of a list; it would be read letter by letter.",
        "Put the value into a list, or set `contract.wrap_scalars: true`.",
    ),
    _error(
        "media.bad_item",
        "An item of a media column, or a media part of a message, is nothing that can be opened.",
        'Write a path, a data: URI, or {"bytes": …}.',
    ),
    _error(
        "media.remote",
        "A medium lies on a network host; nothing is fetched while a row is judged.",
        "Download the file, keep it beside the dataset, and name its path in the row.",
    ),
    _error(
        "media.outside_folder",
        "A media path leads out of the dataset's folder.",
        "Keep media, and what links lead to, below the data file's folder, or set `contract.media_root`.",
    ),
    _error(
        "media.file_missing",
        "A media file is not there.",
        "Check the path; it is relative to `contract.media_root`, by default the folder of the data file.",
    ),
    _error(
        "media.truncated",
        "An image ends before its last pixel, or an MP4 file before its last box.",
        "Copy or download the file again.",
    ),
    _error(
        "media.unreadable",
        "A medium is empty or cannot be decoded.",
        "Check that the file is of a kind that is read (PNG, JPEG, WebP, GIF, BMP, TIFF for images).",
    ),
    _error(
        "media.image_size",
        "An image is absurdly large, or so narrow that image processors refuse it.",
        "Scale or crop the image: at most 89,478,485 pixels, and no side more than 200 times the other.",
    ),
    _error(
        "media.orphan_placeholder",
        "The text holds a media placeholder, but the row has no such media: the policy would read `<image>`.",
        "Fill the media column; where tags in texts are text, such as HTML, set "
        "`contract.severities: {media.orphan_placeholder: warning}`, and they are carried as they are.",
        adjustable=True,
    ),
    _error(
        "media.orphan_media",
        "The row has media that no placeholder refers to.",
        "Put one placeholder (`<image>`, `<video>`, `<audio>`) into the text for every item.",
    ),
    _error(
        "media.count_mismatch",
        "Placeholders and media differ in number, or a media part has no medium.",
        "Give exactly one placeholder per item, in order.",
    ),
    _error(
        "media.near_miss",
        "The text holds something that looks like a placeholder but is not one (`<Image>`, `<image 1>`).",
        "Write `<image>`, `<video>` or `<audio>` exactly so.",
        adjustable=True,
    ),
    _error(
        "media.vision_token",
        "The text holds a token by which a model marks media, such as `<|image_pad|>`.",
        "Use placeholders; the processor puts the model's own tokens in.",
        adjustable=True,
    ),
    # Reward
    _error(
        "data_source.missing",
        "data_source is absent, empty or not text; no scorer can be chosen.",
        "Name the source on every row; check `data.reward_fn_key`.",
    ),
    _error(
        "data_source.unknown",
        "No built-in scorer knows this data_source, so its responses could not be scored.",
        "Correct the name if it is misspelled. If you score these rows with your own function, set "
        "`reward.custom_reward_function`. If they are scored outside this project, add the name to "
        "`contract.known_data_sources` (`rl-assets check FILES`: `--known-data-source`). Built-in scorers "
        f"know {', '.join(KNOWN_SOURCES)}, and every name that begins with {SOURCE_PREFIX}.",
        adjustable=True,
    ),
    _error(
        "reward_model.missing",
        "The row has no reward_model.",
        'Write {"style": "rule", "ground_truth": …}.',
    ),
    _error(
        "reward_model.not_an_object",
        "reward_model is not an object.",
        "Store the object itself; for JSON text set `contract.parse_json: true`.",
    ),
    _error(
        "reward_model.ground_truth_missing",
        "reward_model has no ground_truth.",
        "Give the right answer; null is accepted only with `style: model`.",
    ),
    _error(
        "reward_model.ground_truth_type",
        "The scorer of this data_source does not accept a ground truth of this type: it would score 0.",
        "Write the ground truth in the form that the scorer reads (see the message).",
    ),
    _error(
        "reward_model.ground_truth_empty",
        "The ground truth is empty text, or a missing value that was made text (`nan`, `None`): the scorer "
        "of this data_source finds it in no answer.",
        "Give the right answer, or take the row out.",
        adjustable=True,
    ),
    _error(
        "ability.not_text",
        "ability is not text.",
        "Write a label such as `math`, or leave the column out.",
    ),
    _error(
        "agent_name.not_text",
        "agent_name is not text.",
        "Write the registered name of an agent loop, or leave the column out.",
    ),
    _error(
        "extra_info.not_an_object",
        "extra_info is not an object.",
        "Store the object itself; for JSON text set `contract.parse_json: true`.",
    ),
    _error(
        "extra_info.index_type",
        "extra_info.index is neither a whole number nor text.",
        "Number the rows (pandas makes floats of whole numbers with gaps: `.astype('Int64')`), or leave the "
        "index out: it is then assigned.",
    ),
    _error(
        "extra_info.tools_kwargs_type",
        "tools_kwargs is not an object that holds one object per tool.",
        'Write {"<tool>": {"create_kwargs": {…}}}; leave out tools that the row does not use.',
    ),
    _error(
        "extra_info.field_type",
        "A field of extra_info that the trainer reads has the wrong type.",
        "need_tools_kwargs is true or false, tool_selection a list of names, interaction_kwargs an object.",
    ),
    _error(
        "uid.invalid",
        "A uid of the dataset's own is not usable: uids are text of 1 to 255 characters without `_`.",
        "Use text without `_`. Or rename the column, for example to `id`: its values are kept, and each row "
        "gets a uid made from its content.",
    ),
    _error(
        "uid.duplicate",
        "Several rows of the dataset have the same uid; their responses would be scored as one group.",
        "Give each row a uid of its own. Or rename the column, for example to `id`: its values are kept, and "
        "each row gets a uid made from its content.",
    ),
    # Render
    _on_rendering(
        "render.template_error",
        "The chat template refuses the prompt.",
        "Read the template's own message; often it forbids a system role or demands alternating roles.",
    ),
    _on_rendering(
        "render.empty_prompt",
        "The chat template makes no token of the prompt.",
        "Look at the row's messages and at the template: one of them is not for the other.",
    ),
    _on_rendering(
        "render.media_unsupported",
        "The row has media, and the policy has no processor for them.",
        "Choose a policy that reads this kind of media, or leave these rows out.",
    ),
    _on_rendering(
        "render.settings_invalid",
        "The row's own `chat_template_kwargs` are no object, or name what the chat template does not read.",
        "Correct the name, or leave it out; a prompt's end and its tools are no settings.",
    ),
    _on_rendering(
        "render.media_error",
        "A medium cannot be decoded, or the policy's processor refuses it.",
        "Read the message: mend the medium, or leave the row out.",
    ),
    _on_rendering(
        "render.media_lost",
        "The rendered prompt does not hold every medium of the row once.",
        "Check that the chat template reads parts of this kind in messages of this role.",
    ),
    _on_rendering(
        "render.text_lost",
        "A text of the prompt is not in the rendered prompt.",
        "Check the chat template: it drops or rewrites what a message says. Some take text alone as content, "
        "some a list of parts alone.",
        adjustable=True,
    ),
    _on_rendering(
        "render.tools_lost",
        "The name, the description or a parameter of a tool is not in the rendered prompt.",
        "Take a policy whose chat template writes tools, or set tools aside: `tools: []` in the row, no "
        "`data.tool_config_path`. To go on without: `contract.severities: {render.tools_lost: warning}`.",
        adjustable=True,
    ),
    _on_rendering(
        "render.tool_calls_lost",
        "The name or an argument of a tool call is not in the rendered prompt.",
        "Take a policy whose chat template writes tool calls, or leave these rows out. To go on without: "
        "`contract.severities: {render.tool_calls_lost: warning}`.",
        adjustable=True,
    ),
    _on_rendering(
        "prompt.overlong",
        "The rendered prompt is longer than allowed. The graph sets the row aside in `overlong_rows`.",
        "Shorten the prompt, or raise `data.max_prompt_length` (for the linter: `--max-prompt-length`).",
        severity="warning",
    ),
    _on_scoring(
        "data_source.never_scored",
        "No tried row of this data_source has a score: the run stops before it generates.",
        "Correct the reward function, or list the source in `contract.known_data_sources` where its "
        "responses are scored elsewhere.",
        severity="error",
    ),
    _on_rendering(
        "row.unread_by_trainer",
        "A trainer of the training files does not read a part of the row: the run stops before it generates.",
        "Write the rows in the way that the message names, take the form out of `curation.forms`, or set "
        "`checks.severities: {trainers_read_rows: warn}`.",
    ),
    _on_scoring(
        "reward_model.right_answer_fails",
        "The ground truth, written as a perfect answer, does not score the maximum (with a reward function "
        "of your own: no more than an empty response). No response can do better.",
        "Correct the ground truth, or the reward function.",
    ),
    _on_scoring(
        "reward_model.mixed_types",
        "The ground truth is of another type than that of most rows of its data_source.",
        "Store them all alike, or see that the reward function reads both.",
    ),
    # Warnings
    _warning(
        "reward_model.unreachable",
        "No response can equal this ground truth: the scorer of this data_source reads only digits, periods "
        "and a minus sign from a response, and compares text.",
        "Write the number in digits: no commas, currency signs, spaces, units or fractions.",
    ),
    _warning(
        "agent_name.unknown",
        "No built-in agent loop has this name.",
        "Name your own agent loops in `contract.known_agent_names`, or correct the name.",
    ),
    _warning(
        "extra_info.index_duplicate",
        "Another row of the split has the same extra_info.split and index; their traces are mixed up.",
        "Number the rows of a split without repeats, or leave the index out: it is then assigned.",
    ),
    _warning(
        "extra_info.tools_kwargs_missing",
        "The row says need_tools_kwargs, but has no tools_kwargs.",
        "Fill tools_kwargs, or remove need_tools_kwargs.",
    ),
    _warning(
        "prompt.system_not_first",
        "A system message stands after other messages; most templates refuse that.",
        "Put the system message first.",
    ),
    _warning(
        "prompt.tool_without_call",
        "A tool message answers no tool call of an assistant message before it.",
        "Keep the assistant's message with its tool_calls.",
    ),
    _warning(
        "prompt.mixed_content",
        "Some messages hold text and others lists of parts; some templates take only one form.",
        "Use one form throughout the row.",
    ),
    _warning(
        "media.unexpected_role",
        "A placeholder or media part stands in a message that is not the user's.",
        "Move the media to a user message; many templates drop them elsewhere.",
    ),
    _warning(
        "media.lookalike",
        "The text of a row without media columns holds something like a media placeholder (`<img>`).",
        "If media are meant, write the placeholder exactly and fill the column; otherwise nothing.",
    ),
    _warning(
        "media.quoted_placeholder",
        "A placeholder stands in quotes, in code or beside a closing tag: it may be prose.",
        "Check which of the tags in the text stand for media.",
    ),
    _warning(
        "media.image_mode",
        "An image is not RGB (transparent, palette or grey).",
        "Nothing: it is converted to RGB, and grey of more than 8 bits is scaled.",
    ),
    _warning(
        "row.duplicate",
        "Another row has the same data_source, prompt, media, tools, agent_name, chat_template_kwargs and "
        "ground truth.",
        "Remove the copies; the training set takes the first alone.",
    ),
    _warning(
        "row.conflicting_ground_truth",
        "Another row has the same prompt, media, tools, agent_name and chat_template_kwargs, and another "
        "ground truth: the same answer is rewarded once and not the other time.",
        "Find out which answer is right, and remove or correct the other row.",
    ),
    _warning(
        "row.shared_with_train",
        "The prompt of a validation row is also a training prompt.",
        "Remove it from one of the two splits.",
    ),
)

CODES: dict[str, Code] = {code.code: code for code in _TABLE}
RANK: dict[str, int] = {code: rank for rank, code in enumerate(CODES)}


def by_gravity(findings: list[Finding]) -> list[Finding]:
    """`findings` with the gravest first; equal codes keep their order."""
    return sorted(findings, key=lambda finding: RANK[finding.code])
