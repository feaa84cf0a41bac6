"""Every column of every asset: what it holds, and from which columns it was made.

`COLUMNS` is the only place that says so. Dagster's column lineage, the Columns tab and a table in the
metadata (the open-source UI does not draw column lineage) are all made from it.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import dagster as dg
import pyarrow as pa

from rl_assets.base import markdown
from rl_assets.base.modalities import MEDIA_COLUMNS
from rl_assets.graph.dataset import GraphDataset
from rl_assets.protocol.manifest import ShardManifest

_LONGEST_TYPE = 40


class Column(NamedTuple):
    """What a column holds, and the columns (`asset.column`) and whole assets (`asset`) it comes from."""

    holds: str
    sources: tuple[str, ...] = ()


Columns = dict[str, Column]


def _carried(asset: str, columns: Mapping[str, Column], *names: str) -> Columns:
    """Columns that come unchanged from those of the same name in an earlier asset."""
    return {name: Column(columns[name].holds, (f"{asset}.{name}",)) for name in names or columns}


_PLACE = ("uid", "split", "source_file", "source_row")
_ALL_CONTENT = ("data_source", "prompt", "reward_model", *MEDIA_COLUMNS)

_RAW_FILES: Columns = {
    "path": Column("the file, as it is found from the project's top folder"),
    "split": Column("train or val: which setting of the YAML names the file"),
    "format": Column("parquet, json or jsonl"),
    "bytes": Column("size of the file"),
    "digest": Column("BLAKE2b of its bytes"),
    "rows": Column("rows it holds, unreadable ones included"),
}

_FIELD_CONTRACT: Columns = {
    "uid": Column(
        "names the prompt: a digest of its content, or the row's own",
        ("raw_files.uid", *(f"raw_files.{name}" for name in _ALL_CONTENT)),
    ),
    "split": Column("train or val", ("raw_files.split",)),
    "source_file": Column("raw file that the row came from", ("raw_files.path",)),
    "source_row": Column("row in that file, from 0", ("raw_files",)),
    "data_source": Column("names the source; the scorer is chosen by it", ("raw_files.data_source",)),
    "ability": Column("free label of the kind of task", ("raw_files.ability",)),
    "prompt": Column("messages, as JSON text", ("raw_files.prompt",)),
    "reward_model": Column("object with ground_truth, as JSON text", ("raw_files.reward_model",)),
    "extra_info": Column("the row's further information, as JSON text", ("raw_files.extra_info",)),
    "images": Column("per image its item as JSON text, its bytes and their digest", ("raw_files.images",)),
    "videos": Column("as images", ("raw_files.videos",)),
    "audios": Column("as images", ("raw_files.audios",)),
    "extra_columns": Column("the row's other columns, as JSON text", ("raw_files",)),
    "warnings": Column("what was found that does not refuse the row", ("raw_files",)),
}

_REJECTED_ROWS: Columns = {
    **{name: _FIELD_CONTRACT[name] for name in ("source_file", "source_row", "split")},
    "stage": Column("where it was refused: read, contract or render"),
    "uid": Column("the row's own uid, where it has one", ("raw_files.uid",)),
    "code": Column("reason code of its first error; see docs/reject-codes.md", ("raw_files",)),
    "path": Column("field at fault", ("raw_files",)),
    "message": Column("what was found, and what was expected", ("raw_files",)),
    "errors": Column("every error of the row", ("raw_files",)),
    "row": Column("the row itself, as it was read", ("raw_files",)),
}

_RENDERED = ("field_contract.prompt", "field_contract.extra_columns", "tokenizer", "tool_schemas")

_LENGTH_FILTERED: Columns = {
    **_carried("field_contract", _FIELD_CONTRACT),
    "prompt_ids": Column(
        "token ids of the rendered prompt",
        (*_RENDERED, *(f"field_contract.{name}" for name in MEDIA_COLUMNS)),
    ),
    "prompt_length": Column("tokens of the rendered prompt", _RENDERED),
    "warnings": Column(_FIELD_CONTRACT["warnings"].holds, ("field_contract.warnings", *_RENDERED)),
    "uncut_length": Column("tokens before the prompt was cut; null where it was not", _RENDERED),
}

_UNRENDERABLE: Columns = {
    **_carried("field_contract", _FIELD_CONTRACT, *_PLACE),
    "stage": Column("where it was refused: render"),
    **{name: Column(_REJECTED_ROWS[name].holds, _RENDERED) for name in ("code", "path", "message", "errors")},
    "row": Column("the row itself, as JSON text", ("field_contract",)),
}

_FIELDS = ("data_source", "ability", "reward_model", "extra_info")

_PROTO_SHARDS: Columns = {
    "dummy_tensor": Column("verl's placeholder, so that a batch without tensors has a length"),
    **_carried("length_filtered", _LENGTH_FILTERED, *_PLACE, *_FIELDS, "prompt_ids"),
    "reward_model": Column("object with ground_truth", ("length_filtered.reward_model",)),
    "extra_info": Column("object of the row's further information", ("length_filtered.extra_info",)),
    "prompt": Column("messages", ("length_filtered.prompt",)),
    "raw_prompt": Column(
        "messages, under the name by which verl's agent loops read them", ("length_filtered.prompt",)
    ),
    "index": Column("extra_info.index, or 0", ("length_filtered.extra_info",)),
    "tools_kwargs": Column("extra_info.tools_kwargs, or {}", ("length_filtered.extra_info",)),
    "interaction_kwargs": Column("extra_info.interaction_kwargs, or {}", ("length_filtered.extra_info",)),
    "multi_modal_data": Column(
        "media by kind; their bytes are in the media store",
        tuple(f"length_filtered.{name}" for name in MEDIA_COLUMNS),
    ),
    "images": Column("media items, their bytes in the media store", ("length_filtered.images",)),
    "videos": Column("as images", ("length_filtered.videos",)),
    "audios": Column("as images", ("length_filtered.audios",)),
    "*": Column("a column of the user's own", ("length_filtered.extra_columns",)),
}

_ANSWERED = ("proto_shards.prompt_ids", "policy")

_ROLLOUTS: Columns = {
    "prompts": Column("ids of the prompt, padded on the left", ("proto_shards.prompt_ids",)),
    "responses": Column("ids of the response, padded on the right", _ANSWERED),
    "input_ids": Column("prompts, then responses", _ANSWERED),
    "attention_mask": Column("1 where input_ids is not padding", _ANSWERED),
    "position_ids": Column("positions of input_ids, from 0 at the prompt's first token", _ANSWERED),
    "response_mask": Column("attention_mask over the response", _ANSWERED),
    "rollout_log_probs": Column("log-probability of each token as it was sampled", _ANSWERED),
    "raw_log_probs": Column("log-probability of each token under the policy itself", _ANSWERED),
    **{
        name: Column(column.holds, (f"proto_shards.{name}",))
        for name, column in _PROTO_SHARDS.items()
        if name not in ("dummy_tensor", "*")
    },
    "sample_index": Column("which of the prompt's n responses it is, from 0"),
    "finish_reason": Column("stop (end of text) or length (cut at the limit)", _ANSWERED),
    "response_length": Column("tokens of the response", _ANSWERED),
    "*": Column("as in proto_shards", ("proto_shards",)),
}

_REWARD_INPUTS: Columns = {
    **_carried("rollouts", _ROLLOUTS, "uid", "sample_index", "split", "data_source"),
    "solution_str": Column(
        "the response, decoded without special tokens", ("rollouts.responses", "tokenizer")
    ),
    "ground_truth": Column("the right answer, as JSON text", ("rollouts.reward_model",)),
    "extra_info": Column("the row's further information, as JSON text", ("rollouts.extra_info",)),
    **_carried("rollouts", _ROLLOUTS, "finish_reason", "response_length"),
    **_carried("rollouts", _ROLLOUTS, "source_file", "source_row"),
}

_SCORED = (
    *(f"reward_inputs.{name}" for name in ("data_source", "solution_str", "ground_truth", "extra_info")),
    "reward_function",
)

_REWARD_SCORES: Columns = {
    **_carried("reward_inputs", _REWARD_INPUTS),
    "score": Column("what the reward function gives the response; null where there is no score", _SCORED),
    "error": Column("why there is no score", _SCORED),
    "further_keys": Column("JSON: what a dict result holds besides its first 64 keys", _SCORED),
    "*": Column("what the reward function returns beside the score", _SCORED),
}

_RATED = ("reward_scores.score",)

_PROMPT_DIFFICULTY: Columns = {
    **_carried("reward_scores", _REWARD_SCORES, "uid"),
    "policy": Column("fingerprint of the policy that answered", ("policy",)),
    **_carried("reward_scores", _REWARD_SCORES, "split", "data_source"),
    "n": Column("responses to the prompt", ("reward_scores.uid",)),
    "scored": Column("responses with a score", _RATED),
    "passed": Column("responses whose score is at least reward.pass_score", _RATED),
    "pass_rate": Column("passed / scored", _RATED),
    "pass_rate_low": Column("lower end of its Wilson interval at 95 %", _RATED),
    "pass_rate_high": Column("upper end of it", _RATED),
    "pass_at_*": Column("unbiased estimate that one of k responses passes", _RATED),
    "score_mean": Column("mean of the scores", _RATED),
    "score_std": Column("their standard deviation (of a sample); null for fewer than two", _RATED),
    "score_min": Column("lowest score", _RATED),
    "score_max": Column("highest score", _RATED),
    "truncated_share": Column("share of responses that were cut", ("reward_scores.finish_reason",)),
    "distinct_answers": Column(
        "different answers (pred where the scorer gives it), else different responses",
        ("reward_scores.solution_str",),
    ),
    "mean_response_length": Column("tokens, on average", ("reward_scores.response_length",)),
    **_carried("reward_scores", _REWARD_SCORES, "source_file", "source_row"),
}

_VERL_DATASET: Columns = {
    **_carried("length_filtered", _LENGTH_FILTERED, "data_source"),
    "prompt": Column("messages", ("length_filtered.prompt",)),
    **_carried("length_filtered", _LENGTH_FILTERED, "ability"),
    "reward_model": Column(
        "object with ground_truth, values as in the raw file", ("length_filtered.reward_model",)
    ),
    "extra_info": Column("object, values as in the raw file", ("length_filtered.extra_info",)),
    **{
        name: Column("media items as in the raw file", (f"length_filtered.{name}",)) for name in MEDIA_COLUMNS
    },
    **_carried("length_filtered", _LENGTH_FILTERED, "uid"),
    "*": Column("a column of the user's own", ("length_filtered.extra_columns",)),
}

COLUMNS: dict[str, Columns] = {
    "raw_files": _RAW_FILES,
    "field_contract": _FIELD_CONTRACT,
    "rejected_rows": _REJECTED_ROWS,
    "length_filtered": _LENGTH_FILTERED,
    "overlong_rows": _LENGTH_FILTERED,
    "unrenderable_rows": _UNRENDERABLE,
    "proto_shards": _PROTO_SHARDS,
    "rollouts": _ROLLOUTS,
    "reward_inputs": _REWARD_INPUTS,
    "reward_scores": _REWARD_SCORES,
    "prompt_difficulty": _PROMPT_DIFFICULTY,
    "verl_dataset": _VERL_DATASET,
}
"""By asset and name. A name with `*` stands for the columns that are called differently in every dataset."""


def find_column(asset: str, name: str) -> Column | None:
    """What is said of a column: under its own name, or under a pattern."""
    columns = COLUMNS[asset]
    patterns = (pattern for pattern in columns if fnmatchcase(name, pattern))
    return columns.get(name) or next((columns[pattern] for pattern in patterns), None)


def column_metadata(
    dataset: GraphDataset, asset: str, schema: pa.Schema | Mapping[str, str]
) -> dict[str, Any]:
    """What an asset says of its columns.

    Args:
        dataset: its settings say what columns of the raw files are called.
        asset: the asset's name.
        schema: of its table; or the type of every column, by name.

    Returns:
        The metadata `dagster/column_schema`, `dagster/column_lineage` and `columns`.
    """
    types = {field.name: str(field.type) for field in schema} if isinstance(schema, pa.Schema) else schema
    nullable = {field.name: field.nullable for field in schema} if isinstance(schema, pa.Schema) else {}
    found = {name: find_column(asset, name) or Column("") for name in types}
    sources = {
        name: [_source(dataset, source) for source in column.sources] for name, column in found.items()
    }
    deps = {
        name: [dg.TableColumnDep(dataset.key(origin), column) for origin, column in origins if column]
        for name, origins in sources.items()
    }
    return {
        "dagster/column_schema": dg.TableSchema(
            [
                dg.TableColumn(
                    name,
                    type=types[name],
                    description=column.holds,
                    constraints=dg.TableColumnConstraints(nullable=nullable.get(name, True)),
                )
                for name, column in found.items()
            ]
        ),
        "dagster/column_lineage": dg.TableColumnLineage({name: deps[name] for name in types if deps[name]}),
        "columns": _as_table(types, found, sources),
    }


def shard_types(dataset: GraphDataset, asset: str, manifest: ShardManifest) -> dict[str, str]:
    """Type of every tensor and field of the shards, by the first row of the first one."""
    from rl_assets.protocol.shards import read_shard

    if not manifest.shards:
        return {}
    data = read_shard(dataset.storage / asset, manifest.shards[0], rows=[0])
    tensors = {} if data.batch is None else dict(data.batch.items())
    types = {}
    for name, tensor in tensors.items():
        shape = ", ".join(["rows", *map(str, tensor.shape[1:])])
        types[name] = f"{str(tensor.dtype).removeprefix('torch.')} ({shape})"
    return types | {name: type(values[0]).__name__ for name, values in data.non_tensor_batch.items()}


def _source(dataset: GraphDataset, source: str) -> tuple[str, str]:
    """Asset and column; a column of the raw files under the name that the YAML gives it."""
    asset, _, column = source.partition(".")
    data = dataset.spec.data
    named = {
        "prompt": data.prompt_key,
        "data_source": data.reward_fn_key,
        "images": data.image_key,
        "videos": data.video_key,
        "audios": data.audio_key,
    }
    return asset, named.get(column, column) if asset == "raw_files" else column


def _as_table(
    types: Mapping[str, str], found: Mapping[str, Column], sources: Mapping[str, list[tuple[str, str]]]
) -> dg.MarkdownMetadataValue:
    lines = []
    for name, column in found.items():
        kind = types[name]
        short = kind if len(kind) <= _LONGEST_TYPE else f"{kind[: _LONGEST_TYPE - 1]}…"
        origin = ", ".join(f"{asset}.{source}" if source else asset for asset, source in sources[name])
        lines.append([f"**{markdown.escape(name)}**", *map(markdown.escape, (short, column.holds, origin))])
    return dg.MetadataValue.md(markdown.table(["column", "type", "what it holds", "from"], lines))
