"""What the rows say and a trainer of the training files does not read, known before anything is generated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow.compute as pc

from rl_assets.base.modalities import MEDIA_COLUMNS
from rl_assets.base.tables import Table
from rl_assets.contract.schema import decode_row
from rl_assets.trainset.forms import FORMS, unread, unread_by_verl
from rl_assets.trainset.media import MediaForm

_PLACE = ("uid", "source_file", "source_row", "split")
_ROW = ("data_source", "ability", "prompt", "reward_model", "extra_info", "extra_columns")
_SETTINGS = ("tools", "chat_template_kwargs")


class Unread(NamedTuple):
    """Something that a trainer does not read.

    Attributes:
        record: the row that says it, as it is stored; None where the YAML says it for all rows.
        field: what is not read.
        problem: which trainer, and why.
    """

    record: dict[str, Any] | None
    field: str
    problem: str


@dataclass(frozen=True)
class Trainers:
    """Who reads the training files.

    Attributes:
        forms: of `curation.forms`.
        media: how media are written for verl.
        settings: what the YAML says for all rows: `tools` and `chat_template_kwargs`, None where it does not.
        stops: whether the run stops before it generates where one does not read all.
    """

    forms: Sequence[str]
    media: MediaForm
    settings: Mapping[str, Any]
    stops: bool

    def unread(self, table: Table) -> Iterator[Unread]:
        """Everything that the rows say and a trainer does not read.

        Args:
            table: accepted rows. Only those that have media, tools, template settings or a column of a
                reserved name are decoded.
        """
        forms = {name: FORMS[name] for name in self.forms if name in FORMS}
        for name, form in forms.items():
            # TRL has a setting of its own for the template's arguments of all rows.
            asked = ("tools",) if name == "trl" else _SETTINGS
            for field in (field for field in asked if self.settings[field]):
                problem = _problem(name, form.trainer, f"the {field} of `data`", form.unread[field])
                yield Unread(None, field, problem)
        reserved = frozenset[str]().union(*(form.reserved for form in forms.values()))
        for record in _suspects(table, reserved):
            row = decode_row(record)
            for field, why in unread_by_verl(self.media, row):
                yield Unread(record, field, _problem("", "verl", f"`{field}`", why))
            for name, form in forms.items():
                for field, why in unread(form, row):
                    yield Unread(record, field, _problem(name, form.trainer, f"`{field}`", why))


def _problem(form: str, trainer: str, field: str, why: str) -> str:
    asked = f" (`curation.forms` has {form})" if form else ""
    return f"{trainer} does not read {field}{asked}: it {why}"


def _suspects(table: Table, reserved: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Rows that may say what some trainer does not read: those with media, and those with certain columns."""
    names = [*_PLACE, *_ROW, *(f"{column}.list.element.item" for column in MEDIA_COLUMNS)]
    for batch in table.batches(names):
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
