"""`length_filtered`, `overlong_rows` and `unrenderable_rows`: which prompts fit once they are rendered."""

import heapq
import json
from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Any

import dagster as dg
import numpy as np
import pyarrow.compute as pc

from rl_assets.base.files import staging
from rl_assets.base.jsontext import to_json
from rl_assets.base.tables import Table
from rl_assets.graph.columns import column_metadata
from rl_assets.graph.dataset import GraphDataset, refusals
from rl_assets.graph.display import (
    PREVIEW_ROWS,
    REFUSED_COLUMNS,
    counted,
    histogram,
    last_message,
    table,
    wide_table,
)
from rl_assets.graph.provenance import code_digest
from rl_assets.graph.unchanged import step
from rl_assets.policy.fingerprint import policy_folder, rendering_files
from rl_assets.spec.data import DataSpec

if TYPE_CHECKING:
    from rl_assets.prompts.length import LengthResult, Truncation

FITTING = """\
The accepted rows whose rendered prompt fits `data.max_prompt_length`: chat template, tools and
generation prompt included. `prompt_ids` are the ids that the rollout generates from; nothing is
tokenised again. A prompt that the last build rendered alike is not rendered again.

Where `data.truncation` has prompts cut, `uncut_length` says how long one was before."""

OVERLONG = """\
The accepted rows whose rendered prompt is longer than `data.max_prompt_length`, with their
`prompt_length`. They are whole and valid, only too long."""

UNRENDERABLE = """\
The accepted rows whose prompt could not be rendered, or lost a part of the row when it was, with the
reason, which is the chat template's or the processor's own where it has one. They are not overlong: something
in them does not fit this policy."""

_LONG_COLUMNS = ["source_file", "source_row", "uid", "prompt_length"]


def build_length_filtered(dataset: GraphDataset) -> dg.AssetsDefinition:
    """The assets of the length gate, made in one pass over the contract."""
    spec = dataset.spec
    reads = {
        "data": spec.data.model_dump(
            include={
                "max_prompt_length",
                "filter_overlong_prompts",
                "truncation",
                "apply_chat_template_kwargs",
                "mm_processor_kwargs",
                "trust_remote_code",
            }
        ),
        "media_root": spec.contract.media_root,
        "severities": dict(sorted(spec.contract.severities.items())),
    }

    @dg.multi_asset(
        name=f"{dataset.name}__length_filtered",
        ins={"field_contract": dg.AssetIn(key=dataset.key("field_contract"))},
        outs={
            name: dg.AssetOut(
                **dataset.describe(name, text, "transformers", "parquet", reads=reads),
                is_required=name != "length_filtered",
            )
            for name, text in {
                "overlong_rows": OVERLONG,
                "unrenderable_rows": UNRENDERABLE,
                "length_filtered": FITTING,
            }.items()
        },
        deps=dataset.depends("tokenizer", *(["tool_schemas"] if spec.data.tool_config_path else [])),
        partitions_def=dataset.partitions,
    )
    @step(dataset, world=_day, work={"rendered_rows": None, "reused_rows": None, "encoder": None})
    def length_filtered(
        dataset: GraphDataset, context: dg.AssetExecutionContext, field_contract: Table
    ) -> Iterator[dg.MaterializeResult[Any]]:
        from rl_assets.prompts.length import filter_by_length

        data = dataset.spec.data
        limit = data.max_prompt_length
        with staging(dataset.storage) as folder, refusals():
            result = filter_by_length(
                field_contract,
                dataset.renderer(),
                max_prompt_length=limit,
                folder=folder,
                log=context.log.info,
                truncation=_truncation(data),
                severities=dataset.spec.contract.severities,
                earlier=_last_build(dataset),
                code=code_digest(__name__),
            )
            overlong = result.overlong.rows(_LONG_COLUMNS)
            longest = heapq.nlargest(PREVIEW_ROWS, overlong, key=lambda row: row["prompt_length"])
            parts = {
                "unrenderable_rows": (result.refused, _refused_metadata(result.refused, dataset)),
                "overlong_rows": (result.overlong, _overlong_metadata(result.overlong, longest, dataset)),
                "length_filtered": (result.kept, _kept_metadata(result, limit, dataset)),
            }
            for name, (rows, metadata) in parts.items():
                if name == "length_filtered" and longest and _stops(data):
                    description = _too_long(result.overlong.num_rows, longest, limit)
                    raise dg.Failure(description=description, allow_retries=False)
                yield dg.MaterializeResult(
                    asset_key=dataset.key(name),
                    value=rows,
                    data_version=dg.DataVersion(rows.digest),
                    metadata=metadata,
                )

    return length_filtered


