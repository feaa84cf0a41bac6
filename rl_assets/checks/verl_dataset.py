"""The training set, read back from its files as a trainer reads them."""

import json
import tempfile
from collections.abc import Iterator
from typing import Any

from rl_assets.assets.dataset import Dataset
from rl_assets.checks.check import Check
from rl_assets.checks.findings import Findings
from rl_assets.contract import decode_row

_PLACE = ("uid", "source_file", "source_row")


def _loads_whole(dataset: Dataset) -> Findings:
    limit, findings = dataset.spec.data.max_prompt_length, Findings({"rows": 0})
    loaded = {name: {row["uid"]: row for row in rows} for name, rows in _loaded(dataset)}
    for file in dataset.export().files:
        findings.count("rows", len(loaded[file.name]))
        if len(loaded[file.name]) != file.rows:
            findings.fail(f"{file.name} has {file.rows:,} rows, and {len(loaded[file.name]):,} were loaded")
    for record in dataset.table("length_filtered").rows():
        row = loaded.get(f"{record['split']}.parquet", {}).get(record["uid"])
        if row is None:
            continue
        source, place = decode_row(record), {key: record[key] for key in _PLACE}
        changed = [name for name, value in row.items() if _text(value) != _text(source.get(name))]
        if changed or source.keys() - row.keys():
            findings.fail(f"`{', '.join(changed)}` is not what the raw file says", place)
        if record["prompt_length"] > limit:
            findings.fail(f"the prompt has {record['prompt_length']} tokens, the limit is {limit}", place)
    return findings


def _splits_apart(dataset: Dataset) -> Findings:
    findings, seen = Findings(), dict[str, str]()
    for name, rows in _loaded(dataset):
        for row in rows:
            prompt = _text([row["prompt"], *(row.get(key) for key in ("images", "videos", "audios"))])
            if (other := seen.setdefault(prompt, name)) != name:
                findings.fail(f"the prompt is in {other} too", row)
    findings.numbers["prompts"] = len(seen)
    return findings


def _loaded(dataset: Dataset) -> Iterator[tuple[str, Any]]:
    """Each file as verl loads it, in a cache that goes away."""
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix="rl-assets-") as cache:
        for file in dataset.export().files:
            path = str(dataset.storage / "verl_dataset" / file.name)
            # The reader behind `load_dataset`, which itself reports every use to a server.
            yield file.name, datasets.Dataset.from_parquet(path, cache_dir=cache)


def _text(value: Any) -> str:
    """Compared as text, since 1 == 1.0 == True in Python but not for a scorer."""
    return json.dumps(value, sort_keys=True, default=repr)


CHECKS = [
    Check(
        "verl_dataset",
        "loads_whole",
        "Read by `datasets`, as verl reads it, every file has all its rows, every value is "
        "what the raw file says, and no prompt is longer than `data.max_prompt_length`.",
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
