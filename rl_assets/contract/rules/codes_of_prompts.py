"""Rules on rendered prompts and on scoring, and what is only remarked on: a part of the table in `codes`."""

from functools import partial

from rl_assets.contract.rules.code import Code

_on_rendering = partial(Code, stage="render", severity="error")
_on_scoring = partial(Code, stage="score", severity="warning")
_warning = partial(Code, stage="contract", severity="warning", adjustable=True)

TABLE = (
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
        "Read the message: repair the medium, or leave the row out.",
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
        "A system message comes after other messages; most templates refuse that.",
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
        "A placeholder or media part is in a message that is not the user's.",
        "Move the media to a user message; many templates drop them elsewhere.",
    ),
    _warning(
        "media.lookalike",
        "The text of a row without media columns holds something like a media placeholder (`<img>`).",
        "If media are meant, write the placeholder exactly and fill the column; otherwise nothing.",
    ),
    _warning(
        "media.quoted_placeholder",
        "A placeholder is in quotes, in code or beside a closing tag: it may be plain text.",
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
