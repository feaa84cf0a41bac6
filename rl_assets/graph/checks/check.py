"""What a check is: a name, words for a newcomer, and a function that finds failing rows."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import dagster as dg

from rl_assets.base.files import damage_put_aside
from rl_assets.errors import InputError
from rl_assets.graph.checks.findings import Findings
from rl_assets.graph.checks.record import check_key, record, recorded
from rl_assets.graph.dataset import GraphDataset

Severity = dg.AssetCheckSeverity
_LEVEL = {Severity.ERROR: logging.ERROR, Severity.WARN: logging.WARNING}


@dataclass(frozen=True)
class Check:
    """One line of the table from which both the check specs and their results are made.

    Attributes:
        asset: the asset it guards.
        name: its name in the UI.
        description: what passes, in words for someone who has not read the code.
        evaluate: finds what fails, from what the assets stored.
        severity: an ERROR that fails stops the run before the next asset; a WARN is shown. The YAML may say
            otherwise (`checks.severities`).
        may_be_fatal: whether `evaluate` may find what is an ERROR of a WARN too (`Findings.fatal`).
    """

    asset: str
    name: str
    description: str
    evaluate: Callable[[GraphDataset], Findings]
    severity: Severity = Severity.ERROR
    may_be_fatal: bool = False

    def severity_in(self, dataset: GraphDataset, findings: Findings | None = None) -> Severity:
        """Its severity in this dataset: of any failure, or of what was found."""
        own = dataset.spec.checks.severities.get(self.name)  # type: ignore[call-overload]
        if own is not None:
            return Severity(own.upper())
        return Severity.ERROR if findings is not None and findings.fatal else self._usual(dataset)

    def _usual(self, dataset: GraphDataset) -> Severity:
        return self.severity

    def may_block(self, dataset: GraphDataset) -> bool:
        """Whether there is a failure after which nothing is made of the asset."""
        return self.severity_in(dataset, Findings(fatal=self.may_be_fatal)) == Severity.ERROR

    def blocks(self, dataset: GraphDataset, findings: Findings) -> bool:
        """Whether nothing is made of the asset after what was found."""
        return not findings.passed and self.severity_in(dataset, findings) == Severity.ERROR

    def summary(self, findings: Findings) -> str:
        """What a line of the log says of its failure."""
        return f"the check {self.name} on {self.asset} does not pass: {findings.many}\n{findings.words()}"

    def spec(self, dataset: GraphDataset) -> dg.AssetCheckSpec:
        """The check as Dagster declares it."""
        return dg.AssetCheckSpec(
            self.name,
            asset=dataset.key(self.asset),
            description=self.description,
            blocking=self.may_block(dataset),
            partitions_def=dataset.partitions,
        )

    def find(self, dataset: GraphDataset) -> Findings:
        """What fails in what is stored now; damage of what is stored is a finding, not a crash."""
        try:
            with damage_put_aside():
                return self.evaluate(dataset)
        except InputError as error:
            findings = Findings()
            findings.fail(str(error), {"source_file": error.file})
            return findings

    def result(self, dataset: GraphDataset, findings: Findings | None = None) -> dg.AssetCheckResult:
        """What Dagster is told: of `findings`, or without them of what is stored now."""
        findings = findings or self.find(dataset)
        return dg.AssetCheckResult(
            asset_key=dataset.key(self.asset),
            check_name=self.name,
            passed=findings.passed,
            severity=self.severity_in(dataset, findings),
            metadata=findings.metadata(),
        )


def build_check_step(dataset: GraphDataset, asset: str, checks: Iterable[Check]) -> dg.AssetChecksDefinition:
    """One step that evaluates all `checks` of `asset`."""
    checks = list(checks)

    @dg.multi_asset_check(
        name=f"{dataset.name}__{asset}__checks",
        specs=[check.spec(dataset) for check in checks],
        can_subset=True,
    )
    def evaluate(context: dg.AssetCheckExecutionContext) -> Iterable[dg.AssetCheckResult]:
        here = dataset.of(context)
        key = check_key(here, asset)
        findings = recorded(here, asset, key)
        blocking = []
        for check in checks:
            if check.spec(dataset).key in context.selected_asset_check_keys:
                if check.name not in findings:
                    findings[check.name] = check.find(here)
                result = check.result(here, findings[check.name])
                if not result.passed:
                    summary = check.summary(findings[check.name])
                    context.log.log(_LEVEL[result.severity], summary)
                    if check.blocks(here, findings[check.name]):
                        blocking.append(summary)
                yield result
        record(here, asset, key, findings)
        if blocking:
            raise dg.Failure(description="\n".join(blocking), allow_retries=False)

    return evaluate
