"""The training set, read back from its files as a trainer reads them."""

import json
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from upath import UPath

from rl_assets.base.digests import digest_bytes
from rl_assets.base.files import is_local
from rl_assets.base.modalities import MEDIA_COLUMNS
from rl_assets.base.tables import Table
from rl_assets.contract.schema import decode_row
from rl_assets.graph.checks.check import Check, Severity
from rl_assets.graph.checks.findings import Findings, shown
from rl_assets.graph.dataset import GraphDataset
from rl_assets.media.source import has_media
from rl_assets.trainset.exact import json_text, numbers_as_text
from rl_assets.trainset.media import is_text
from rl_assets.trainset.verl_reader import DroppedError, VerlReader

if TYPE_CHECKING:
    from rl_assets.trainset.media import MediaWriter

_BATCH_ROWS = 1024
_BATCH_BYTES = 32 << 20
_NO_READER = (
    "`datasets`, and so verl, does not read from a column of several shapes: it is text in the training set. "
    "Write it as text in the raw file"
)


def _loads_whole(dataset: GraphDataset) -> Findings:
    limit, findings = dataset.spec.data.max_prompt_length, Findings({"rows": 0, "opened": 0})
    table = dataset.table("length_filtered")
    as_json = {file.name: file.json_columns for file in dataset.export().files}
    media, reader = dataset.media_writer(table), cache(lambda: VerlReader(dataset.renderer()))
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
                    _compare(record, media, row, as_json[name], findings)
                    _fits(record, record["prompt_length"], limit, findings)
                if again := [(record, row) for record, row in pairs if _is_measured_again(row)]:
                    measured = reader().measure([row for _, row in again])
                    findings.count("opened", len(again))
                    for (record, _), length in zip(again, measured, strict=True):
                        _fits(record, length, limit, findings)
    return findings


def _is_measured_again(row: dict[str, Any]) -> bool:
    """Whether verl may make another prompt of a row than the length gate made, or none: a row with media, or
    with tools or template arguments of its own, which verl does not read."""
    if not is_text(row) and has_media(row):
        return True
    return row.get("tools") is not None or row.get("chat_template_kwargs") is not None


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


def _compare(
    record: dict[str, Any],
    media: "MediaWriter",
    row: dict[str, Any],
    as_json: Collection[str],
    findings: Findings,
) -> None:
    source = media.row(decode_row(record), record["source_file"])
    changed = [
        name
        for name, value in row.items()
        if (text := _text(value)) != _text(due := source.get(name))
        and not (name in as_json and text == _text(json.loads(json_text(due))))
    ]
    if changed or source.keys() - row.keys():
        findings.fail(f"`{', '.join(changed)}` is not what the raw file says", record)


def _values_exact(dataset: GraphDataset) -> Findings:
    findings = Findings({"rows": 0})
    columns = {file.name: file.json_columns for file in dataset.export().files}
    if not any(columns.values()):
        return findings
    left_out = {row["uid"] for row in dataset.table("verl_dataset/left_out").rows(["uid"])}
    for record in dataset.table("length_filtered").rows(size=_BATCH_ROWS):
        if record["uid"] in left_out:
            continue
        row = decode_row(record)
        findings.count("rows", 1)
        for name in columns[f"{record['split']}.parquet"]:
            for path in numbers_as_text(row.get(name), name):
                findings.fail(shown(dataset, f"`{path}` is a number that {_NO_READER}"), record)
    return findings


def _few_are_left_out(dataset: GraphDataset) -> Findings:
    export, limit = dataset.export(), dataset.spec.checks.left_out_share
    left_out = sum(export.left_out.values())
    share = left_out / max(left_out + export.rows, 1)
    findings = Findings({"share": share, **export.left_out})
    if share > limit:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in export.left_out.items())
        findings.fail(
            f"{share:.0%} of the prompts are left out ({reasons}), checks.left_out_share is {limit:.0%}"
        )
    return findings


def _splits_apart(dataset: GraphDataset) -> Findings:
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
def _loaded(dataset: GraphDataset) -> Iterator[list[tuple[str, Any]]]:
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
        "values_exact",
        "No number had to be written as text. In a column whose rows differ in shape, trainers read neither "
        "whole numbers beyond 64 bits nor floats closer to zero than 1e-305: such a number is its digits, in "
        "text, in the training set. Everything else is as it was in the raw file.",
        _values_exact,
    ),
    Check(
        "verl_dataset",
        "few_are_left_out",
        "No larger share of the prompts than `checks.left_out_share` is left out of the training set. The "
        "numbers say how many, by reason; `verl_dataset/left_out.parquet` names each.",
        _few_are_left_out,
        Severity.WARN,
    ),
    Check(
        "verl_dataset",
        "splits_apart",
        "No prompt is in training and in validation: a policy that was trained on a question is not measured "
        "by it.",
        _splits_apart,
    ),
]
