"""Scoring: a scorer for every data_source, right answers that score, and responses that are scored."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dagster as dg

from rl_assets.assets.dataset import Dataset
from rl_assets.checks.check import Check
from rl_assets.checks.findings import Findings, shown
from rl_assets.errors import InputError
from rl_assets.rewards.builtin import has_builtin
from rl_assets.rewards.selftest import failing_answers

_SAMPLE, _CUSTOM_SAMPLE = 1000, 5
_COLUMNS = ["uid", "source_file", "source_row", "data_source", "reward_model", "extra_info"]


def _scorer_known(dataset: Dataset) -> Findings:
    findings = Findings({"reward_function": dataset.reward_function.path or "built-in"})
    if dataset.reward_function.path is not None:
        try:
            list(dataset.score_pool.score([]))
        except InputError as error:
            findings.fail(str(error))
        return findings
    sources: Counter[str] = Counter()
    first: dict[str, dict[str, Any]] = {}
    for row in dataset.table("field_contract").rows(["uid", "source_file", "source_row", "data_source"]):
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
    limit = _SAMPLE if dataset.reward_function.path is None else _CUSTOM_SAMPLE
    findings, rows = Findings(), list(_sample(dataset, limit))
    findings.numbers["rows"] = len(rows)
    for row, problem in failing_answers(rows, dataset.score_pool):
        findings.fail(shown(dataset, problem), row)
    return findings


def _sample(dataset: Dataset, limit: int) -> Iterator[dict[str, Any]]:
    """The first `limit` rows of every data_source that is scored here, their JSON decoded."""
    taken: Counter[str] = Counter(dict.fromkeys(dataset.spec.contract.known_data_sources, limit))
    for row in dataset.table("field_contract").rows(_COLUMNS):
        if taken[row["data_source"]] < limit:
            taken[row["data_source"]] += 1
            truth = json.loads(row["reward_model"]).get("ground_truth")
            yield {**row, "ground_truth": truth, "extra_info": json.loads(row["extra_info"])}


def _every_response_scored(dataset: Dataset) -> Findings:
    findings, reasons = Findings(), Counter[str]()
    elsewhere = dataset.spec.contract.known_data_sources
    for row in dataset.table("reward_scores").rows(
        ["uid", "source_file", "source_row", "data_source", "error"]
    ):
        if row["error"] is not None and row["data_source"] not in elsewhere:
            reasons[row["error"].split(":")[0]] += 1
            findings.fail(shown(dataset, row["error"]), row)
    findings.numbers.update(reasons)
    return findings


def _scorer_works(dataset: Dataset) -> Findings:
    findings = Findings()
    scored, errors = Counter[str](), dict[str, dict[str, Any]]()
    columns = ["uid", "source_file", "source_row", "data_source", "score", "error"]
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
        f"{_CUSTOM_SAMPLE} with a function of your own.",
        _perfect_answers_score,
        dg.AssetCheckSeverity.WARN,
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
