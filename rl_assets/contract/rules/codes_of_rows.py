"""Rules that refuse a row before it is rendered: a part of the table in `codes`."""

from functools import partial

from rl_assets.contract.rules.code import Code
from rl_assets.contract.rules.scorers import KNOWN_SOURCES, SOURCE_PREFIX

_on_reading = partial(Code, stage="read", severity="error")
_error = partial(Code, stage="contract", severity="error")

_MAKE_IT_TEXT = 'Store it as text or a number (pandas: `df["x"] = df["x"].astype(str)`), or drop the column.'

TABLE = (
    # Reading
    _on_reading(
        "file.corrupt",
        "The file cannot be read from this row on (a damaged row group or compressed stream).",
        "Write the file again from its source.",
    ),
    _on_reading(
        "file.malformed",
        "A json file stops being JSON at this row; what follows cannot be read.",
        "Repair the file at the position named, or write it as jsonl, where one bad line costs one row.",
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
        "A text of the row has a control token of the policy, such as `<|im_end|>`: the policy does not "
        "read it as text.",
        "Remove it from the text, or take another policy. Where texts only mention the token, make this code "
        "a warning.",
        adjustable=True,
    ),
    _error(
        "prompt.last_role",
        "The last message is not one that the policy can answer.",
        "End the prompt with a user or tool message: a started answer is not continued. A reference "
        "answer goes into reward_model.",
    ),
    # Media
    _error(
        "media.not_a_list",
        "A media column holds a single value instead of a list; it would be read letter by letter.",
        "Put the value into a list, or set `contract.wrap_scalars: true`.",
    ),
    _error(
        "media.bad_item",
        "An item of a media column, or a media part of a message, cannot be opened.",
        'Write a path, a data: URI, or {"bytes": …}.',
    ),
    _error(
        "media.remote",
        "A medium is on a network host; nothing is fetched while a row is checked.",
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
)
