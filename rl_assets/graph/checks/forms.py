"""Training files: what a row says and a trainer does not read is known before anything is generated."""

from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc

from rl_assets.base.modalities import MEDIA_COLUMNS
from rl_assets.contract.schema import decode_row
from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import PLACE, Findings
from rl_assets.graph.dataset import GraphDataset
from rl_assets.trainset.forms import FORMS, unread, unread_by_verl

NAME = "trainers_read_rows"
_ROW = ("data_source", "ability", "prompt", "reward_model", "extra_info", "extra_columns")
_SETTINGS = ("tools", "chat_template_kwargs")


def _read_whole(dataset: GraphDataset) -> Findings:
    spec, findings = dataset.spec, Findings({"looked_at": 0})
    forms = {name: FORMS[name] for name in spec.curation.forms if name in FORMS}
    for name, form in forms.items():
        told: dict[str, Any] = {"tools": spec.data.tool_config_path}
        if name == "openrlhf":  # TRL has a setting of its own for all rows
            told["chat_template_kwargs"] = spec.data.apply_chat_template_kwargs or None
        for field in (field for field, value in told.items() if value):
            findings.fail(_problem(name, form.trainer, f"the {field} of `data`", form.unread[field]))
    reserved = frozenset().union(*(form.reserved for form in forms.values()))
    for record in _suspects(dataset, reserved):
        findings.count("looked_at", 1)
        row = decode_row(record)
        for field, why in unread_by_verl(spec.curation.media, row):
            findings.fail(_problem("", "verl", f"`{field}`", why), record)
        for name, form in forms.items():
            for field, why in unread(form, row):
                findings.fail(_problem(name, form.trainer, f"`{field}`", why), record)
    return findings


def _problem(form: str, trainer: str, field: str, why: str) -> str:
    asked = f" (`curation.forms` has {form})" if form else ""
    return f"{trainer} does not read {field}{asked}: it {why}"


def _suspects(dataset: GraphDataset, reserved: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Rows that may say what some trainer does not read: those with media, and those with certain columns."""
    names = [*PLACE, *_ROW, *(f"{column}.list.element.item" for column in MEDIA_COLUMNS)]
    for batch in dataset.table("length_filtered").batches(names):
        seen = pc.match_substring(batch["prompt"], '"type":"')
        for column in MEDIA_COLUMNS:
            seen = pc.or_(seen, batch[column].is_valid())
        for name in (*_SETTINGS, *reserved):
            seen = pc.or_(seen, pc.match_substring(batch["extra_columns"], f'"{name}":'))
        for record in batch.filter(seen).to_pylist():
            media = {
                column: [{**medium, "bytes": None} for medium in record[column]]
                for column in MEDIA_COLUMNS
                if record[column] is not None
            }
            yield record | media


CHECKS = [
    Check(
        "length_filtered",
        NAME,
        "Every trainer of the files, verl and those of `curation.forms`, reads all that a row says: its "
        "media, its tools, its template settings. What one would pass over is named before the rollouts.",
        _read_whole,
    )
]
