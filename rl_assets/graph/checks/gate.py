"""Nothing is made of what a blocking check does not pass, whoever starts the step.

Dagster holds back what comes after a failed blocking check in the same run only. A step that is started
alone, by a backfill or by another run asks here.
"""

from collections.abc import Iterable

from rl_assets.errors import InputError
from rl_assets.graph.checks import CHECKS
from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import Findings
from rl_assets.graph.checks.record import check_key, recorded
from rl_assets.graph.dataset import GraphDataset


def require_passed(dataset: GraphDataset, assets: Iterable[str]) -> None:
    """Refuse to go on from `assets` while a blocking check of one of them fails.

    What a check found is taken from its record where nothing that it reads has changed since; otherwise it
    is evaluated now.

    Raises:
        InputError: a check does not pass; the message has its first problems.
    """
    for asset in assets:
        checks = [check for check in CHECKS if check.asset == asset and check.may_block(dataset)]
        known = recorded(dataset, asset, check_key(dataset, asset)) if checks else {}
        for check in checks:
            findings = known.get(check.name) or check.find(dataset)
            if check.blocks(dataset, findings):
                raise _refusal(dataset, check, findings)


def _refusal(dataset: GraphDataset, check: Check, findings: Findings) -> InputError:
    return InputError(
        found=findings.many,
        expected=f"{dataset.name}/{check.asset} to pass its check {check.name}",
        remedy=f"Fix what it found and materialise {check.asset} again:\n{findings.words()}",
    )
