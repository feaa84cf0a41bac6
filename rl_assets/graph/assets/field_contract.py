"""`field_contract` and `rejected_rows`: every raw row, accepted whole or refused with a reason."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import dagster as dg
from pydantic import BaseModel

from rl_assets.base.digests import digest_file
from rl_assets.base.files import staging
from rl_assets.base.manifests import last_manifest, write_manifest
from rl_assets.contract.files.manifest import RawManifest
from rl_assets.contract.gate import ContractResult, apply_contract
from rl_assets.contract.schema import REJECT_SCHEMA, ROW_SCHEMA
from rl_assets.errors import printable
from rl_assets.graph.columns import column_metadata
from rl_assets.graph.dataset import HIDDEN, GraphDataset, refusals
from rl_assets.graph.display import PREVIEW_ROWS, REFUSED_COLUMNS, counted, last_message, table
from rl_assets.graph.unchanged import step
from rl_assets.policy.control_tokens import read_policy_tokens

ACCEPTED = """\
The rows that passed the field contract, under one explicit schema, each with its `uid`, its source file
and its source row. Free-form values (`prompt`, `reward_model`, `extra_info`) are JSON text, so they come
out as they went in. `rl-assets trace UID` follows a row from its file to its scores."""

REJECTED = """\
The rows that the field contract refused: source file and row, a stable reason code, the path of the
field at fault, a message, and the row itself. Nothing is dropped: raw rows = accepted + rejected.
`rl-assets trace FILE:ROW` shows a row with everything that is wrong with it.

When more rows are refused than `checks.reject_rate.max` allows, this table is written and the run stops;
the last good contract stays in place."""

REJECT_RATE = "reject_rate"
MEDIA_FILES = "media_files.json"


class MediaFiles(BaseModel):
    """The media files that the rows named when they were judged, by path from the project's top folder."""

    paths: list[str]


def build_field_contract(dataset: GraphDataset) -> dg.AssetsDefinition:
    """The assets `<dataset>/field_contract` and `<dataset>/rejected_rows`, made in one pass."""
    from rl_assets.graph.checks import rules  # the checks are made of assets

    reads = {"options": repr(dataset.contract_options)}

    @step(dataset, world=_world)
    def judged(
        dataset: GraphDataset, context: dg.AssetExecutionContext, raw_files: RawManifest
    ) -> Iterator[dg.MaterializeResult[Any]]:
        with staging(dataset.storage) as folder, refusals():
            tokens = read_policy_tokens(dataset.policy)
            result = apply_contract(
                raw_files,
                replace(dataset.contract_options, special_tokens=tokens.media, control_tokens=tokens.control),
                root=dataset.root,
                folder=folder,
                log=context.log.info,
            )
            context.log.info(
                f"field contract: {result.accepted_rows:,} rows accepted, {result.rejected_rows:,} rejected; "
                "rejected_rows has the reasons"
            )
            if found := [f"{code} {rows:,}" for code, rows in sorted(result.warnings.items()) if rows]:
                context.log.warning(f"field contract: rows with warnings: {', '.join(found)}")
            paths = sorted(os.path.relpath(path, dataset.root) for path in result.media_files)
            write_manifest(dataset.storage / MEDIA_FILES, MediaFiles(paths=paths))
            yield dg.MaterializeResult(
                asset_key=dataset.key("rejected_rows"),
                value=result.rejected,
                data_version=dg.DataVersion(result.rejected.digest),
                metadata=_rejected_metadata(result, dataset),
            )
            yield dg.MaterializeResult(
                asset_key=dataset.key("field_contract"),
                value=result.accepted,
                data_version=dg.DataVersion(result.accepted.digest),
                metadata=_accepted_metadata(result, dataset),
            )

    @dg.multi_asset(
        name=f"{dataset.name}__field_contract",
        ins={"raw_files": dg.AssetIn(key=dataset.key("raw_files"))},
        outs={
            "rejected_rows": dg.AssetOut(
                **dataset.describe("rejected_rows", REJECTED, "parquet", reads=reads)
            ),
            "field_contract": dg.AssetOut(
                **dataset.describe("field_contract", ACCEPTED, "parquet", reads=reads), is_required=False
            ),
        },
        partitions_def=dataset.partitions,
        check_specs=[_reject_rate_spec(dataset), *(check.spec(dataset) for check in rules.CHECKS)],
    )
    def field_contract(
        context: dg.AssetExecutionContext, raw_files: RawManifest
    ) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult | dg.AssetObservation]:
        # The rate is held against the limit outside the step's body: another limit judges no row again.
        for result in judged(context, raw_files=raw_files):
            if result.asset_key != dataset.key("rejected_rows"):
                yield result
                continue
            verdict = _reject_rate(dataset, result, raw_files.rows)
            yield result._replace(check_results=[verdict])
            here, blocking = dataset.of(context), []
            for rule, summary in rules.evaluate_rules(here):
                yield rule
                if not rule.passed and rule.severity == dg.AssetCheckSeverity.ERROR:
                    blocking.append(summary)
                elif not rule.passed:
                    context.log.warning(summary)
            if not verdict.passed:
                problem = _refusal(here, raw_files.rows)
                if dataset.spec.checks.reject_rate.severity == "error":
                    blocking.insert(0, problem)
                else:
                    context.log.warning(problem)
            if blocking:
                problem = "\n".join(blocking)
                yield _untouched(here, problem)
                raise dg.Failure(
                    description=f"{problem}\nThe last contract is untouched.", allow_retries=False
                )

    return field_contract


