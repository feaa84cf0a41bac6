"""Scoring: a scorer for every data_source, right answers that score, and responses that are scored."""

from collections import Counter
from typing import Any

import dagster as dg

from rl_assets.errors import InputError
from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import PLACE, Findings, shown
from rl_assets.graph.dataset import GraphDataset
from rl_assets.rewards.builtin import has_builtin
from rl_assets.rewards.solution import Writer
from rl_assets.rewards.trial import (
    CUSTOM_SAMPLE,
    SAMPLE,
    SECONDS,
    never_scored_problem,
    odd_rows,
    tags_problem,
    try_answers,
)


def _scorer_known(dataset: GraphDataset) -> Findings:
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


def _perfect_answers_score(dataset: GraphDataset) -> Findings:
    pool, elsewhere = dataset.score_pool, dataset.spec.contract.known_data_sources
    log = dg.get_dagster_logger().info
    contract = dataset.table("field_contract")
    trial = try_answers(contract, pool, elsewhere, _writer(dataset), log)
    findings = Findings({"rows": trial.tried.total()})
    if trial.not_tried:
        findings.numbers["rows_not_tried"] = trial.not_tried
    if trial.tags:
        findings.fail(tags_problem(trial.tags))
    for first in trial.never_scored():
        findings.fatal = True
        source, error = first.row["data_source"], shown(dataset, first.error or "")
        findings.fail(never_scored_problem(pool, source, trial.tried[source], error), first.row)
    for one in trial.failing:
        findings.fail(shown(dataset, one.problem), one.row)
    for row, problem in odd_rows(contract, trial.odd):
        findings.fail(problem, row)
    return findings


def _writer(dataset: GraphDataset) -> Writer | None:
    """None where the policy cannot be read, which the steps that need it say."""
    try:
        renderer = dataset.renderer()
    except InputError:
        return None
    return Writer(renderer.tokenizer, dataset.spec.data.apply_chat_template_kwargs)


def _every_response_scored(dataset: GraphDataset) -> Findings:
    findings, reasons = Findings(), Counter[str]()
    elsewhere = dataset.spec.contract.known_data_sources
    for row in dataset.table("reward_scores").rows([*PLACE, "data_source", "error"]):
        if row["error"] is not None and row["data_source"] not in elsewhere:
            reasons[row["error"].split(":")[0]] += 1
            findings.fail(shown(dataset, row["error"]), row)
    findings.numbers.update(reasons)
    return findings


def _scorer_works(dataset: GraphDataset) -> Findings:
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
        f"own: more than an empty response). Up to {SAMPLE:,} rows of every `data_source` are tried, and "
        f"{CUSTOM_SAMPLE} with a function of your own, and one of each kind of ground truth, which must not "
        f"be mixed then; none is begun after {SECONDS:g} s. An answer is written as the policy would write "
        "it: after what its chat template writes, and in its tokens. Tags that verl drops, since they are "
        "special tokens, are named. Where nothing that was tried of a source has a score, the run stops.",
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
