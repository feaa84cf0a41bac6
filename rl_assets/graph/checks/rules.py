"""The contract's rules by theme, made from its own table: which of them refused rows, and which rows."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import groupby

import dagster as dg

from rl_assets.contract.rules.codes import CODES
from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import PLACE, Findings, shown
from rl_assets.graph.dataset import GraphDataset


def _theme(code: str) -> str:
    return code.split(".")[0]


THEMES: dict[str, list[str]] = {
    theme: list(codes)
    for theme, codes in groupby(
        sorted(code for code, rule in CODES.items() if rule.stage in ("read", "contract")),
        key=_theme,
    )
}
"""The reason codes of each theme (`prompt`, `media`, `reward_model`, …)."""


def broken_rules(dataset: GraphDataset) -> dict[str, Findings]:
    """By theme, the rows that its rules refused.

    A rule that refused nothing is reported as zero, so that its history has no gaps.
    """
    found: Counter[str] = Counter()
    themes = {theme: Findings() for theme in THEMES}
    for row in dataset.table("rejected_rows").rows([*PLACE, "errors"]):
        for error in row["errors"]:
            found[error["code"]] += 1
            problem = f"[{error['code']}] {error['path'] or 'row'}: {error['message']}"
            themes[_theme(error["code"])].fail(shown(dataset, problem), row)
    severity = dataset.contract_options.severity
    for theme, findings in themes.items():
        findings.numbers = {code: found[code] for code in THEMES[theme] if severity[code] == "error"}
    return themes


def evaluate_rules(dataset: GraphDataset) -> Iterator[tuple[dg.AssetCheckResult, str]]:
    """The result of each check, from one pass over the rejected rows, and its summary in words."""
    found = broken_rules(dataset)
    for theme, check in zip(THEMES, CHECKS, strict=True):
        yield check.result(dataset, found[theme]), check.summary(found[theme])


def _refused_by(theme: str, dataset: GraphDataset) -> Findings:
    return broken_rules(dataset)[theme]


CHECKS = [
    Check(
        "rejected_rows",
        f"{theme}_rules",
        f"No row was refused by the contract's rules on `{theme}`. The numbers count each rule's rows, the "
        "table names them; `rl-assets codes CODE` explains a rule and what to do.",
        partial(_refused_by, theme),
        dg.AssetCheckSeverity.WARN,
    )
    for theme in THEMES
]
