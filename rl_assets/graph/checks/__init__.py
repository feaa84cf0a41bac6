"""Asset checks: the rules of the graph as a person sees them, one file per theme.

The same rules are enforced in code where they matter (the collator and the rollout refuse what breaks
them), because a blocking check holds back only the run that it is evaluated in.
"""

from itertools import groupby

import dagster as dg

from rl_assets.dataset.dataset import ASSETS
from rl_assets.graph.checks import (
    conservation,
    copies,
    difficulty,
    forms,
    groups,
    media,
    raw_files,
    rendering,
    reward_fields,
    rules,
    scores,
    tensors,
    truncation,
    uids,
    verl_dataset,
)
from rl_assets.graph.checks.check import Check, build_check_step
from rl_assets.graph.dataset import GraphDataset

CHECKS: list[Check] = sorted(
    [
        *raw_files.CHECKS,
        *rules.CHECKS,
        *conservation.CHECKS,
        *uids.CHECKS,
        *copies.CHECKS,
        *media.CHECKS,
        *tensors.CHECKS,
        *rendering.CHECKS,
        *forms.CHECKS,
        *truncation.CHECKS,
        *groups.CHECKS,
        *reward_fields.CHECKS,
        *scores.CHECKS,
        *difficulty.CHECKS,
        *verl_dataset.CHECKS,
    ],
    key=lambda check: ASSETS.index(check.asset),
)
"""Every check of a dataset, in the order of the graph. `reject_rate` is not among them: the contract's own
step evaluates it, before the contract is replaced."""


def build_checks(dataset: GraphDataset) -> list[dg.AssetChecksDefinition]:
    """One step per asset, which evaluates all checks of that asset.

    Those of `rejected_rows` are evaluated by the contract's own step: where it stops the run, a step after it
    would be skipped, and nobody would see which rules were broken.
    """
    return [
        build_check_step(dataset, asset, checks)
        for asset, checks in groupby(CHECKS, key=lambda check: check.asset)
        if asset != "rejected_rows"
    ]
