"""The training set as files that verl loads: train and validation rows, what was left out, and a card."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from rl_assets.base.digests import digest_file, digest_json
from rl_assets.base.jsontext import to_json
from rl_assets.base.modalities import MEDIA_COLUMNS
from rl_assets.base.tables import Table, TableWriter
from rl_assets.contract.files.manifest import SPLITS
from rl_assets.contract.schema import decode_row
from rl_assets.errors import InputError
from rl_assets.trainset.curate import Curated, LeftOut
from rl_assets.trainset.exact import to_array, widened
from rl_assets.trainset.forms import FORMS
from rl_assets.trainset.media import MediaWriter

LEFT_OUT = "left_out.parquet"
SPLIT_NAMES = {"train": "train", "val": "validation"}
"""What every loader of `datasets` calls a split: it finds `val.parquet` under this name by itself."""
SAVED = "datasets"
"""The form that `datasets.load_from_disk` reads."""

LEFT_OUT_SCHEMA = pa.schema(
    [
        pa.field(name, pa.string(), nullable=False)
        for name in ("uid", "split", "data_source", "reason", "detail")
    ]
    + [
        pa.field("source_file", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
    ]
)

_FIRST_COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info", *MEDIA_COLUMNS)
_BATCH_ROWS = 1024
_BATCH_BYTES = 32 << 20


class ExportedFile(BaseModel):
    """One file of a training set.

    Attributes:
        name: inside the training set's folder.
        rows: how many it holds.
        bytes: its size.
        digest: of its bytes.
        json_columns: columns that are kept as JSON, for which `datasets` 4.7 or later is needed.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    rows: int
    bytes: int
    digest: str
    json_columns: list[str]


class Export(BaseModel):
    """A training set: its files, and how its rows were chosen.

    Attributes:
        files: train.parquet and val.parquet, those that have rows.
        forms: the same rows in the forms of other trainers, each form in a folder of its name.
        stages: after each stage of the choice, the rows that were left, by split.
        left_out: rows that were left out, by reason.
        sources: rows by split and data_source.
        parameters: what the rows were chosen by.
    """

    model_config = ConfigDict(frozen=True)

    files: list[ExportedFile]
    forms: list[ExportedFile]
    stages: list[tuple[str, dict[str, int]]]
    left_out: dict[str, int]
    sources: dict[str, dict[str, int]]
    parameters: dict[str, Any]

    @property
    def all_files(self) -> list[ExportedFile]:
        """`files` and `forms`."""
        return [*self.files, *self.forms]

    @property
    def digest(self) -> str:
        """Digest of the files and of what was left out."""
        # Without the notes that `datasets` writes beside its rows: they name the folder they were made in.
        files = [[file.name, file.digest] for file in self.all_files if file.rows]
        return digest_json([files, self.left_out, self.parameters])

    @property
    def rows(self) -> int:
        """Rows of train.parquet and val.parquet."""
        return sum(file.rows for file in self.files)


def write_export(
    rows: Table,
    curated: Curated,
    *,
    media: MediaWriter,
    parameters: Mapping[str, Any],
    folder: Path,
    forms: Sequence[str] = (),
) -> Export:
    """Write the rows that were taken as `train.parquet` and `val.parquet`, the others as `left_out.parquet`.

    A row is written in verl's schema: `data_source`, `prompt`, `ability`, `reward_model`, `extra_info`,
    media, the users' own columns and `uid`. Loaded with `datasets` (as verl does), every value comes back as
    it stood in the raw file, but for the numbers that `exact.numbers_as_text` names, and media can be opened
    from any folder.

    Args:
        rows: the length gate's rows.
        curated: which of them are taken.
        media: puts their media into the form in which they are written.
        parameters: noted in the result.
        folder: where the files are written.
        forms: further forms in which the rows are written: those of `FORMS`, and `datasets`.

    Raises:
        InputError: no row of a split that had rows is left, or there are no rows at all.
    """
    had = {prompt["split"] for prompt in curated.taken} | {left.prompt["split"] for left in curated.left_out}
    uids = {split: {p["uid"] for p in curated.taken if p["split"] == split} for split in SPLITS}
    shapes = media.dried()
    types = {split: _in_order(_column_types(export_rows(rows, uids[split], shapes))) for split in SPLITS}
    written: dict[str, list[ExportedFile]] = {form: [] for form in ("", *forms) if form != SAVED}
    for split in SPLITS:
        taken = uids[split]
        if not taken and (split in had or not had):
            raise _empty(split, curated.left_out)
        for form, files in written.items() if taken else ():
            name = f"{form}/{split}.parquet".lstrip("/")
            if not form:
                files.append(_write(folder, name, types[split], export_rows(rows, taken, media), media))
                continue
            made = FORMS[form]
            shape = _in_order(made.types(_column_types(map(made.row, export_rows(rows, taken, shapes)))))
            formed = map(made.row, export_rows(rows, taken, media))
            files.append(_write(folder, name, shape, formed, media, made.features))
    if SAVED in forms:
        written[SAVED] = _save_to_disk(folder, [file.name for file in written[""]])
    with TableWriter(folder / LEFT_OUT, LEFT_OUT_SCHEMA) as writer:
        writer.write_rows(_left_out_row(left) for left in curated.left_out)
    sources: dict[str, Counter[str]] = {}
    for prompt in curated.taken:
        sources.setdefault(prompt["split"], Counter())[prompt["data_source"]] += 1
    return Export(
        files=written.pop(""),
        forms=[file for files in written.values() for file in files],
        stages=[(stage, dict(counts)) for stage, counts in curated.stages],
        left_out=dict(Counter(left.reason for left in curated.left_out).most_common()),
        sources={split: dict(sorted(counts.items())) for split, counts in sources.items()},
        parameters=dict(parameters),
    )


