"""Scoring: a scorer for every data_source, right answers that score, and responses that are scored."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dagster as dg

from rl_assets.assets.dataset import Dataset
from rl_assets.checks.check import Check
from rl_assets.checks.findings import PLACE, SHOWN_ROWS, Findings, shown
from rl_assets.errors import InputError
from rl_assets.rewards.builtin import has_builtin
from rl_assets.rewards.selftest import Failing, failing_answers

_SAMPLE, _CUSTOM_SAMPLE = 1000, 5
_COLUMNS = [*PLACE, "data_source", "reward_model", "extra_info"]
_KINDS = {
    str: "text",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def _scorer_known(dataset: Dataset) -> Findings:
    findings = Findings({"reward_function": dataset.reward_function.path or "built-in"})
    if dataset.reward_function.path is not None:
        try:
            dataset.score_pool.require_loadable()
        except InputError as error:
            findings.fail(str(error))
        return findings
    sources: Counter[str] = Counter()
    first: dict[str, dict[str, Any]] = {}
    for row in dataset.table("field_contract").rows([*PLACE, "data_source"]):
        sources[row["data_source"]] += 1
        first.setdefault(row["data_source"], row)
    findings.numbers["data_sources"] = len(sources)
    for source, rows in sorted(sources.items()):
        if not has_builtin(source) and source not in dataset.spec.contract.known_data_sources:
            findings.fail(
                f"{rows:,} rows of {source!r}: no built-in scorer reads it without a service or running "
                "code. Name a reward.custom_reward_function, or list it in contract.known_data_sources where "
                "its responses are scored elsewhere. The first is this one",
                first[source],
            )
    return findings


def _perfect_answers_score(dataset: Dataset) -> Findings:
    custom = dataset.reward_function.path is not None
    kinds = _Kinds() if custom else None
    findings, rows = Findings(), list(_sample(dataset, _CUSTOM_SAMPLE if custom else _SAMPLE, kinds))
    findings.numbers["rows"] = len(rows)
    tried = Counter(row["data_source"] for row in rows)
    failing = list(failing_answers(rows, dataset.score_pool))
    without = Counter(one.row["data_source"] for one in failing if one.error is not None)
    for source in sorted(without):
        if without[source] == tried[source]:
            findings.fatal = True
            first = next(one for one in failing if one.row["data_source"] == source)
            findings.fail(_never_scored(dataset, first, tried[source]), first.row)
    for one in failing:
        findings.fail(shown(dataset, one.problem), one.row)
    if kinds is not None:
        kinds.report(findings)
    return findings


def _never_scored(dataset: Dataset, first: Failing, tried: int) -> str:
    function = dataset.reward_function
    scorer = "the built-in scorer" if function.path is None else f"{function.name} of {function.path}"
    return (
        f"field `reward.custom_reward_function`: found no score for any of the {tried} tried rows of "
        f"{first.row['data_source']!r} ({shown(dataset, first.error or '')}), expected a finite number, or a "
        f"dict with `score`, within {dataset.spec.reward.compute_score_timeout:g} s. Correct {scorer}, or "
        "list the source in contract.known_data_sources where its responses are scored elsewhere"
    )


def _sample(dataset: Dataset, limit: int, kinds: "_Kinds | None") -> Iterator[dict[str, Any]]:
    """The first `limit` rows of every data_source that is scored here, their JSON decoded; with `kinds` also
    the first of each kind of ground truth, and the first empty one."""
    elsewhere = set(dataset.spec.contract.known_data_sources)
    taken: Counter[str] = Counter()
    for row in dataset.table("field_contract").rows(_COLUMNS):
        source = row["data_source"]
        if source in elsewhere or (kinds is None and taken[source] >= limit):
            continue
        truth = json.loads(row["reward_model"]).get("ground_truth")
        new = kinds is not None and kinds.add(row, truth)
        if taken[source] < limit or new:
            taken[source] += 1
            yield {**row, "ground_truth": truth, "extra_info": json.loads(row["extra_info"])}


class _Kinds:
    """Which kinds of ground truth each data_source has, and where."""

    def __init__(self) -> None:
        self._rows: dict[str, Counter[str]] = {}
        self._first: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._empty: set[str] = set()

    def add(self, row: dict[str, Any], truth: Any) -> bool:
        """Count a row; whether it is the first of its source and kind, or the first empty one."""
        source, kind = row["data_source"], _KINDS.get(type(truth), "null")
        self._rows.setdefault(source, Counter())[kind] += 1
        first = self._first.setdefault((source, kind), [])
        if len(first) < SHOWN_ROWS:
            first.append({name: row[name] for name in PLACE})
        empty = truth in (None, "", [], {}) and source not in self._empty
        if empty:
            self._empty.add(source)
        return empty or self._rows[source][kind] == 1

    def report(self, findings: Findings) -> None:
        """Every row whose kind is not that of most rows of its source fails."""
        for source, rows in sorted(self._rows.items()):
            (usual, most), *others = rows.most_common()
            for kind, many in others:
                problem = (
                    f"field `reward_model.ground_truth`: found {kind}, expected {usual}, as {most:,} of "
                    f"{rows.total():,} rows of {source!r} have. Store them all alike, or see that the "
                    "reward function reads both"
                )
                first = self._first[source, kind]
                for row in first:
                    findings.fail(problem, row)
                findings.failures += many - len(first)


def _every_response_scored(dataset: Dataset) -> Findings:
    findings, reasons = Findings(), Counter[str]()
    elsewhere = dataset.spec.contract.known_data_sources
    for row in dataset.table("reward_scores").rows([*PLACE, "data_source", "error"]):
        if row["error"] is not None and row["data_source"] not in elsewhere:
            reasons[row["error"].split(":")[0]] += 1
            findings.fail(shown(dataset, row["error"]), row)
    findings.numbers.update(reasons)
    return findings


def _scorer_works(dataset: Dataset) -> Findings:
    findings = Findings()
    scored, errors = Counter[str](), dict[str, dict[str, Any]]()
    columns = [*PLACE, "data_source", "score", "error"]
    for row in dataset.table("reward_scores").rows(columns):
        scored[row["data_source"]] += row["score"] is not None
        if row["error"] is not None:
            errors.setdefault(row["data_source"], row)
    for source, count in sorted(scored.items()):
        if count == 0 and source not in dataset.spec.contract.known_data_sources:
            first = errors[source]
            problem = f"no response of {source!r} could be scored: {shown(dataset, first['error'])}"
            findings.fail(problem, first)
    findings.numbers["scored"] = scored.total()
    return findings


CHECKS = [
    Check(
        "field_contract",
        "scorer_known",
        "The reward function can be loaded; without one, every `data_source` has a built-in scorer or is "
        "listed in `contract.known_data_sources`.",
        _scorer_known,
    ),
    Check(
        "field_contract",
        "perfect_answers_score",
        "The ground truth, written as a perfect answer, scores the maximum (with a reward function of your "
        f"own: more than an empty response). Up to {_SAMPLE:,} rows of every `data_source` are tried, and "
        f"{_CUSTOM_SAMPLE} with a function of your own, and one of each kind of ground truth, which must not "
        "be mixed then. Where nothing that was tried of a source has a score, the run stops.",
        _perfect_answers_score,
        dg.AssetCheckSeverity.WARN,
        may_be_fatal=True,
    ),
    Check(
        "reward_scores",
        "scorer_works",
        "Of every `data_source` that is scored here, at least one response has a score. Where none has, the "
        "scorer itself is broken for it.",
        _scorer_works,
    ),
    Check(
        "reward_scores",
        "every_response_scored",
        "No scorer raised an error, took longer than `reward.compute_score_timeout` or ended its process "
        "while it scored a response.",
        _every_response_scored,
        dg.AssetCheckSeverity.WARN,
    ),
]
