"""A row followed through the graph: from the line of a raw file to its responses and scores."""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from rl_assets.base.tables import Table
from rl_assets.cli.traced import (
    Contract,
    Made,
    Place,
    Problem,
    Prompt,
    Response,
    Shard,
    Tools,
    Trace,
    Training,
)
from rl_assets.contract.rules.codes import CODES
from rl_assets.dataset.dataset import ASSETS
from rl_assets.dataset.records import read_record
from rl_assets.errors import InputError, first_line
from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.history import last_materialization
from rl_assets.protocol.manifest import shard_name
from rl_assets.rewards.solution import decode_responses
from rl_assets.trainset.export import LEFT_OUT

_NAMED_IN = ("field_contract", "rejected_rows", "overlong_rows", "unrenderable_rows", "length_filtered")
_PLACE = ("uid", "source_file", "source_row", "split")
_SHOWN_CANDIDATES = 3


def find_row(datasets: Sequence[GraphDataset], target: str) -> tuple[GraphDataset, Place]:
    """The row that `target` means: a uid, the beginning of one that no other row shares, or ``FILE:ROW``.

    Of a file's path, the end is enough where it is the only such file.

    Raises:
        InputError: no row, or more than one.
    """
    found = [(dataset, place) for dataset in datasets for place in sorted(_matches(dataset, target), key=str)]
    exact = [(dataset, place) for dataset, place in found if place.uid == target]
    found = exact or found
    if len(found) == 1:
        return found[0]
    if found:
        shown = [f"{_called(dataset)} {place}" for dataset, place in found[:_SHOWN_CANDIDATES]]
        if len(found) > len(shown):
            shown.append(f"{len(found) - len(shown):,} more")
        raise InputError(
            found=f"{len(found):,} rows for {target!r}: {', '.join(shown)}",
            expected="one",
            remedy="Give more of the uid, FILE:ROW, or --dataset.",
        )
    names = ", ".join(map(_called, datasets)) or "no partition"
    if not any(dataset.table("field_contract").path.exists() for dataset in datasets):
        raise InputError(
            file=names,
            found="no field_contract",
            expected="a dataset that was materialised",
            remedy="Run the dataset's job first: `dg launch --job DATASET_rebuild`.",
        )
    raise InputError(
        found=f"no row for {target!r} in {names}",
        expected="a uid, the beginning of one, or FILE:ROW (rows count from 0)",
        remedy="Tables and checks in the UI name rows by both; a row that changed has another uid now.",
    )


def trace_row(dataset: GraphDataset, place: Place, history: dg.DagsterInstance | None) -> Trace:
    """Everything that is stored of a row.

    Raises:
        InputError: what is stored is damaged.
    """
    trace = Trace(
        **place._asdict(),
        dataset=dataset.name,
        partition=dataset.partition,
        history=history is not None,
    )
    trace.made = _made(dataset, history)
    trace.contract = _contract(dataset, place, trace.notes)
    if changed := _changed_since(dataset, place.source_file):
        trace.notes.append(changed)
    if place.uid is None or (trace.contract and trace.contract.verdict == "rejected"):
        return trace
    trace.prompt = _prompt(dataset, place.uid, trace.notes)
    if trace.prompt is None or trace.prompt.verdict == "fits":
        trace.shard = _shard(dataset, place)
        trace.responses = _responses(dataset, place.uid, trace.shard)
        trace.difficulty = _first(_existing(dataset, "prompt_difficulty"), None, uid=place.uid)
        trace.verl_dataset = _training(dataset, place)
    return trace


def _called(dataset: GraphDataset) -> str:
    return f"{dataset.name}[{dataset.partition}]" if dataset.partition else dataset.name


def _matches(dataset: GraphDataset, target: str) -> set[Place]:
    file, _, row = target.rpartition(":")
    found: set[Place] = set()
    for name in _NAMED_IN:
        for batch in _batches(_existing(dataset, name), _PLACE):
            mask = pc.fill_null(pc.starts_with(batch["uid"], target), False)
            if file and row.isascii() and row.isdigit():
                whole = pc.match_substring_regex(batch["source_file"], rf"(^|/){re.escape(file)}$")
                mask = pc.or_(mask, pc.and_(whole, pc.equal(batch["source_row"], int(row))))
            found.update(Place(**record) for record in batch.filter(mask).to_pylist())
    return found


