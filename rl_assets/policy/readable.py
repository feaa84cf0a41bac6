"""The files of a policy, each looked at by itself before a library loads them: an error names the file."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl_assets.errors import InputError, first_line

_TEXT = (".jinja", ".txt")


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file of settings.

    Raises:
        InputError: the file holds something else.
    """
    try:
        found = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"no JSON ({first_line(error)})", "a JSON object, in UTF-8") from None
    if not isinstance(found, dict):
        raise _damaged(file, f"a JSON {type(found).__name__}", "a JSON object, in UTF-8")
    return found


def require_readable(files: Iterable[Path]) -> None:
    """Refuse files of settings that are no JSON objects, texts that are no UTF-8, and files of weights whose
    header does not describe their bytes. Weights themselves are not read.

    Raises:
        InputError: a file is damaged.
    """
    for file in files:
        if file.suffix == ".json":
            read_object(file)
        elif file.suffix in _TEXT:
            try:
                file.read_text("utf-8")
            except ValueError as error:
                raise _damaged(file, f"no text ({first_line(error)})", "text in UTF-8") from None
        elif file.suffix == ".safetensors":
            _require_header(file)


def _require_header(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError, ValueError) as error:
        size = f"{file.stat().st_size:,} bytes"
        found = f"a file of weights that is cut short or damaged ({first_line(error)}; {size})"
        raise _damaged(file, found, "weights as safetensors writes them") from None


def _damaged(file: Path, found: str, expected: str) -> InputError:
    return InputError(
        file=file,
        found=found,
        expected=expected,
        remedy="Save the policy again; a download may have been cut short.",
    )
