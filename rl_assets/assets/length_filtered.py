"""`length_filtered`, `overlong_rows` and `unrenderable_rows`: which prompts fit once they are rendered."""

import json
from collections.abc import Iterator
from typing import Any

import dagster as dg

from rl_assets.assets.dataset import Dataset, refusals
from rl_assets.assets.display import column_schema, histogram, last_message, table, wide_table
from rl_assets.store import Table, staging

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
        from rl_assets.prompts import LENGTH_FILTERED_SCHEMA, OVERLONG_SCHEMA, filter_by_length

        limit = spec.data.max_prompt_length
        with staging(dataset.storage) as folder, refusals():
            result = filter_by_length(
                field_contract,
                dataset.renderer(),
                max_prompt_length=limit,
                folder=folder,
                log=context.log.info,
            )
            kept, overlong, refused = (
                part.num_rows for part in (result.kept, result.overlong, result.refused)
            )
            longest = list(result.overlong.rows(["source_file", "source_row", "uid", "prompt_length"]))
            lengths = {
                "kept": result.kept.read(["prompt_length"]).column(0).to_pylist(),
                "overlong": [row["prompt_length"] for row in longest],
            }
            yield dg.MaterializeResult(
                asset_key=dataset.key("unrenderable_rows"),
                value=result.refused,
                data_version=dg.DataVersion(result.refused.digest),
                metadata=_refused_metadata(result.refused),
            )
            longest.sort(key=lambda row: -row["prompt_length"])
            yield dg.MaterializeResult(
                asset_key=dataset.key("overlong_rows"),
                value=result.overlong,
                data_version=dg.DataVersion(result.overlong.digest),
                metadata={
                    "dagster/row_count": overlong,
                    "dagster/column_schema": column_schema(OVERLONG_SCHEMA),
                    "longest": table(
                        longest[:_PREVIEW_ROWS], ["source_file", "source_row", "uid", "prompt_length"]
                    ),
                },
            )
            if overlong and not spec.data.filter_overlong_prompts:
                raise dg.Failure(description=_too_long(longest, limit), allow_retries=False)
            yield dg.MaterializeResult(
                asset_key=dataset.key("length_filtered"),
                value=result.kept,
                data_version=dg.DataVersion(result.kept.digest),
                metadata={
                    "dagster/row_count": kept,
                    "dagster/column_schema": column_schema(LENGTH_FILTERED_SCHEMA),
                    "overlong": overlong,
                    "unrenderable": refused,
                    "longest_prompt": max(lengths["kept"], default=0),
                    "prompt_lengths": histogram(lengths, "prompt length in tokens", limit),
                    "preview": _preview(result.kept, dataset),
                },
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


def _refused_metadata(refused: Table) -> dict[str, Any]:
    columns = ["source_file", "source_row", "code", "path", "message"]
    return {
        "dagster/row_count": refused.num_rows,
        "dagster/column_schema": column_schema(refused.schema),
        "examples": wide_table(refused.head(_PREVIEW_ROWS, columns), columns),
    }


def _preview(kept: Table, dataset: Dataset) -> dg.MarkdownMetadataValue:
    rows = kept.head(_PREVIEW_ROWS, ["uid", "prompt", "prompt_length", "source_file", "source_row"])
    for row in rows:
        row["prompt"] = last_message(json.loads(row["prompt"]))
    return dataset.preview(rows, ["uid", "prompt", "prompt_length", "source_file", "source_row"])