def _made(dataset: GraphDataset, history: dg.DagsterInstance | None) -> dict[str, Made]:
    made: dict[str, Made] = {}
    for name in ASSETS:
        record = read_record(dataset, name)
        event = last_materialization(dataset, name, history) if history else None
        if record is not None:  # the latest materialisation may be one that was only emitted again
            made[name] = Made(run_id=record.run_id, time=record.built)
        elif event is not None:
            made[name] = Made(run_id=event.run_id, time=datetime.fromtimestamp(event.timestamp, UTC))
        elif any((dataset.storage / f"{name}{suffix}").exists() for suffix in (".parquet", ".json")):
            made[name] = Made()
    return made


def _contract(dataset: GraphDataset, place: Place, notes: list[str]) -> Contract | None:
    where = {"source_file": place.source_file, "source_row": place.source_row}
    refused = _first(_existing(dataset, "rejected_rows"), ("errors", "row"), **where)
    if refused is not None:
        problems = [Problem(**error) for error in refused["errors"]]
        return Contract(verdict="rejected", problems=problems, row=refused["row"])
    columns = ("data_source", "ability", "reward_model", "extra_info", "extra_columns", "warnings")
    accepted = _first(_existing(dataset, "field_contract"), columns, **where)
    if accepted is None:
        return None
    return Contract(
        verdict="accepted",
        data_source=accepted["data_source"],
        ability=accepted["ability"],
        ground_truth=json.loads(accepted["reward_model"]).get("ground_truth"),
        extra_info=json.loads(accepted["extra_info"]),
        tools=_tools(dataset, json.loads(accepted["extra_columns"]).get("tools"), notes),
        warnings=[Problem(**warning) for warning in accepted.get("warnings") or ()],
    )


def _tools(dataset: GraphDataset, own: list[dict[str, Any]] | None, notes: list[str]) -> Tools | None:
    """The tools of a row: its own, of which an empty list is none, or those of the dataset's file."""
    from rl_assets.prompts.tools import load_tool_schemas

    source, file = "the row's column `tools`", dataset.spec.data.tool_config_path
    if own is None and file:
        source = f"{file} (data.tool_config_path)"
        try:
            own = load_tool_schemas(dataset.root / file)
        except InputError as error:
            notes.append(f"The tools cannot be shown: {first_line(error)}")
    names = [str(tool.get("function", tool).get("name")) for tool in own or ()]
    return Tools(names=names, source=source) if names else None


def _changed_since(dataset: GraphDataset, file: str) -> str | None:
    """A note where the raw file is not the one that the tables were made from."""
    from rl_assets.base.digests import digest_file
    from rl_assets.base.files import is_url

    if is_url(file):
        return None
    known = {raw.path: raw.digest for raw in dataset.raw_manifest().files}
    path = dataset.root / file
    if not path.exists():
        return f"{file} is not there any more."
    if known.get(file) not in (None, digest_file(path)):
        return f"{file} has changed since raw_files was made: its rows may stand elsewhere now."
    return None


def _prompt(dataset: GraphDataset, uid: str, notes: list[str]) -> Prompt | None:
    limit = dataset.spec.data.max_prompt_length
    columns = ("prompt_ids", "prompt_length", "warnings")
    if kept := _first(_existing(dataset, "length_filtered"), columns, uid=uid):
        prompt = Prompt(
            verdict="fits", tokens=kept["prompt_length"], limit=limit, warnings=_of_rendering(kept)
        )
        try:
            prompt.text = dataset.renderer().tokenizer.decode(kept["prompt_ids"])
        except InputError as error:
            notes.append(f"The prompt cannot be shown: {first_line(error)}")
        return prompt
    if long := _first(_existing(dataset, "overlong_rows"), columns[1:], uid=uid):
        return Prompt(
            verdict="overlong", tokens=long["prompt_length"], limit=limit, warnings=_of_rendering(long)
        )
    if refused := _first(_existing(dataset, "unrenderable_rows"), ("errors",), uid=uid):
        problems = [Problem(**error) for error in refused["errors"]]
        return Prompt(verdict="unrenderable", limit=limit, problems=problems)
    return None


