"""The field contract as a linter: rows are judged, nothing is stored."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_assets.contract.files.manifest import RawManifest
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import ContractResult, apply_contract
from rl_assets.contract.rules.codes import CODES
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.policy.checkpoint import load_tokenizer
from rl_assets.policy.control_tokens import PolicyTokens, read_policy_tokens

if TYPE_CHECKING:
    from rl_assets.base.tables import Table
    from rl_assets.prompts.render import PromptRenderer
    from rl_assets.rewards.pool import ScorePool
    from rl_assets.trainset.unread import Trainers

OVERLONG = "prompt.overlong"


class Issue(NamedTuple):
    """One line of the linter: what was found where. `row` counts from 0 in its file."""

    file: str
    row: int
    code: str
    field: str | None
    message: str


class Report(NamedTuple):
    """What the linter says about a set of files.

    Attributes:
        accepted: rows that are accepted.
        total: rows of the files.
        rejected: why rows are rejected; a row may have several.
        warnings: what else was found.
        stops: what stops the run though its rows are accepted.
        notes: what was found of the policy, which is of no row.
        manifest: the files.
    """

    accepted: int
    total: int
    rejected: list[Issue]
    warnings: list[Issue]
    stops: list[Issue]
    notes: list[str]
    manifest: RawManifest


def lint(
    files: list[str],
    options: ContractOptions,
    *,
    val_files: list[str] | None = None,
    renderer: "PromptRenderer | None" = None,
    max_prompt_length: int | None = None,
    pool: "ScorePool | None" = None,
    trainers: "Trainers | None" = None,
    root: Path | None = None,
    follow_links: bool = True,
) -> Report:
    """Judge the rows of `files`; nothing is written.

    Args:
        renderer: renders the accepted rows too, where there is one; a row that its template refuses is
            rejected, and one longer than `max_prompt_length` is warned of.
        pool: scores right answers of accepted rows, where there is one, as `perfect_answers_score` does.
        trainers: what they do not read of the rendered rows is told, as `trainers_read_rows` does.
        root: what relative paths start from, by default the current folder.
        follow_links: as in `scan_files`; who names files to be judged, and not kept, means what they lead to.

    Raises:
        InputError: a file cannot be read, or the reward function cannot be loaded.
    """
    root = root or Path.cwd()
    manifest = scan_files(files, val_files, root=root, follow_links=follow_links)
    with tempfile.TemporaryDirectory(prefix="rl-assets-") as name:
        folder = Path(name)
        result = apply_contract(manifest, options, root=root, folder=folder, examples=None)
        rejected = list(_issues(result.rejected.rows(_REJECT_COLUMNS), "errors"))
        warnings = [
            Issue(warned.file, warned.row, *warned.finding)
            for found in result.examples.values()
            for warned in found
        ]
        accepted = result.accepted_rows
        stops, notes = list[Issue](), list[str]()
        if renderer is not None:
            refused, warned, kept = _render(result, renderer, max_prompt_length, folder, options)
            if trainers is not None:
                (stops if trainers.stops else warnings).extend(_unread(kept, trainers))
            accepted -= len({(issue.file, issue.row) for issue in refused})
            rejected += refused
            warnings += warned
        if pool is not None:
            never, failing, notes = _score(result.accepted, pool, options, renderer)
            stops += never
            warnings += failing
    return Report(
        accepted,
        manifest.rows,
        sorted(rejected, key=place),
        sorted(warnings, key=place),
        stops,
        notes,
        manifest,
    )


_REJECT_COLUMNS = ("source_file", "source_row", "errors")


def _issues(records: Iterator[dict[str, Any]], column: str) -> Iterator[Issue]:
    for record in records:
        for found in record[column] or ():
            yield Issue(
                record["source_file"], record["source_row"], found["code"], found["path"], found["message"]
            )


def place(issue: Issue) -> tuple[str, int]:
    return issue.file, issue.row


def _render(
    result: ContractResult,
    renderer: "PromptRenderer",
    max_prompt_length: int | None,
    folder: Path,
    options: ContractOptions,
) -> tuple[list[Issue], list[Issue], "Table"]:
    """Rows that the chat template refuses; rows whose prompt is too long, or may lack what it lacks; and the
    table of those that fit."""
    from rl_assets.prompts.length import filter_by_length

    limit = max_prompt_length or 1 << 30
    gate = filter_by_length(
        result.accepted,
        renderer,
        max_prompt_length=limit,
        folder=folder,
        log=lambda line: None,
        severities=options.severities,
    )
    refused = [
        issue
        for issue in _issues(gate.refused.rows(_REJECT_COLUMNS), "errors")
        if not (options.has_processor and issue.code == "render.media_unsupported")
    ]
    warned = [
        Issue(
            record["source_file"],
            record["source_row"],
            OVERLONG,
            "prompt",
            f"found {record['prompt_length']:,} tokens, expected at most {limit:,}",
        )
        for record in gate.overlong.rows(("source_file", "source_row", "prompt_length"))
    ]
    if gate.warnings:
        for table in (gate.kept, gate.overlong):
            found = _issues(table.rows(("source_file", "source_row", "warnings")), "warnings")
            warned += (issue for issue in found if CODES[issue.code].stage == "render")
    return refused, warned, gate.kept


def _unread(rows: "Table", trainers: "Trainers") -> Iterator[Issue]:
    """What a trainer would pass over; of a setting for all rows, at the first of them."""
    first = next(rows.rows(("source_file", "source_row")), None)
    for one in trainers.unread(rows):
        if record := one.record or first:
            place = record["source_file"], record["source_row"]
            yield Issue(*place, "row.unread_by_trainer", one.field, one.problem)


def checkpoint_tokens(tokenizer: str | None, processor: str | None) -> PolicyTokens:
    """What texts must not hold of these policies.

    Raises:
        InputError: a tokenizer does not load.
    """
    media: set[str] = set()
    control: set[str] = set()
    for field, path in {"--tokenizer": tokenizer, "--processor": processor}.items():
        if path is not None:
            load_tokenizer(path, field=field)
            tokens = read_policy_tokens(path)
            media.update(tokens.media)
            control.update(tokens.control)
    return PolicyTokens(tuple(sorted(media)), tuple(sorted(control)))


def _score(
    rows: "Table", pool: "ScorePool", options: ContractOptions, renderer: "PromptRenderer | None"
) -> tuple[list[Issue], list[Issue], list[str]]:
    """What stops the run, right answers that do not score, and what holds for all rows."""
    from rl_assets.rewards.solution import Writer
    from rl_assets.rewards.trial import never_scored_problem, odd_rows, tags_problem, try_answers

    def issue(row: Mapping[str, Any], code: str, field: str, message: str) -> Issue:
        return Issue(row["source_file"], row["source_row"], code, field, message)

    truth = "reward_model.ground_truth"
    writer = None if renderer is None else Writer(renderer.tokenizer, renderer.template_kwargs)
    trial = try_answers(rows, pool, options.known_data_sources, writer, lambda line: None)
    never = list(trial.never_scored())
    stops = []
    for first in never:
        source = first.row["data_source"]
        problem = never_scored_problem(pool, source, trial.tried[source], first.error or "")
        stops.append(issue(first.row, "data_source.never_scored", options.reward_fn_key, problem))
    silent = {first.row["data_source"] for first in never}
    warnings = [
        issue(one.row, "reward_model.right_answer_fails", truth, one.problem)
        for one in trial.failing
        if one.row["data_source"] not in silent
    ]
    warnings += [
        issue(row, "reward_model.mixed_types", truth, problem) for row, problem in odd_rows(rows, trial.odd)
    ]
    return stops, warnings, [tags_problem(trial.tags)] if trial.tags else []
