"""A defs.yaml as it is written: its expressions, and what is wrong with it by file and line.

A YAML is data. Dagster renders its texts as Jinja templates, with which code can be run; here an expression
is parsed and only what is listed below is evaluated, so that nothing else can be reached by any spelling.
"""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jinja2 import TemplateSyntaxError, nodes
from jinja2.nativetypes import NativeEnvironment
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rl_assets.errors import InputError
from rl_assets.spec import verl_keys
from rl_assets.spec.dataset import DataToRolloutSpec

Key = Sequence[str | int]
_MARKS = ("{{", "{%", "{#")
_MAY = "{{ env('NAME') }}, {{ env('NAME', 'default') }}, {{ env.NAME }} or {{ context.project_root }}"
_FILE_KEYS = ("type", "attributes", "requirements", "post_processing")
_SHOWN = 60


class Positions(Protocol):
    """Where the values of a YAML document are, as Dagster's parser notes it."""

    def lookup_closest_and_path(self, key_path: Any, trace: Any) -> Any:
        """The position of the value at a path, or of the nearest one around it."""


def read_spec(document: Mapping[str, Any], positions: Positions, root: Path) -> DataToRolloutSpec:
    """The spec of one YAML document.

    Args:
        document: the whole document, with `type` and `attributes`.
        positions: where its values are.
        root: the project's top folder.

    Raises:
        InputError: a key or value is wrong, or an expression is more than a reference to the environment; the
            message has file, line and field of everything that is wrong.
    """
    found: list[InputError] = []
    place = _Place(positions, root)
    for key in document:
        if key not in _FILE_KEYS:
            remedy = f"Leave it out; there are {', '.join(_FILE_KEYS)}."
            found.append(place.error([key], "a key that a dataset's YAML does not have", None, remedy))
    values = {key: _resolved(value, [key], place, found) for key, value in document.items()}
    if not found:
        try:
            return DataToRolloutSpec.model_validate(values.get("attributes") or {})
        except ValidationError as error:
            found = list(_problems(error, document.get("attributes") or {}, place))
    first, *others = found
    if others:
        more = "\n".join(f"  {one}" for one in others)
        first.remedy += f"\n{more}"
        first = InputError(**{name: getattr(first, name) for name in _PARTS})
    raise first


_PARTS = ("file", "row", "field", "found", "expected", "remedy")


class _Place:
    """Names places of a document in errors."""

    def __init__(self, positions: Positions, root: Path) -> None:
        self._positions = positions
        self.root = root

    def error(self, path: Key, found: str, expected: str | None, remedy: str) -> InputError:
        at, _ = self._positions.lookup_closest_and_path(list(path), None)
        file = Path(at.filename)
        name = file.relative_to(self.root) if file.is_relative_to(self.root) else file
        shown = path[1:] if path and path[0] == "attributes" else path
        return InputError(
            file=f"{name}:{at.start.line}",
            field=".".join(map(str, shown)) or None,
            found=found,
            expected=expected,
            remedy=remedy,
        )


def _resolved(value: Any, path: list[str | int], place: _Place, found: list[InputError]) -> Any:
    """The value with its expressions evaluated; what is refused is added to `found`."""
    if isinstance(value, str):
        try:
            return _text(value, place.root)
        except InputError as error:
            found.append(place.error(path, error.found, error.expected, error.remedy))
    elif isinstance(value, dict):
        for key in value:
            if isinstance(key, str) and any(mark in key for mark in _MARKS):
                found.append(place.error(path, "an expression in a key", None, "Write the key itself."))
        return {key: _resolved(one, [*path, key], place, found) for key, one in value.items()}
    elif isinstance(value, list):
        return [_resolved(one, [*path, number], place, found) for number, one in enumerate(value)]
    return value


def _text(text: str, root: Path) -> Any:
    """A text of the YAML with its expressions evaluated.

    Raises:
        InputError: an expression is not one of those that a YAML may have, or a variable is not set.
    """
    if not any(mark in text for mark in _MARKS):
        return text
    if "{#" in text:  # a comment would be taken out of the text without a word
        raise _refused("a comment of a template")
    try:
        body = NativeEnvironment().parse(text).body
    except TemplateSyntaxError as error:
        raise _refused(f"an expression that does not parse ({error.message})") from None
    except RecursionError:
        raise _refused("an expression that is nested too deep") from None
    parts = [_evaluated(node, root) for output in body for node in _children(output)]
    return parts[0] if len(parts) == 1 else "".join(map(str, parts))


