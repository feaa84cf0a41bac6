"""Tool schemas, from a file in verl's form or a row's own, as the chat template receives them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from rl_assets.base.jsontext import decode
from rl_assets.errors import InputError

_TOOLS = "tools"


def load_tool_schemas(path: Path) -> list[dict[str, Any]]:
    """The `tool_schema` of every entry under `tools:`, without keys that are null.

    The file is verl's `tool_config_path`: a mapping with a list `tools`, each entry an object with
    `tool_schema` (an OpenAI function schema). `class_name` and `config` are the trainer's and are not read.

    Raises:
        InputError: the file is missing, is not YAML, or an entry has no schema. verl only logs a warning
            in these cases and goes on to measure prompts without their tools.
    """
    setting = "data.tool_config_path"
    try:
        config = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise InputError(
            file=path, field=setting, found="no such file", remedy="Correct the path, or set it to null."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(
            file=path, field=setting, found=f"text that is not YAML ({error})", remedy="Correct the file."
        ) from error
    entries = config.get("tools") if isinstance(config, dict) else None
    if not isinstance(entries, list):
        raise InputError(
            file=path,
            field="tools",
            found=type(entries).__name__,
            expected="a list of tools",
            remedy="Write the tools as a list under the key `tools`.",
        )
    return [_schema(path, index, entry) for index, entry in enumerate(entries)]


def _schema(path: Path, index: int, entry: Any) -> dict[str, Any]:
    schema = entry.get("tool_schema") if isinstance(entry, dict) else None
    if not isinstance(schema, dict) or not isinstance(schema.get("function"), dict):
        raise InputError(
            file=path,
            field=f"tools[{index}].tool_schema",
            found=type(schema).__name__,
            expected="an object with `type` and `function`",
            remedy="Give the tool its function schema; schemas that a tool class builds in code are not run.",
        )
    return without_nulls(schema)


def row_tools(extra_columns: pa.Array) -> list[list[dict[str, Any]] | None] | None:
    """The function schemas that rows bring in a column `tools` of their own.

    Args:
        extra_columns: that column of the contract's rows, JSON text.

    Returns:
        Per row its schemas, an empty list where it says that it has no tools, None where it says nothing; or
        None where no row says anything.
    """
    candidates = pc.match_substring(extra_columns, f'"{_TOOLS}":').to_numpy(zero_copy_only=False).nonzero()[0]
    tools: list[list[dict[str, Any]] | None] = [None] * len(extra_columns)
    for index in candidates.tolist():
        tools[index] = decode(extra_columns[index].as_py()).get(_TOOLS)
    return tools if any(own is not None for own in tools) else None


def without_nulls(value: Any) -> Any:
    """`value` with every key whose value is null left out, at every depth."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
