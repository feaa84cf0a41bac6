"""The card of a training set: what is in it, where it came from, what was left out and why."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rl_assets.base import markdown
from rl_assets.base.jsontext import to_json
from rl_assets.contract.files.manifest import RawManifest
from rl_assets.trainset.export import LEFT_OUT, SPLIT_NAMES, Export

CARD = "README.md"


def dataset_card(
    name: str,
    export: Export,
    *,
    description: str | None,
    raw: RawManifest,
    counts: Mapping[str, int],
    rejects: Mapping[str, int],
) -> str:
    """The card as Markdown, with the head by which `datasets` and the Hugging Face hub know the files.

    Equal training sets have equal cards: it holds no time and no place.

    Args:
        name: of the dataset.
        export: the training set.
        description: what the dataset is.
        raw: the raw files.
        counts: rows at each stage before the choice, in order.
        rejects: rows that those stages set aside, by reason code.
    """
    return "\n\n".join(
        [
            _head(name, export),
            f"# {name}",
            *([description] if description else []),
            "RL prompts in verl's row schema. A row's `uid` is that of its rollouts, scores and difficulty; "
            "its messages, ground truth and extra_info are those of the raw file.",
            _section("Files", ["file", "rows", "bytes", "digest"], _file_rows(export)),
            _loading(sorted({column for file in export.all_files for column in file.json_columns})),
            _section("Sources", ["split", "data_source", "rows"], _source_rows(export)),
            _section("Rows at every stage", ["stage", "rows"], counts.items()),
            _section("Set aside before the choice", ["reason", "rows"], rejects.items()),
            _section(
                "Prompts after every step of the choice",
                ["step", "train", "val"],
                ([step, left.get("train", 0), left.get("val", 0)] for step, left in export.stages),
            ),
            _section("Left out by the choice", ["reason", "prompts"], export.left_out.items()),
            f"`{LEFT_OUT}` names every prompt that was left out, with its reason and its raw file and row.",
            _section(
                "Parameters",
                ["key", "value"],
                ([f"`{key}`", markdown.code(to_json(value))] for key, value in export.parameters.items()),
            ),
            _section(
                "Raw files",
                ["file", "split", "rows", "digest"],
                ([markdown.code(file.path), file.split, file.rows, f"`{file.digest}`"] for file in raw.files),
            ),
        ]
    )


def _head(name: str, export: Export) -> str:
    files = [{"split": SPLIT_NAMES[Path(file.name).stem], "path": file.name} for file in export.files]
    # `datasets` knows what it has in its cache by the names of folder, configuration and files alone, which
    # would be those of every other dataset and of the build before.
    config = f"{name}-{export.digest}"
    head = {"configs": [{"config_name": config, "default": True, "data_files": files}]}
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---"


def _file_rows(export: Export) -> Iterable[Sequence[Any]]:
    return ([f"`{file.name}`", file.rows, file.bytes, f"`{file.digest}`"] for file in export.all_files)


def _source_rows(export: Export) -> Iterable[Sequence[Any]]:
    return (
        [split, markdown.escape(source), rows]
        for split, by in export.sources.items()
        for source, rows in by.items()
    )


def _loading(json_columns: Sequence[str]) -> str:
    if not json_columns:
        return "Every column has one type: any reader of Parquet gives the values back."
    names = ", ".join(map(markdown.code, json_columns))
    return (
        f"The values of {names} differ in shape from row to row and are kept as JSON: `datasets` 4.7 or "
        "later gives each back as it was, other readers give its text."
    )


def _section(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    cells = [[f"{value:,}" if isinstance(value, int) else value for value in row] for row in rows]
    return f"## {title}\n\n{markdown.table(columns, cells) if cells else 'None.'}"