def _truncation(data: DataSpec) -> "Truncation | None":
    return None if data.filter_overlong_prompts or data.truncation == "error" else data.truncation


def _stops(data: DataSpec) -> bool:
    return not data.filter_overlong_prompts and data.truncation == "error"


def _last_build(dataset: GraphDataset) -> tuple[Table, Table] | None:
    """The tables whose ids can be used again, where they are there."""
    kept, overlong = dataset.table("length_filtered"), dataset.table("overlong_rows")
    return (kept, overlong) if kept.path.exists() and overlong.path.exists() else None


def _day(dataset: GraphDataset) -> str | None:
    """Today, where the chat template asks for it: its prompts are others tomorrow."""
    texts = [file.read_bytes() for file in rendering_files(policy_folder(dataset.policy)).values()]
    texts.append(to_json(dataset.spec.data.apply_chat_template_kwargs).encode())
    return date.today().isoformat() if any(b"strftime_now" in text for text in texts) else None


def _too_long(prompts: int, longest: list[dict[str, Any]], limit: int) -> str:
    shown = [
        f"  {row['source_file']}, row {row['source_row']}: {row['prompt_length']:,} tokens"
        for row in longest[:5]
    ]
    return "\n".join(
        [
            f"{prompts:,} prompts are longer than data.max_prompt_length ({limit:,} tokens), and "
            "data.filter_overlong_prompts is false:",
            *shown,
            "Shorten them, raise data.max_prompt_length, set data.filter_overlong_prompts to true to set "
            "them aside, or data.truncation to left, right or middle to cut them.",
        ]
    )


def _refused_metadata(refused: Table, dataset: GraphDataset) -> dict[str, Any]:
    return {
        "dagster/row_count": refused.num_rows,
        **column_metadata(dataset, "unrenderable_rows", refused.schema),
        "examples": dataset.preview(refused.head(PREVIEW_ROWS, REFUSED_COLUMNS), REFUSED_COLUMNS),
    }


def _overlong_metadata(
    overlong: Table, longest: list[dict[str, Any]], dataset: GraphDataset
) -> dict[str, Any]:
    return {
        "dagster/row_count": overlong.num_rows,
        **column_metadata(dataset, "overlong_rows", overlong.schema),
        "longest": wide_table(longest, _LONG_COLUMNS),
    }


def _kept_metadata(result: "LengthResult", limit: int, dataset: GraphDataset) -> dict[str, Any]:
    lengths = result.kept.read(["prompt_length", "uncut_length"])
    kept = pc.coalesce(lengths["uncut_length"], lengths["prompt_length"]).to_numpy()
    overlong = result.overlong.read(["prompt_length"])["prompt_length"].to_numpy()
    every = np.concatenate([kept, overlong])
    return {
        "dagster/row_count": len(kept),
        **column_metadata(dataset, "length_filtered", result.kept.schema),
        "overlong": len(overlong),
        "unrenderable": result.refused.num_rows,
        "cut": result.cut,
        **counted("warnings", "code", result.warnings),
        "longest_prompt": int(kept.max(initial=0)),
        "prompt_lengths": histogram({"kept": kept, "overlong": overlong}, "prompt length in tokens", limit),
        "quantiles": _quantiles(every),
        "other_limits": _other_limits(every, limit),
        "rendered_rows": result.rendered,
        "reused_rows": result.reused,
        **({"encoder": result.encoder} if result.encoder else {}),
        **({"encoder_fallback": result.slower} if result.slower else {}),
        "preview": _preview(result.kept, dataset),
    }


def _quantiles(lengths: np.ndarray) -> dg.TableMetadataValue:
    """Of all rendered prompts, fitting or not, before any cut."""
    shares = {"min": 0.0, "median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    rows = [
        {"quantile": name, "tokens": int(np.quantile(lengths, share, method="inverted_cdf"))}
        for name, share in shares.items()
        if len(lengths)
    ]
    return table(rows, ["quantile", "tokens"])


def _other_limits(lengths: np.ndarray, limit: int) -> dg.TableMetadataValue:
    """How many rows would fit other values of `data.max_prompt_length`."""
    rows = [
        {"max_prompt_length": other, "kept": int((lengths <= other).sum())}
        for other in (max(limit // 2, 1), limit, 2 * limit)
    ]
    return table(rows, ["max_prompt_length", "kept"])


def _preview(kept: Table, dataset: GraphDataset) -> dg.MarkdownMetadataValue:
    rows = kept.head(PREVIEW_ROWS, ["uid", "prompt", "prompt_length", "source_file", "source_row"])
    for row in rows:
        row["prompt"] = last_message(json.loads(row["prompt"]))
    return dataset.preview(rows, ["uid", "prompt", "prompt_length", "source_file", "source_row"])