def _children(output: nodes.Node) -> list[nodes.Expr]:
    if not isinstance(output, nodes.Output):
        raise _refused("a statement of a template")
    return output.nodes


def _evaluated(node: nodes.Expr, root: Path) -> Any:
    match node:
        case nodes.TemplateData(data=text):
            return text
        case nodes.Call(
            node=nodes.Name(name="env"),
            args=[nodes.Const(value=str(name)), *default],
            kwargs=[],
            dyn_args=None,
            dyn_kwargs=None,
        ) if len(default) <= 1 and all(isinstance(one, nodes.Const) for one in default):
            return _variable(name, *(one.value for one in default if isinstance(one, nodes.Const)))
        case nodes.Getattr(node=nodes.Name(name="env"), attr=name) if not name.startswith("_"):
            return _variable(name)
        case nodes.Getattr(node=nodes.Name(name="context"), attr="project_root"):
            return str(root.resolve())
    raise _refused("an expression that a YAML may not have")


def _variable(name: str, *default: Any) -> Any:
    if name not in os.environ and not default:
        raise InputError(
            found=f"the environment variable {name}, which is not set",
            remedy=f"Set it, or give a default: {{{{ env('{name}', 'default') }}}}.",
        )
    return os.environ.get(name, *default)


def _refused(found: str) -> InputError:
    return InputError(found=found, expected=_MAY, remedy="A YAML is data: nothing in it is run.")


def _problems(error: ValidationError, raw: Mapping[str, Any], place: _Place) -> Iterator[InputError]:
    """Each mistake once, however many types a field may have."""
    seen = set()
    for one in error.errors(include_input=False, include_url=False):
        path = _in_document(one, raw)
        problem = _problem(one, path, raw, place)
        if (problem.file, problem.field) not in seen:
            seen.add((problem.file, problem.field))
            yield problem


def _in_document(error: ErrorDetails, raw: Any) -> list[str | int]:
    """The path of an error without what pydantic adds to it: which of a field's types was tried."""
    path: list[str | int] = []
    for part in error["loc"]:
        inside = isinstance(raw, dict) and part in raw
        if inside or (isinstance(raw, list) and isinstance(part, int) and part < len(raw)):
            raw = raw[part]
        elif error["type"] != "missing":
            break
        path.append(part)
    return path


def _problem(error: ErrorDetails, path: list[str | int], raw: Any, place: _Place) -> InputError:
    at = ["attributes", *path]
    name = ".".join(map(str, path))
    instead = verl_keys.answer(name)
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(path[-1]), _keys(path[:-1]), n=1)
        hint = f"Did you mean {close[0]}?" if close else "docs/configuration.md has every key."
        remedy = f"{instead[0].upper()}{instead[1:]}." if instead else hint
        return place.error(at, f"a key that {'verl has' if instead else 'is not known'}", None, remedy)
    remedy = f"{instead[0].upper()}{instead[1:]}." if instead else "docs/configuration.md has every key."
    if error["type"] == "missing":
        return place.error(at, "nothing", f"{path[-1]}, which is needed", remedy)
    if error["type"] == "value_error":
        return place.error(at, error["msg"].removeprefix("Value error, "), None, "Correct the YAML.")
    return place.error(at, _shown(path, raw), error["msg"].removeprefix("Input should be "), remedy)


def _shown(path: list[str | int], raw: Any) -> str:
    """The value as the YAML has it; what comes from the environment, or may be a secret, is not shown."""
    for part in path:
        raw = raw[part]
    if "reward_kwargs" in path or isinstance(raw, (dict, list)):
        return "a value that does not fit"
    text = repr(raw)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _keys(path: Key) -> list[str]:
    """The keys of the block at a path."""
    model: Any = DataToRolloutSpec
    for part in path:
        kind = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return []
        model = kind
    return list(model.model_fields)