def _of_rendering(row: dict[str, Any]) -> list[Problem]:
    """The warnings that a row has since it was rendered, not those of the contract."""
    return [Problem(**one) for one in row.get("warnings") or () if CODES[one["code"]].stage == "render"]


def _shard(dataset: GraphDataset, place: Place) -> Shard | None:
    from rl_assets.protocol.shards import read_shard

    if not (dataset.storage / "proto_shards.json").exists() or place.uid is None:
        return None
    for ref in dataset.shard_manifest("proto_shards").shards:
        if ref.name == shard_name(place.split, place.uid, int(ref.name.rsplit("-", 1)[1])):
            data = read_shard(dataset.storage / "proto_shards", ref, columns=["uid"])
            uids = data.non_tensor_batch["uid"].tolist()
            row = uids.index(place.uid) if place.uid in uids else None
            return Shard(name=ref.name, path=ref.path, row=row, rows=ref.rows)
    return None


def _responses(dataset: GraphDataset, uid: str, shard: Shard | None) -> list[Response]:
    """From the scores, or where there are none yet from the reward inputs, or from the rollouts."""
    columns = ["sample_index", "finish_reason", "response_length", "solution_str"]
    for name, more in (("reward_scores", ["score", "error", "acc", "lenient_acc"]), ("reward_inputs", [])):
        if rows := list(_rows(_existing(dataset, name), [*columns, *more], uid=uid)):
            return [
                Response(
                    sample_index=row["sample_index"],
                    finish_reason=row["finish_reason"],
                    tokens=row["response_length"],
                    text=row["solution_str"],
                    score=row.get("score"),
                    error=row.get("error"),
                    near_miss=row.get("acc") is False and row.get("lenient_acc") is True,
                )
                for row in rows
            ]
    return list(_generated(dataset, uid, shard)) if shard else []


def _generated(dataset: GraphDataset, uid: str, shard: Shard) -> Iterator[Response]:
    if not (dataset.storage / "rollouts.json").exists():
        return
    from rl_assets.protocol.shards import read_shard

    tokenizer = dataset.renderer().tokenizer
    for ref in dataset.shard_manifest("rollouts").shards:
        if not ref.name.startswith(shard.name):
            continue
        data = read_shard(dataset.storage / "rollouts", ref)
        fields = data.non_tensor_batch
        for index in (fields["uid"] == uid).nonzero()[0].tolist():
            ids = data.batch["responses"][index][data.batch["response_mask"][index].bool()].tolist()
            yield Response(
                sample_index=fields["sample_index"][index],
                finish_reason=fields["finish_reason"][index],
                tokens=len(ids),
                text=decode_responses(tokenizer, [ids])[0],
            )


def _training(dataset: GraphDataset, place: Place) -> Training | None:
    if not (dataset.storage / "verl_dataset.json").exists():
        return None
    folder = dataset.storage / "verl_dataset"
    for file in dataset.export().files:
        if _first(Table(folder / file.name), ("uid",), uid=place.uid):
            return Training(taken=True, file=file.name)
    left = _first(Table(folder / LEFT_OUT), ("reason", "detail"), uid=place.uid)
    return Training(taken=False, **left) if left else None


def _existing(dataset: GraphDataset, asset: str) -> Table | None:
    table = dataset.table(asset)
    return table if table.path.exists() else None


def _batches(table: Table | None, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    if table is not None:
        yield from table.batches(columns, size=8192)


def _rows(table: Table | None, columns: Sequence[str] | None, **wanted: Any) -> Iterator[dict[str, Any]]:
    """The rows in which every column of `wanted` has its value, with those of `columns` that there are (None:
    all)."""
    if columns is not None and table is not None:
        columns = [column for column in columns if column in table.schema.names]
    read = None if columns is None else [*columns, *(wanted.keys() - set(columns))]
    for batch in _batches(table, read):
        mask = pa.scalar(True)
        for column, value in wanted.items():
            mask = pc.and_(mask, pc.equal(batch[column], value))
        kept = batch.filter(pc.fill_null(mask, False))
        yield from (kept if columns is None else kept.select(list(columns))).to_pylist()


def _first(table: Table | None, columns: Sequence[str] | None, **wanted: Any) -> dict[str, Any] | None:
    return next(_rows(table, columns, **wanted), None)
