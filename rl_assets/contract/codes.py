"""The one table of rules: every way in which a row is refused or remarked on, with what to do about it.

The contract, the render stage, `rl-assets codes` and `docs/reject-codes.md` all read it. Its order is the
order of gravity: of the errors of one row, the one that stands first here names the rejection.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Stage = Literal["read", "contract", "render"]
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
        stage: the stage that applies the rule.
        severity: an error rejects the row, a warning is counted and the row goes on.
        meaning: one line: what is wrong.
        remedy: one line: what to do.
        adjustable: whether a user may turn the error into a warning or the warning into an error.
    """

    code: str
    stage: Stage
    severity: Severity
    meaning: str
    remedy: str
    adjustable: bool = False


def _error(code: str, stage: Stage, meaning: str, remedy: str, *, adjustable: bool = False) -> Code:
    return Code(code, stage, "error", meaning, remedy, adjustable)


def _warning(code: str, meaning: str, remedy: str) -> Code:
    return Code(code, "contract", "warning", meaning, remedy, adjustable=True)


_MAKE_IT_TEXT = "Store it as text or a number, or leave the field out."
_USE_AN_ID = "Leave the uid out (one is made from the content), or give text of your own without `_`."

_TABLE = (
    # Reading
    _error(
        "file.corrupt",
        "read",
        "The file cannot be read from this row on (a damaged row group or compressed stream).",
        "Write the file again from its source.",
    ),
    _error(
        "file.malformed",
        "read",
        "A json file stops being JSON at this row; what follows cannot be read.",
        "Mend the file at the position named, or write it as jsonl, where one bad line costs one row.",
    ),
    _error(
        "file.malformed_line",
        "read",
        "A line is not JSON.",
        "Write each row as one JSON object on one line; a torn last line means that the writer was killed.",
    ),
    _error(
        "file.row_too_large",
        "read",
        "A row is larger than the reader takes.",
        "Keep media in files beside the dataset and name their paths in the row.",
    ),
    _error(
        "text.not_utf8",
        "read",
        "Text is not UTF-8.",
        "Convert the file to UTF-8.",
    ),
    _error(
        "row.not_an_object",
        "read",
        "A row is not an object of columns.",
        'Write rows as objects: {"prompt": …, "data_source": …, "reward_model": …}.',
    ),
    _error(
        "row.duplicate_key",
        "read",
        "An object names the same key twice; readers keep one value and lose the other.",
        "Give each key once.",
    ),
    # Values
    _error(
        "text.lone_surrogate",
        "contract",
        "Text holds half of a UTF-16 surrogate pair, which no tokenizer can encode.",
        "The text was cut in the middle of a character: make it again from its source.",
    ),
    _error(
        "value.not_json",
        "contract",
        "A value is of a type that JSON cannot say (a timestamp, bytes, a decimal).",
        _MAKE_IT_TEXT,
    ),
    _error(
        "value.not_finite",
        "contract",
        "A number is NaN or infinite; it is unequal to itself and breaks later comparisons.",
        "Use null, or leave the field out.",
    ),
    _error(
        "value.too_deep",
        "contract",
        "A value is nested too deeply to be carried safely.",
        "Store the structure as JSON text.",
    ),
    # Columns
    _error(
        "row.reserved_column",
        "contract",
        "A column has a name that the trainer gives to a field of its own and would overwrite.",
        "Rename the column, move it into extra_info, or set `contract.reserved_columns: prefix`.",
    ),
    # Prompt
    _error(
        "prompt.missing",
        "contract",
        "The row has no prompt.",
        "Check `data.prompt_key`, and that the column is filled in every file.",
    ),
    _error(
        "prompt.not_a_list",
        "contract",
        "The prompt is not a list of messages.",
        'Write [{"role": "user", "content": "…"}]; for plain text set `contract.prompt_format: text`.',
    ),
    _error(
        "prompt.not_text",
        "contract",
        "The prompt is not text although the dataset says `contract.prompt_format: text`.",
        "Write the prompt as text, or set `contract.prompt_format: messages`.",
    ),
    _error(
        "prompt.empty",
        "contract",
        "The prompt holds no message.",
        "Give at least one user message.",
    ),
    _error(
        "prompt.too_large",
        "contract",
        "The prompt has millions of characters, more than any policy reads and than can be tokenised.",
        "Shorten it, or look for the bytes that were written as text.",
    ),
    _error(
        "prompt.message_not_an_object",
        "contract",
        "A message is not an object.",
        'Write messages as {"role": …, "content": …}.',
    ),
    _error(
        "prompt.unknown_role",
        "contract",
        "A message has no role, or one that chat templates do not know.",
        "Use system, developer, user, assistant or tool (in ShareGPT data: rename from/value).",
    ),
    _error(
        "prompt.content_missing",
        "contract",
        "A message has no content and is not an assistant's tool call.",
        "Give the message text, or remove it.",
    ),
    _error(
        "prompt.content_type",
        "contract",
        "The content of a message is neither text nor a list of parts.",
        'Write text, or parts such as [{"type": "text", "text": "…"}].',
    ),
    _error(
        "prompt.content_blank",
        "contract",
        "A user message says nothing.",
        "Give the message text or media, or remove it.",
    ),
    _error(
        "prompt.part_not_an_object",
        "contract",
        "A part of a message's content is not an object.",
        'Write parts as {"type": "text", "text": "…"} or {"type": "image"}.',
    ),
    _error(
        "prompt.part_type",
        "contract",
        "A part has no type, or one that is neither text nor media.",
        "Use text, image, video or audio.",
    ),
    _error(
        "prompt.part_text",
        "contract",
        "A text part has no text.",
        'Write {"type": "text", "text": "…"}.',
    ),
    _error(
        "prompt.null_key",
        "contract",
        "A message or part holds a key with a null value; templates ask whether the key is there.",
        "Leave the key out, or set `drop_nulls: true`.",
    ),
    _error(
        "prompt.tool_calls",
        "contract",
        "tool_calls is not a list of objects.",
        'Write [{"type": "function", "function": {"name": …, "arguments": …}}].',
    ),
    _error(
        "prompt.last_role",
        "contract",
        "The last message is not one that the policy can answer.",
        "End the prompt with a user or tool message; a reference answer belongs into reward_model.",
    ),
    # Media
    _error(
        "media.not_a_list",
        "contract",
        "A media column holds a single value instead of a list; it would be read letter by letter.",
        "Put the value into a list, or set `wrap_scalars: true`.",
    ),
    _error(
        "media.bad_item",
        "contract",
        "An item of a media column is nothing that can be opened.",
        'Write a path, a data: URI, or {"bytes": …}.',
    ),
    _error(
        "media.remote",
        "contract",
        "A medium lies on a network host that is not allowed.",
        "Keep the file beside the dataset, or name the host in `allowed_hosts`.",
    ),
    _error(
        "media.outside_folder",
        "contract",
        "A media path leads out of the dataset's folder.",
        "Keep media below the folder of the data file, or set `media_root`; links out of it are refused.",
    ),
    _error(
        "media.file_missing",
        "contract",
        "A media file is not there.",
        "Check the path; it is relative to `media_root`, by default the folder of the data file.",
    ),
    _error(
        "media.truncated",
        "contract",
        "An image ends before its last pixel.",
        "Copy or download the image again.",
    ),
    _error(
        "media.unreadable",
        "contract",
        "A medium is empty or cannot be decoded.",
        "Check that the file is of a kind that is read (PNG, JPEG, WebP, GIF, BMP, TIFF for images).",
    ),
    _error(
        "media.image_size",
        "contract",
        "An image is absurdly large, or so narrow that image processors refuse it.",
        "Scale the image down, or raise `max_image_pixels`; the sides may differ at most 200-fold.",
    ),
    _error(
        "media.orphan_placeholder",
        "contract",
        "The text holds a media placeholder, but the row has no such media: the policy would read `<image>`.",
        "Fill the media column; where the text only speaks about the tag, write it differently.",
        adjustable=True,
    ),
    _error(
        "media.orphan_media",
        "contract",
        "The row has media that no placeholder refers to.",
        "Put one placeholder (`<image>`, `<video>`, `<audio>`) into the text for every item.",
    ),
    _error(
        "media.count_mismatch",
        "contract",
        "Placeholders and media differ in number.",
        "Give exactly one placeholder per item, in order.",
    ),
    _error(
        "media.near_miss",
        "contract",
        "The text holds something that looks like a placeholder but is not one (`<Image>`, `<image 1>`).",
        "Write `<image>`, `<video>` or `<audio>` exactly so.",
        adjustable=True,
    ),
    _error(
        "media.vision_token",
        "contract",
        "The text holds a token by which a model marks media, such as `<|image_pad|>`.",
        "Use placeholders; the processor puts the model's own tokens in.",
        adjustable=True,
    ),
    # Reward
    _error(
        "data_source.missing",
        "contract",
        "data_source is absent, empty or not text; no scorer can be chosen.",
        "Name the source on every row; check `reward_fn_key`.",
    ),
    _error(
        "data_source.unknown",
        "contract",
        "No built-in scorer knows this data_source, so its responses could not be scored.",
        "Correct the name, or list it in `contract.known_data_sources` of the YAML (for the linter: "
        "`--known-data-source`).",
        adjustable=True,
    ),
    _error(
        "reward_model.missing",
        "contract",
        "The row has no reward_model.",
        'Write {"style": "rule", "ground_truth": …}.',
    ),
    _error(
        "reward_model.not_an_object",
        "contract",
        "reward_model is not an object.",
        "Store the object itself; for JSON text set `parse_json: true`.",
    ),
    _error(
        "reward_model.ground_truth_missing",
        "contract",
        "reward_model has no ground_truth.",
        "Give the right answer; null is accepted only with `style: model`.",
    ),
    _error(
        "reward_model.ground_truth_type",
        "contract",
        "The scorer of this data_source does not accept a ground truth of this type: it would score 0.",
        "Write the ground truth in the form that the scorer reads (see the message).",
    ),
    _error(
        "ability.not_text",
        "contract",
        "ability is not text.",
        "Write a label such as `math`, or leave the column out.",
    ),
    _error(
        "agent_name.not_text",
        "contract",
        "agent_name is not text.",
        "Write the registered name of an agent loop, or leave the column out.",
    ),
    _error(
        "extra_info.not_an_object",
        "contract",
        "extra_info is not an object.",
        "Store the object itself; for JSON text set `parse_json: true`.",
    ),
    _error(
        "extra_info.index_type",
        "contract",
        "extra_info.index is neither a whole number nor text.",
        "Number the rows, or leave the index out: it is then assigned.",
    ),
    _error(
        "extra_info.tools_kwargs_type",
        "contract",
        "tools_kwargs is not an object that holds one object per tool.",
        'Write {"<tool>": {"create_kwargs": {…}}}; leave out tools that the row does not use.',
    ),
    _error(
        "extra_info.field_type",
        "contract",
        "A field of extra_info that the trainer reads has the wrong type.",
        "need_tools_kwargs is true or false, tool_selection a list of names, interaction_kwargs an object.",
    ),
    _error(
        "uid.invalid",
        "contract",
        "A uid of the dataset's own is not usable: uids are text of 1 to 255 characters without `_`.",
        _USE_AN_ID,
    ),
    _error(
        "uid.duplicate",
        "contract",
        "A uid of the dataset's own stands on more than one row; responses would be grouped together.",
        _USE_AN_ID,
    ),
    # Render
    _error(
        "render.template_error",
        "render",
        "The chat template refuses the prompt.",
        "Read the template's own message; often it forbids a system role or demands alternating roles.",
    ),
    _error(
        "render.empty_prompt",
        "render",
        "The chat template makes no token of the prompt.",
        "Look at the row's messages and at the template: one of them is not for the other.",
    ),
    _error(
        "render.tools_invalid",
        "render",
        "The row's own `tools` is not a list of function schemas.",
        "Give each tool as an object with `type` and `function`; leave the column out where there are none.",
    ),
    _error(
        "render.media_unsupported",
        "render",
        "The row has media, and the policy has no processor for them.",
        "Choose a policy that reads this kind of media, or leave these rows out.",
    ),
    _error(
        "render.media_error",
        "render",
        "A medium cannot be decoded, or the policy's processor refuses it.",
        "Read the message: mend the medium, or leave the row out.",
    ),
    _error(
        "render.media_lost",
        "render",
        "The rendered prompt does not hold every medium of the row once.",
        "Check that the chat template reads parts of this kind in messages of this role.",
    ),
    _error(
        "render.text_lost",
        "render",
        "A text of the prompt is not in the rendered prompt.",
        "Check the chat template: it drops or rewrites what a message says.",
    ),
    # Warnings
    _warning(
        "reward_model.unreachable",
        "No response can equal this ground truth: the scorer strips what it holds from every answer.",
        "Write the number without commas, currency signs and spaces.",
    ),
    _warning(
        "agent_name.unknown",
        "No built-in agent loop has this name.",
        "Name your own agent loops in `known_agent_names`, or correct the name.",
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
        "Nothing, if the processor converts it; otherwise store the image as RGB.",
    ),
    _warning(
        "row.duplicate",
        "Another row has the same data_source, prompt, media and ground truth.",
        "Remove the copies unless the prompt shall weigh more.",
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


def codes_page() -> str:
    """The whole table as a Markdown page."""
    lines = [
        "# Reject and warning codes",
        "",
        "An *error* rejects the row; a *warning* is counted and the row goes on. Where a code is marked as",
        "adjustable, `contract.severities` in the YAML may make the one the other. The order is that of",
        "gravity: of the errors of one row, the one that stands first here names the rejection.",
        "",
        "This page is made from `rl_assets/contract/codes.py` by `rl-assets codes --markdown`.",
    ]
    titles = {
        ("read", "error"): "Errors on reading",
        ("contract", "error"): "Errors in the field contract",
        ("render", "error"): "Errors on rendering",
        ("contract", "warning"): "Warnings",
    }
    for (stage, severity), title in titles.items():
        lines += ["", f"## {title}", "", "| code | what is wrong | what to do |", "|---|---|---|"]
        for code in CODES.values():
            if (code.stage, code.severity) == (stage, severity):
                mark = " (adjustable)" if code.adjustable and severity == "error" else ""
                lines.append(f"| `{code.code}`{mark} | {_cell(code.meaning)} | {_cell(code.remedy)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