def _world(dataset: GraphDataset) -> dict[str, Any]:
    """What the contract reads beside the raw files: the policy's media tokens, and the media themselves."""
    listed = last_manifest(MediaFiles, dataset.storage / MEDIA_FILES)
    files = {path: dataset.root / path for path in (listed.paths if listed else ())}
    return {
        "tokens": read_policy_tokens(dataset.policy),
        "media": {path: digest_file(file) if file.is_file() else None for path, file in files.items()},
    }


def _reject_rate_spec(dataset: GraphDataset) -> dg.AssetCheckSpec:
    limit = dataset.spec.checks.reject_rate
    return dg.AssetCheckSpec(
        REJECT_RATE,
        asset=dataset.key("rejected_rows"),
        blocking=limit.severity == "error",
        partitions_def=dataset.partitions,
        description=f"At most {limit.max:.1%} of raw rows are refused (`checks.reject_rate.max`).",
    )


def _reject_rate(
    dataset: GraphDataset, rejected: dg.MaterializeResult[Any], raw_rows: int
) -> dg.AssetCheckResult:
    """The check on a table of rejected rows that was made now or before."""
    limit = dataset.spec.checks.reject_rate
    metadata: Mapping[str, Any] = rejected.metadata or {}
    rows = int(metadata["dagster/row_count"])
    share = rows / max(raw_rows, 1)
    return dg.AssetCheckResult(
        check_name=REJECT_RATE,
        passed=share <= limit.max,
        severity=dg.AssetCheckSeverity(limit.severity.upper()),
        metadata={
            "reject_rate": share,
            "allowed": limit.max,
            "rejected": rows,
            "raw_rows": raw_rows,
            "reasons": metadata["reasons"],
        },
    )


def _refusal(dataset: GraphDataset, raw_rows: int) -> str:
    """What is wrong: the first refused rows, as a person would list them."""
    allowed, rows = dataset.spec.checks.reject_rate.max, dataset.table("rejected_rows")
    rejected = rows.num_rows
    codes = Counter(row["code"] for row in rows.rows(("code",)))

    def said(row: Mapping[str, Any]) -> str:
        return str(row["message"]) if dataset.spec.previews else HIDDEN

    shown = [
        printable(f"  {row['source_file']}, row {row['source_row']}: [{row['code']}] {said(row)}")
        for row in rows.head(5)
    ]
    more = rejected - len(shown)
    return "\n".join(
        [
            f"The field contract refuses {rejected:,} of {raw_rows:,} rows ({rejected / raw_rows:.1%}), "
            f"and checks.reject_rate.max allows {allowed:.1%}:",
            *(f"  {code}: {_rows(count)}" for code, count in codes.most_common()),
            "The first of them:",
            *shown,
            *([f"  … and {more:,} more in rejected_rows"] if more else []),
            "Correct the rows in their files, or raise checks.reject_rate.max. "
            f"Everything about them: `rl-assets check --dataset {dataset.name}`.",
        ]
    )


def _untouched(dataset: GraphDataset, problem: str) -> dg.AssetObservation:
    """What the page of `field_contract` says of a run that stopped before it was replaced."""
    return dg.AssetObservation(
        dataset.key("field_contract"),
        partition=dataset.partition,
        description="Not replaced: the run was stopped by what rejected_rows holds.",
        metadata={"why": dg.MetadataValue.text(problem)},
    )


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _reasons(result: ContractResult) -> dg.TableMetadataValue:
    found = sorted(result.by_code.items(), key=lambda item: (-item[1], item[0]))
    return table(({"code": code, "rows": rows} for code, rows in found if rows), ["code", "rows"])


def _rejected_metadata(result: ContractResult, dataset: GraphDataset) -> dict[str, Any]:
    return {
        "dagster/row_count": result.rejected_rows,
        **column_metadata(dataset, "rejected_rows", REJECT_SCHEMA),
        "reasons": _reasons(result),
        "examples": dataset.preview(result.rejected.head(PREVIEW_ROWS, REFUSED_COLUMNS), REFUSED_COLUMNS),
    }


def _accepted_metadata(result: ContractResult, dataset: GraphDataset) -> dict[str, Any]:
    preview = result.accepted.head(
        PREVIEW_ROWS, ["uid", "split", "data_source", "prompt", "reward_model", "source_file", "source_row"]
    )
    for row in preview:
        row["prompt"] = last_message(json.loads(row["prompt"]))
        row["ground_truth"] = json.loads(row["reward_model"])["ground_truth"]
    return {
        "dagster/row_count": result.accepted_rows,
        **column_metadata(dataset, "field_contract", ROW_SCHEMA),
        "preview": dataset.preview(
            preview,
            ["uid", "split", "data_source", "prompt", "ground_truth", "source_file", "source_row"],
        ),
        **counted("warnings", "code", result.warnings),
        **counted("repaired", "kind", result.repaired),
    }
