"""What a check is: a name, a sentence for a newcomer, and a function that finds failing rows."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from rl_assets.assets.dataset import Dataset
from rl_assets.assets.display import table
from rl_assets.errors import InputError

_LEVEL = {dg.AssetCheckSeverity.ERROR: logging.ERROR, dg.AssetCheckSeverity.WARN: logging.WARNING}
SHOWN_ROWS = 20
"""A check shows at most this many failing rows: the event log is kept and shared."""


@dataclass
class Findings:
    """What a check found: numbers, and the rows that fail, each with what is wrong.

    A check passes when nothing was added with `fail`.
    """

    numbers: dict[str, int | float | str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: int = 0

    def fail(self, problem: str, row: Mapping[str, Any] | None = None) -> None:
        """Count a failure; `row` gives its uid, source file and source row where there is one."""
        self.failures += 1
        if len(self.rows) < SHOWN_ROWS:
            place = {key: (row or {}).get(key) for key in ("uid", "source_file", "source_row")}
            self.rows.append({**place, "problem": problem})

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return self.failures == 0


def shown(dataset: Dataset, problem: str) -> str:
    """A problem as the UI may show it: where `previews` is false, without the values after its colon."""
    return problem if dataset.spec.previews else problem.partition(":")[0]


@dataclass(frozen=True)
class Check:
    """One line of the table from which both the check specs and their results are made.

    Attributes:
        asset: the asset it guards.
        name: its name in the UI.
        description: what passes, in words for someone who has not read the code.
        evaluate: finds what fails, from what the assets stored.
        severity: an ERROR that fails stops the run before the next asset; a WARN is shown.
    """

    asset: str
    name: str
    description: str
    evaluate: Callable[[Dataset], Findings]
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR

    def spec(self, dataset: Dataset) -> dg.AssetCheckSpec:
        """The check as Dagster declares it."""
        return dg.AssetCheckSpec(
            self.name,
            asset=dataset.key(self.asset),
            description=self.description,
            blocking=self.severity == dg.AssetCheckSeverity.ERROR,
        )

    def result(self, dataset: Dataset) -> dg.AssetCheckResult:
        """The check evaluated on what is stored now."""
        try:
            findings = self.evaluate(dataset)
        except InputError as error:  # what is stored is damaged: that is a finding, not a crash
            findings = Findings()
            findings.fail(str(error), {"source_file": error.file})
        metadata: dict[str, Any] = {**findings.numbers, "failures": findings.failures}
        if findings.rows:
            metadata["failing_rows"] = table(findings.rows, ["uid", "source_file", "source_row", "problem"])
        return dg.AssetCheckResult(
            asset_key=dataset.key(self.asset),
            check_name=self.name,
            passed=findings.passed,
            severity=self.severity,
            metadata=metadata,
        )


def build_check_step(dataset: Dataset, asset: str, checks: Iterable[Check]) -> dg.AssetChecksDefinition:
    """One step that evaluates all `checks` of `asset`."""
    checks = list(checks)

    @dg.multi_asset_check(
        name=f"{dataset.name}__{asset}__checks",
        specs=[check.spec(dataset) for check in checks],
        can_subset=True,
    )
    def evaluate(context: dg.AssetCheckExecutionContext) -> Iterable[dg.AssetCheckResult]:
        for check in checks:
            if check.spec(dataset).key in context.selected_asset_check_keys:
                result = check.result(dataset)
                if not result.passed:
                    context.log.log(_LEVEL[check.severity], _summary(check, result))
                yield result

    return evaluate


def _summary(check: Check, result: dg.AssetCheckResult) -> str:
    failures = result.metadata["failures"].value
    return (
        f"the check {check.name} on {check.asset} does not pass: {failures} "
        f"{'problem' if failures == 1 else 'problems'}; its table in the UI lists them"
    )
