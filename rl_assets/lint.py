"""The field contract as a linter: rows are judged, nothing is stored."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_assets.contract import ContractOptions, ContractResult, apply_contract, scan_files
from rl_assets.prompts.checkpoint import load_tokenizer
from rl_assets.prompts.control_tokens import PolicyTokens, read_policy_tokens

if TYPE_CHECKING:
    from rl_assets.prompts import PromptRenderer

OVERLONG = "prompt.overlong"


class Issue(NamedTuple):
    """One line of the linter: what was found where. `row` counts from 0 in its file."""

    file: str
    row: int
    code: str
    field: str | None
    message: str


class Report(NamedTuple):
    """What the linter says about a set of files; `passed_over` is what else their folders hold."""

    accepted: int
    total: int
    rejected: list[Issue]
    warnings: list[Issue]
    passed_over: list[str]


def lint(
    files: list[str],
    options: ContractOptions,
    *,
    val_files: list[str] | None = None,
    renderer: "PromptRenderer | None" = None,
    max_prompt_length: int | None = None,
    root: Path | None = None,
    follow_links: bool = True,
) -> Report:
    """Judge the rows of `files`; nothing is written.

    Args:
        renderer: renders the accepted rows too, where there is one; a row that its template refuses is
            rejected, and one longer than `max_prompt_length` is warned of.
        root: what relative paths start from, by default the current folder.

        follow_links: as in `scan_files`; who names files to be judged, and not kept, means what they lead to.

    Raises:
        InputError: a file cannot be read.
    """
    root = root or Path.cwd()
    manifest = scan_files(files, val_files, root=root, follow_links=follow_links)
    with tempfile.TemporaryDirectory(prefix="rl-assets-") as name:
        folder = Path(name)
        result = apply_contract(manifest, options, root=root, folder=folder, examples=None)
        rejected = list(_issues(result.rejected.rows(_REJECT_COLUMNS)))
        warnings = [
            Issue(warned.file, warned.row, *warned.finding)
            for found in result.examples.values()
            for warned in found
        ]
        accepted = result.accepted_rows
        if renderer is not None:
            refused, overlong = _render(result, renderer, max_prompt_length, folder, options.has_processor)
            accepted -= len({(issue.file, issue.row) for issue in refused})
            rejected += refused
            warnings += overlong
    return Report(
        accepted,
        manifest.rows,
        sorted(rejected, key=place),
        sorted(warnings, key=place),
        manifest.passed_over,
    )


_REJECT_COLUMNS = ("source_file", "source_row", "errors")


def _issues(records: Iterator[dict[str, Any]]) -> Iterator[Issue]:
    for record in records:
        for error in record["errors"]:
            yield Issue(
                record["source_file"], record["source_row"], error["code"], error["path"], error["message"]
            )


def place(issue: Issue) -> tuple[str, int]:
    return issue.file, issue.row


def _render(
    result: ContractResult,
    renderer: "PromptRenderer",
    max_prompt_length: int | None,
    folder: Path,
    has_processor: bool,
) -> tuple[list[Issue], list[Issue]]:
    """Rows that the chat template refuses, and rows whose prompt is too long."""
    from rl_assets.prompts import filter_by_length

    limit = max_prompt_length or 1 << 30
    gate = filter_by_length(
        result.accepted,
        renderer,
        max_prompt_length=limit,
        folder=folder,
        log=lambda line: None,
    )
    refused = [
        issue
        for issue in _issues(gate.refused.rows(_REJECT_COLUMNS))
        if not (has_processor and issue.code == "render.media_unsupported")
    ]
    overlong = [
        Issue(
            record["source_file"],
            record["source_row"],
            OVERLONG,
            "prompt",
            f"found {record['prompt_length']:,} tokens, expected at most {limit:,}",
        )
        for record in gate.overlong.rows(("source_file", "source_row", "prompt_length"))
    ]
    return refused, overlong


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
