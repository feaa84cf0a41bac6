"""`length_filtered`, `overlong_rows` and `unrenderable_rows`: which prompts fit once they are rendered."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from rl_assets.assets.dataset import Dataset, refusals
from rl_assets.assets.display import column_schema, histogram, last_message, wide_table
from rl_assets.store import Table, staging

if TYPE_CHECKING:
    from rl_assets.prompts import LengthResult

FITTING = """\
The accepted rows whose rendered prompt fits `data.max_prompt_length`: chat template, tools and
generation prompt included. `prompt_ids` are the ids that the rollout generates from; nothing is
tokenised again."""

OVERLONG = """\
The accepted rows whose rendered prompt is longer than `data.max_prompt_length`, with their
`prompt_length`. They are whole and valid, only too long."""

UNRENDERABLE = """\
The accepted rows whose prompt could not be rendered, with the template's own message. They are not
overlong: something in them does not fit this policy's template."""

_PREVIEW_ROWS = 8
_LONG_COLUMNS = ["source_file", "source_row", "uid", "prompt_length"]


def build_length_filtered(dataset: Dataset) -> dg.AssetsDefinition:
    """The assets of the length gate, made in one pass over the contract."""
    spec = dataset.spec
    reads = {
        "policy": spec.policy.path,
        "data": spec.data.model_dump(
            include={"max_prompt_length", "apply_chat_template_kwargs", "tool_config_path"}
        ),
    }

    @dg.multi_asset(
        name=f"{dataset.name}__length_filtered",
        ins={"field_contract": dg.AssetIn(key=dataset.key("field_contract"))},
        outs={
            name: dg.AssetOut(
                **dataset.describe(name, text, "transformers", "parquet", reads=reads),
                dagster_type=Table,
                is_required=name != "length_filtered",
            )
            for name, text in {
                "overlong_rows": OVERLONG,
                "unrenderable_rows": UNRENDERABLE,
                "length_filtered": FITTING,
            }.items()
        },
    )
    def length_filtered(
        context: dg.AssetExecutionContext, field_contract: Table
    ) -> Iterator[dg.MaterializeResult]:
        from rl_assets.prompts import filter_by_length

        limit = spec.data.max_prompt_length
        with staging(dataset.storage) as folder, refusals():
            result = filter_by_length(
                field_contract,
                dataset.renderer(),
                max_prompt_length=limit,
                folder=folder,
                log=context.log.info,
            )
            longest = sorted(result.overlong.rows(_LONG_COLUMNS), key=lambda row: -row["prompt_length"])
            parts = {
                "unrenderable_rows": (result.refused, _refused_metadata(result.refused, dataset)),
                "overlong_rows": (result.overlong, _overlong_metadata(result.overlong, longest)),
                "length_filtered": (result.kept, _kept_metadata(result, longest, limit, dataset)),
            }
            for name, (rows, metadata) in parts.items():
                if name == "length_filtered" and longest and not spec.data.filter_overlong_prompts:
                    raise dg.Failure(description=_too_long(longest, limit), allow_retries=False)
                yield dg.MaterializeResult(
                    asset_key=dataset.key(name),
                    value=rows,
                    data_version=dg.DataVersion(rows.digest),
                    metadata=metadata,
                )

    return length_filtered


def _too_long(longest: list[dict[str, Any]], limit: int) -> str:
    shown = [
        f"  {row['source_file']}, row {row['source_row']}: {row['prompt_length']:,} tokens"
        for row in longest[:5]
    ]
    return "\n".join(
        [
            f"{len(longest):,} prompts are longer than data.max_prompt_length ({limit:,} tokens), and "
            "data.filter_overlong_prompts is false:",
            *shown,
            "Shorten them, raise data.max_prompt_length, or set data.filter_overlong_prompts to true to set "
            "them aside.",
        ]
    )


def _refused_metadata(refused: Table, dataset: Dataset) -> dict[str, Any]:
    columns = ["source_file", "source_row", "code", "path", "message"]
    return {
        "dagster/row_count": refused.num_rows,
        "dagster/column_schema": column_schema(refused.schema),
        "examples": dataset.preview(refused.head(_PREVIEW_ROWS, columns), columns),
    }


def _overlong_metadata(overlong: Table, longest: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "dagster/row_count": len(longest),
        "dagster/column_schema": column_schema(overlong.schema),
        "longest": wide_table(longest[:_PREVIEW_ROWS], _LONG_COLUMNS),
    }


def _kept_metadata(
    result: "LengthResult", longest: list[dict[str, Any]], limit: int, dataset: Dataset
) -> dict[str, Any]:
    kept = result.kept.read(["prompt_length"]).column(0).to_pylist()
    overlong = [row["prompt_length"] for row in longest]
    return {
        "dagster/row_count": len(kept),
        "dagster/column_schema": column_schema(result.kept.schema),
        "overlong": len(overlong),
        "unrenderable": result.refused.num_rows,
        "longest_prompt": max(kept, default=0),
        "prompt_lengths": histogram({"kept": kept, "overlong": overlong}, "prompt length in tokens", limit),
        "preview": _preview(result.kept, dataset),
    }


def _preview(kept: Table, dataset: Dataset) -> dg.MarkdownMetadataValue:
    rows = kept.head(_PREVIEW_ROWS, ["uid", "prompt", "prompt_length", "source_file", "source_row"])
    for row in rows:
        row["prompt"] = last_message(json.loads(row["prompt"]))
    return dataset.preview(rows, ["uid", "prompt", "prompt_length", "source_file", "source_row"])