def export_rows(rows: Table, taken: set[str], media: MediaWriter) -> Iterator[dict[str, Any]]:
    """The rows with the uids `taken`, decoded, in verl's schema, their media as `media` writes them."""
    for record in rows.rows(size=_BATCH_ROWS):
        if record["uid"] in taken:
            yield media.row(decode_row(record), record["source_file"])


def _column_types(rows: Iterable[Mapping[str, Any]]) -> dict[str, pa.DataType]:
    """The Arrow type of every column that a row has."""
    types: dict[str, pa.DataType] = {}
    for row in rows:
        for name, value in row.items():
            types[name] = widened(types.get(name, pa.null()), value)
    return types


def _in_order(types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The columns in verl's order, then the users' own, then the uid."""
    own = sorted(types.keys() - {*_FIRST_COLUMNS, "uid"})
    return {name: types[name] for name in (*_FIRST_COLUMNS, *own, "uid") if name in types}


def _json_columns(types: Mapping[str, pa.DataType]) -> list[str]:
    return [name for name, kind in types.items() if kind == pa.json_()]


def _write(
    folder: Path,
    name: str,
    types: Mapping[str, pa.DataType],
    rows: Iterator[Mapping[str, Any]],
    media: MediaWriter,
    features: Mapping[str, Any] | None = None,
) -> ExportedFile:
    schema, path = pa.schema(list(types.items())), folder / name
    if told := {column: told for column, told in (features or {}).items() if column in types}:
        schema = schema.with_metadata({"huggingface": to_json({"info": {"features": told}})})
    path.parent.mkdir(exist_ok=True)
    with TableWriter(path, schema) as writer:
        for batch in _batches(rows, media):
            arrays = [to_array([row.get(name) for row in batch], kind) for name, kind in types.items()]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return ExportedFile(
        name=name,
        rows=writer.num_rows,
        bytes=path.stat().st_size,
        digest=digest_file(path),
        json_columns=_json_columns(types),
    )


def _batches(rows: Iterator[Mapping[str, Any]], media: MediaWriter) -> Iterator[list[Mapping[str, Any]]]:
    """Rows some at a time, fewer where their media are large."""
    batch, read = [], media.num_bytes
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH_ROWS or media.num_bytes - read > _BATCH_BYTES:
            yield batch
            batch, read = [], media.num_bytes
    if batch:
        yield batch


def _save_to_disk(folder: Path, names: Sequence[str]) -> list[ExportedFile]:
    """The parquet files as a `datasets.DatasetDict` for `load_from_disk`."""
    from datasets import Dataset, DatasetDict, NamedSplit, disable_progress_bars

    disable_progress_bars()
    splits = {SPLIT_NAMES[Path(name).stem]: str(folder / name) for name in names}
    with TemporaryDirectory(dir=folder) as cache:
        data = DatasetDict(
            {
                split: Dataset.from_parquet(path, split=NamedSplit(split), cache_dir=cache)
                for split, path in splits.items()
            }
        )
        data.save_to_disk(folder / SAVED)
    rows = {split: part.num_rows for split, part in data.items()}
    files = sorted(path for path in (folder / SAVED).rglob("*") if path.is_file())
    return [
        ExportedFile(
            name=str(path.relative_to(folder)),
            rows=rows[path.parent.name] if path.suffix == ".arrow" else 0,
            bytes=path.stat().st_size,
            digest=digest_file(path),
            json_columns=[],
        )
        for path in files
    ]


def _left_out_row(left: LeftOut) -> dict[str, Any]:
    place = {key: left.prompt[key] for key in ("uid", "split", "data_source", "source_file", "source_row")}
    return {**place, "reason": left.reason, "detail": left.detail}


def _empty(split: str, left_out: Sequence[LeftOut]) -> InputError:
    reasons = Counter(left.reason for left in left_out if left.prompt["split"] == split)
    found = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
    return InputError(
        field="curation",
        found=f"no {split} prompt that is taken ({found or 'there are none'})",
        expected="at least one",
        remedy="Widen what prompts are chosen by, or look at what the stages before set aside.",
    )
