"""The training set, read back from its files as a trainer reads them."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from upath import UPath

from rl_assets.assets.dataset import Dataset
from rl_assets.assets.verl_dataset import media_writer
from rl_assets.checks.check import Check
from rl_assets.checks.findings import Findings
from rl_assets.contract import MEDIA_COLUMNS, decode_row
from rl_assets.prompts.media_source import has_media
from rl_assets.rewards.verl_reader import OWN_SETTINGS, DroppedError, VerlReader
from rl_assets.store import Table, digest_bytes, is_local

if TYPE_CHECKING:
    from rl_assets.rewards.media import MediaWriter

_BATCH_ROWS = 1024
_BATCH_BYTES = 32 << 20


def _loads_whole(dataset: Dataset) -> Findings:
    limit, findings = dataset.spec.data.max_prompt_length, Findings({"rows": 0, "opened": 0})
    table = dataset.table("length_filtered")
    media, reader = media_writer(dataset, table), cache(lambda: VerlReader(dataset.renderer()))
    with _loaded(dataset) as files:
        # About 200 bytes a row; the rows themselves are read as they are compared.
        places = {
            name: {uid: n for n, uid in enumerate(rows.data["uid"].to_pylist())} for name, rows in files
        }
        for file in dataset.export().files:
            findings.count("rows", len(places[file.name]))
            if len(places[file.name]) != file.rows:
                found = len(places[file.name])
                findings.fail(f"{file.name} has {file.rows:,} rows, and {found:,} were loaded")
        sizes = {file.name: _BATCH_BYTES // (file.bytes // file.rows + 1) for file in dataset.export().files}
        for name, rows in files:
            for records in _batches(table, places[name], name, sizes[name]):
                columns = rows[[places[name][record["uid"]] for record in records]]
                pairs = [
                    (record, {key: values[n] for key, values in columns.items()})
                    for n, record in enumerate(records)
                ]
                for record, row in pairs:
                    _compare(record, row, media, findings)
                    _fits(record, record["prompt_length"], limit, findings)
                if again := [(record, row) for record, row in pairs if _is_measured_again(row)]:
                    measured = reader().measure([row for _, row in again])
                    findings.count("opened", len(again))
                    for (record, _), length in zip(again, measured, strict=True):
                        _fits(record, length, limit, findings)
    return findings


def _is_measured_again(row: Mapping[str, Any]) -> bool:
    """Whether verl may make another prompt of a row than the length gate made, or none."""
    return has_media(row) or any(row.get(name) is not None for name in OWN_SETTINGS)


def _fits(record: Mapping[str, Any], length: "int | DroppedError", limit: int, findings: Findings) -> None:
    if isinstance(length, DroppedError):
        findings.fail(f"verl drops it: {length}", record)
    elif length > limit:
        findings.fail(f"the prompt has {length} tokens, the limit is {limit}", record)


def _batches(table: Table, places: Mapping[str, int], name: str, size: int) -> Iterator[list[dict[str, Any]]]:
    """The rows of the length gate that are in a file, some at a time."""
    for batch in table.batches(size=min(max(size, 1), _BATCH_ROWS)):
        records = batch.to_pylist()
        taken = [row for row in records if f"{row['split']}.parquet" == name and row["uid"] in places]
        if taken:
            yield taken


def _compare(record: dict[str, Any], row: dict[str, Any], media: "MediaWriter", findings: Findings) -> None:
    source = media.row(decode_row(record), record["source_file"])
    changed = [name for name, value in row.items() if _text(value) != _text(source.get(name))]
    if changed or source.keys() - row.keys():
        findings.fail(f"`{', '.join(changed)}` is not what the raw file says", record)


def _splits_apart(dataset: Dataset) -> Findings:
    findings, seen = Findings(), dict[str, str]()
    with _loaded(dataset) as files:
        for name, rows in files:
            for row in rows:
                prompt = digest_bytes(_text([row["prompt"], *map(row.get, MEDIA_COLUMNS)]).encode())
                if (other := seen.setdefault(prompt, name)) != name:
                    findings.fail(f"the prompt is in {other} too", row)
    findings.numbers["prompts"] = len(seen)
    return findings


@contextmanager
def _loaded(dataset: Dataset) -> Iterator[list[tuple[str, Any]]]:
    """Each file by its name as verl loads it, mapped into memory from a cache that goes away."""
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix="rl-assets-") as folder:
        loaded = []
        for file in dataset.export().files:
            path = dataset.storage / "verl_dataset" / file.name
            if not is_local(path):  # `datasets` fetches nothing where HF_HUB_OFFLINE is set
                path.fs.get_file(path.path, f"{folder}/{file.name}")
                path = UPath(folder) / file.name
            # The reader behind `load_dataset`, which itself reports every use to a server.
            loaded.append((file.name, datasets.Dataset.from_parquet(str(path), cache_dir=f"{folder}/cache")))
        yield loaded


def _text(value: Any) -> str:
    """Compared as text, since 1 == 1.0 == True in Python but not for a scorer."""
    return json.dumps(value, sort_keys=True, default=_shown)


def _shown(value: Any) -> str:
    return digest_bytes(value) if isinstance(value, bytes) else repr(value)


CHECKS = [
    Check(
        "verl_dataset",
        "loads_whole",
        "Read by `datasets`, as verl reads it, every file has all its rows, every value is what the raw file "
        "says, every medium can be opened as verl opens it, and no prompt that verl makes is longer than "
        "`data.max_prompt_length`: verl would drop such a row without a word.",
        _loads_whole,
    ),
    Check(
        "verl_dataset",
        "splits_apart",
        "No prompt is in training and in validation: a policy that was trained on a question is not measured "
        "by it.",
        _splits_apart,
    ),
]
