"""`rl-assets configuration`: every key of a defs.yaml explained."""

from collections.abc import Iterator, Mapping
from typing import Any

import typer
import yaml

from rl_assets.base import markdown

TOP = "DataToRolloutSpec"
_NAMES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
_NO_LIMIT = 10**9  # said once, at the top
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def configuration() -> None:
    """Print docs/configuration.md: every key that a YAML may have, with its type, default and meaning."""
    typer.echo(configuration_page(), nl=False)


def configuration_page() -> str:
    """The keys as a Markdown page, a table for each block."""
    from rl_assets.spec.dataset import DataToRolloutSpec

    schema = DataToRolloutSpec.model_json_schema()
    models = {**schema["$defs"], TOP: schema}
    parts = [
        "# The keys of a defs.yaml",
        "They stand below `attributes:` in `rl_assets/defs/<dataset>/defs.yaml`. Needed are `dataset`, "
        "`data` with `train_files` or `val_files`, and `policy` with `path`. A key that is not here is "
        "refused with its file and line. Numbers are finite; a whole number is at most 1,000,000,000 in size "
        "where no less is said.",
        "A YAML is data, and nothing in it is run. A text may refer to the environment with `{{ "
        "env('NAME') }}`, `{{ env('NAME', 'default') }}` or `{{ env.NAME }}`, and to the project's top "
        "folder with `{{ context.project_root }}`; any other expression, statement or comment of a "
        "template is refused with its file and line. The only code that a dataset runs is its reward "
        "function, and that of the policy's repository where `data.trust_remote_code` is true. Python "
        "files and components of other types below `defs/` are code.",
        "This page is made from `rl_assets/spec/` by `rl-assets configuration`.",
    ]
    for path, model in _blocks(models):
        title = f"## `{path}`" if path else "## Top level"
        parts += [title, _prose(model["description"]), _table(path, model)]
    return "\n\n".join(parts) + "\n"


def _blocks(
    models: Mapping[str, Any], name: str = TOP, path: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every block by its path, each before those that stand in it."""
    yield path, models[name]
    for key, field in models[name]["properties"].items():
        for inner in _references(field):
            yield from _blocks(models, inner, f"{path}.{key}".lstrip("."))


def _references(field: Mapping[str, Any]) -> list[str]:
    """Names of the models that a field's value may be."""
    choices = field.get("anyOf", [field])
    return [choice["$ref"].rpartition("/")[2] for choice in choices if "$ref" in choice]


def _table(path: str, model: Mapping[str, Any]) -> str:
    needed = model.get("required", [])
    rows = []
    for key, field in model["properties"].items():
        whole = f"{path}.{key}".lstrip(".")
        rows.append([f"`{key}`", _cell(_type(field, whole)), _default(key, field, needed), _meaning(field)])
    return markdown.table(["key", "type", "default", "meaning"], rows)


def _type(field: Mapping[str, Any], path: str) -> str:
    """What a key takes, in words."""
    if "$ref" in field:
        return f"[block](#{path.replace('.', '')})"
    if "anyOf" in field:
        return " or ".join(_type(choice, path) for choice in field["anyOf"])
    if "enum" in field or "const" in field:
        return " or ".join(map(_value, field.get("enum", [field.get("const")])))
    kind = field.get("type")
    if kind == "null":
        return "`null`"
    if kind == "array":
        count = f" ({field['maxItems']})" if "maxItems" in field else ""
        return f"list of {_type(field['items'], path)}{count}"
    if kind == "object":
        inner = field.get("additionalProperties")
        return f"mapping of names to {_type(inner, path)}" if isinstance(inner, dict) else "mapping"
    if field.get("format") == "date":
        return "date"
    limits = ", ".join(
        f"{sign} {field[name]:,g}" if isinstance(field[name], float) else f"{sign} {field[name]:,}"
        for name, sign in _LIMITS.items()
        if name in field and abs(field[name]) < _NO_LIMIT
    )
    return (_NAMES[kind] if kind else "any value") + (f" ({limits})" if limits else "")


def _default(key: str, field: Mapping[str, Any], needed: list[str]) -> str:
    if key in needed:
        return "needed"
    return _cell(_value(field["default"])) if "default" in field else ""


def _value(value: Any) -> str:
    """A value as YAML has it."""
    return f"`{yaml.safe_dump(value, default_flow_style=True, width=1000).splitlines()[0]}`"


def _meaning(field: Mapping[str, Any]) -> str:
    return _cell(_prose(field["description"]))


def _prose(docstring: str) -> str:
    return " ".join(docstring.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
