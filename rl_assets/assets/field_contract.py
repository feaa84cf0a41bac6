"""`field_contract` and `rejected_rows`: every raw row, accepted whole or refused with a reason."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from rl_assets.assets.dataset import Dataset, refusals
from rl_assets.assets.display import column_schema, last_message, table
from rl_assets.contract import REJECT_SCHEMA, ROW_SCHEMA, ContractResult, RawManifest, apply_contract
from rl_assets.prompts.media_tokens import read_media_tokens
from rl_assets.store import Table, staging

ACCEPTED = """\
The rows that passed the field contract, under one explicit schema, each with its `uid`, its source file
and its source row. Free-form values (`prompt`, `reward_model`, `extra_info`) are JSON text, so they come
out as they went in."""

REJECTED = """\
The rows that the field contract refused: source file and row, a stable reason code, the path of the
field at fault, a message, and the row itself. Nothing is dropped: raw rows = accepted + rejected.

When more rows are refused than `checks.reject_rate.max` allows, this table is written and the run stops;
the last good contract stays in place."""

REJECT_RATE = "reject_rate"
_PREVIEW_ROWS = 8


def build_field_contract(dataset: Dataset) -> dg.AssetsDefinition:
    """The assets `<dataset>/field_contract` and `<dataset>/rejected_rows`, made in one pass."""
    limit = dataset.spec.checks.reject_rate
    reads = {"options": repr(dataset.contract_options)}

    @dg.multi_asset(
        name=f"{dataset.name}__field_contract",
        ins={"raw_files": dg.AssetIn(key=dataset.key("raw_files"))},
        outs={
            "rejected_rows": dg.AssetOut(
                **dataset.describe("rejected_rows", REJECTED, "parquet", reads=reads), dagster_type=Table
            ),
            "field_contract": dg.AssetOut(
                **dataset.describe("field_contract", ACCEPTED, "parquet", reads=reads),
                dagster_type=Table,
                is_required=False,
            ),
        },
        check_specs=[
            dg.AssetCheckSpec(
                REJECT_RATE,
                asset=dataset.key("rejected_rows"),
                blocking=limit.severity == "error",
                description=f"At most {limit.max:.1%} of raw rows are refused (`checks.reject_rate.max`).",
            )
        ],
    )
    def field_contract(
        context: dg.AssetExecutionContext, raw_files: RawManifest
    ) -> Iterator[dg.MaterializeResult]:
        with staging(dataset.storage) as folder, refusals():
            result = apply_contract(
                raw_files,
                replace(dataset.contract_options, special_tokens=_media_tokens(dataset)),
                root=dataset.root,
                folder=folder,
                log=context.log.info,
            )
            share = result.rejected_rows / max(result.rows_in, 1)
            passed = share <= limit.max
            context.log.info(
                f"field contract: {result.accepted_rows:,} rows accepted, {result.rejected_rows:,} rejected "
                f"({share:.1%}); rejected_rows has the reasons"
            )
            yield dg.MaterializeResult(
                asset_key=dataset.key("rejected_rows"),
                value=result.rejected,
                data_version=dg.DataVersion(result.rejected.digest),
                metadata=_rejected_metadata(result, dataset),
                check_results=[
                    dg.AssetCheckResult(
                        check_name=REJECT_RATE,
                        passed=passed,
                        severity=dg.AssetCheckSeverity(limit.severity.upper()),
                        metadata={
                            "reject_rate": share,
                            "allowed": limit.max,
                            "rejected": result.rejected_rows,
                            "raw_rows": result.rows_in,
                            "reasons": _reasons(result),
                        },
                    )
                ],
            )
            if not passed and limit.severity == "error":
                raise dg.Failure(description=_refusal(result, share, limit.max), allow_retries=False)
            yield dg.MaterializeResult(
                asset_key=dataset.key("field_contract"),
                value=result.accepted,
                data_version=dg.DataVersion(result.accepted.digest),
                metadata=_accepted_metadata(result, dataset),
            )

    return field_contract


def _media_tokens(dataset: Dataset) -> tuple[str, ...]:
    return read_media_tokens(dataset.policy) if isinstance(dataset.policy, Path) else ()


def _refusal(result: ContractResult, share: float, allowed: float) -> str:
    """Why the run stops: the first refused rows, as a person would list them."""
    shown = [
        f"  {row['source_file']}, row {row['source_row']}: [{row['code']}] {row['message']}"
        for row in result.rejected.head(5)
    ]
    more = result.rejected_rows - len(shown)
    return "\n".join(
        [
            f"The field contract refuses {result.rejected_rows:,} of {result.rows_in:,} rows ({share:.1%}), "
            f"and checks.reject_rate.max allows {allowed:.1%}:",
            *shown,
            *([f"  … and {more:,} more in rejected_rows"] if more else []),
            "Mend the rows in their files, or raise checks.reject_rate.max. The last contract is untouched.",
        ]
    )


def _reasons(result: ContractResult) -> dg.TableMetadataValue:
    found = sorted(result.by_code.items(), key=lambda item: (-item[1], item[0]))
    return table(({"code": code, "rows": rows} for code, rows in found if rows), ["code", "rows"])


def _rejected_metadata(result: ContractResult, dataset: Dataset) -> dict[str, Any]:
    return {
        "dagster/row_count": result.rejected_rows,
        "dagster/column_schema": column_schema(REJECT_SCHEMA),
        "reasons": _reasons(result),
        "examples": dataset.preview(
            result.rejected.head(_PREVIEW_ROWS, ["source_file", "source_row", "code", "path", "message"]),
            ["source_file", "source_row", "code", "path", "message"],
        ),
    }


def _accepted_metadata(result: ContractResult, dataset: Dataset) -> dict[str, Any]:
    preview = result.accepted.head(
        _PREVIEW_ROWS, ["uid", "split", "data_source", "prompt", "reward_model", "source_file", "source_row"]
    )
    for row in preview:
        row["prompt"] = last_message(json.loads(row["prompt"]))
        row["ground_truth"] = json.loads(row["reward_model"])["ground_truth"]
    return {
        "dagster/row_count": result.accepted_rows,
        "dagster/column_schema": column_schema(ROW_SCHEMA),
        "preview": dataset.preview(
            preview,
            ["uid", "split", "data_source", "prompt", "ground_truth", "source_file", "source_row"],
        ),
        "warnings": table(
            ({"code": code, "rows": rows} for code, rows in sorted(result.warnings.items()) if rows),
            ["code", "rows"],
        ),
        "healed": table(
            ({"kind": kind, "rows": rows} for kind, rows in sorted(result.healed.items()) if rows),
            ["kind", "rows"],
        ),
    }
