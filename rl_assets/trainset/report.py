"""What changed between two builds of a dataset: rows, lengths, pass rates, and prompts that moved."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from rl_assets.base import markdown
from rl_assets.base.digests import digest_json
from rl_assets.base.jsontext import to_json
from rl_assets.base.tables import Table
from rl_assets.rewards.difficulty import difficulty_by_source

_CUT = 240


class Snapshot(BaseModel):
    """A build in numbers: what a later build is held against.

    Attributes:
        counts: rows by table.
        rejects: rows that were set aside, by reason code.
        lengths: prompt and response lengths in tokens, and the share of responses that were cut off.
        sources: by split and data_source, prompts that are all failed, mixed and all solved, and the mean of
            their pass rates.
        policy: fingerprint of the policy, or "" where there are no responses.
        pass_rates: by uid; None where no response to the prompt was scored.
        settings: what the YAML says of rows, responses and scores, each value as JSON by its dotted key;
            None in a report of a release that did not keep them.
    """

    model_config = ConfigDict(frozen=True)

    counts: dict[str, int]
    rejects: dict[str, int]
    lengths: dict[str, float]
    sources: dict[str, dict[str, float | None]]
    policy: str
    pass_rates: dict[str, float | None]
    settings: dict[str, str] | None = None


class BuildReport(BaseModel):
    """This build and the last one that differed from it.

    Attributes:
        current: this build.
        previous: the last one that was different; None for the first.
    """

    model_config = ConfigDict(frozen=True)

    current: Snapshot
    previous: Snapshot | None = None

    @property
    def digest(self) -> str:
        """Digest of both builds."""
        return digest_json(self.model_dump())

    def followed_by(self, snapshot: Snapshot) -> "BuildReport":
        """The report of the build after this one; the same report where nothing changed."""
        if self.current.settings is None and snapshot.model_copy(update={"settings": None}) == self.current:
            return BuildReport(current=snapshot, previous=self.previous)
        return self if snapshot == self.current else BuildReport(current=snapshot, previous=self.current)


class Mover(NamedTuple):
    """A prompt whose pass rate changed."""

    uid: str
    before: float
    now: float


class Change(NamedTuple):
    """A number in two builds; None where a build has none."""

    what: str
    before: float | None
    now: float | None


def take_snapshot(
    counts: Mapping[str, int],
    rejects: Mapping[str, int],
    prompts: Table,
    scores: Table,
    difficulty: Table,
    *,
    settings: Mapping[str, Any],
) -> Snapshot:
    """A build in numbers.

    Args:
        counts: rows by table.
        rejects: rows that were set aside, by reason code.
        prompts: `length_filtered`.
        scores: `reward_scores`.
        difficulty: `prompt_difficulty`.
        settings: what decides rows, responses and scores, as nested as the YAML is.
    """
    columns = ["uid", "policy", "pass_rate"]
    return Snapshot(
        counts=dict(counts),
        rejects=dict(rejects),
        lengths=_lengths(prompts, scores),
        sources={
            f"{line.split} · {line.data_source}": {
                "prompts": line.prompts,
                "all_failed": line.all_failed,
                "mixed": line.mixed,
                "all_solved": line.all_solved,
                "mean_pass_rate": line.mean_pass_rate,
            }
            for line in difficulty_by_source(difficulty)
        },
        policy=next((row["policy"] for row in difficulty.head(1, columns)), ""),
        pass_rates={row["uid"]: row["pass_rate"] for row in difficulty.rows(columns)},
        settings=dict(_flat(settings)),
    )


def _flat(settings: Mapping[str, Any], block: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{block}{key}.")
        else:
            yield f"{block}{key}", to_json(value)


def _lengths(prompts: Table, scores: Table) -> dict[str, float]:
    found: dict[str, float] = {}
    for what, table in (("prompt", prompts), ("response", scores)):
        lengths = table.read([f"{what}_length"]).column(0).to_numpy()
        if len(lengths):
            found[f"median_{what}_length"] = float(np.median(lengths))
            found[f"longest_{what}"] = float(lengths.max())
    if scores.num_rows:
        found["truncated_share"] = round(scores.counts("finish_reason")["length"] / scores.num_rows, 4)
    return found


def movers(before: Snapshot, now: Snapshot, limit: int) -> list[Mover]:
    """The prompts of both builds whose pass rate changed most, at most `limit`, the largest change first."""
    moved = [
        Mover(uid, old, new)
        for uid, new in now.pass_rates.items()
        if (old := before.pass_rates.get(uid)) is not None and new is not None and new != old
    ]
    return sorted(moved, key=lambda mover: (-abs(mover.now - mover.before), mover.uid))[:limit]


def changes(before: Mapping[str, float | None], now: Mapping[str, float | None]) -> list[Change]:
    """The numbers of two builds side by side, in the order of the newer."""
    return [Change(what, before.get(what), now.get(what)) for what in dict.fromkeys((*now, *before))]


def render_report(
    name: str, report: BuildReport, *, plot: str | None, samples: Mapping[str, Mapping[str, Any]], limit: int
) -> str:
    """The report as Markdown.

    Args:
        name: of the dataset.
        report: the two builds.
        plot: a picture of the pass rates, as Markdown.
        samples: `prompt`, `solution_str` and `score` of a response now, by the uid of a mover.
        limit: most movers that are shown.
    """
    now = report.current
    before = report.previous or _NOTHING
    sections: dict[str, tuple[Mapping[str, float | None], Mapping[str, float | None]]] = {
        "Mean pass rate": (_rates(before), _rates(now)),
        "Prompts by outcome": (_outcomes(before), _outcomes(now)),
        "Rows": (before.counts, now.counts),
        "Set aside, by reason": (before.rejects, now.rejects),
        "Lengths in tokens": (before.lengths, now.lengths),
    }
    parts = [f"# {name}: this build and the last", _headline(report)]
    if changed := _changed_settings(report):
        parts.append("## Changed settings\n\n" + markdown.table(["", "last", "this"], changed))
    parts += [plot] if plot else []
    parts += [f"## {title}\n\n{_changes(changes(*pair))}" for title, pair in sections.items()]
    if report.previous:
        parts.append(f"## Biggest movers\n\n{_movers(movers(before, now, limit), samples)}")
    return "\n\n".join(parts) + "\n"


_NOTHING = Snapshot(counts={}, rejects={}, lengths={}, sources={}, policy="", pass_rates={})
_OUTCOMES = ("all_failed", "mixed", "all_solved")


def _rates(snapshot: Snapshot) -> dict[str, float | None]:
    return {source: values["mean_pass_rate"] for source, values in snapshot.sources.items()}


def _outcomes(snapshot: Snapshot) -> dict[str, float | None]:
    return {
        f"{source}: {outcome}": values[outcome]
        for source, values in snapshot.sources.items()
        for outcome in _OUTCOMES
    }


def _headline(report: BuildReport) -> str:
    now, before = report.current, report.previous
    if before is None:
        return "The first build that is reported: there is none to compare it with."
    came = len(now.pass_rates.keys() - before.pass_rates.keys())
    went = len(before.pass_rates.keys() - now.pass_rates.keys())
    policy = "the same policy" if now.policy == before.policy else "another policy"
    if changed := len(_changed_settings(report)):
        policy += f", and {'a setting' if changed == 1 else f'{changed} settings'} changed"
    return f"{came:,} answered prompts came and {went:,} went. They were answered by {policy}."


def _changed_settings(report: BuildReport) -> list[list[str]]:
    """The settings that differ, each with its value in the last build and in this one."""
    if report.previous is None or report.previous.settings is None or report.current.settings is None:
        return []
    before, now = report.previous.settings, report.current.settings
    return [
        [markdown.code(key), *(_escaped(values.get(key, "–")) for values in (before, now))]
        for key in dict.fromkeys((*now, *before))
        if before.get(key) != now.get(key)
    ]


def _changes(lines: Sequence[Change]) -> str:
    rows = [
        [_escaped(line.what), _number(line.before), _number(line.now), _difference(line)] for line in lines
    ]
    return markdown.table(["", "last", "this", "change"], rows) if rows else "None."


def _movers(moved: Sequence[Mover], samples: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for mover in moved:
        sample = samples.get(mover.uid, {})
        texts = [_escaped(str(sample.get(key, ""))) for key in ("prompt", "solution_str")]
        rates = f"{mover.before:.2f} → {mover.now:.2f}"
        rows.append([markdown.code(mover.uid), rates, *texts, _number(sample.get("score"))])
    columns = ["uid", "pass rate", "prompt", "a response now", "its score"]
    return markdown.table(columns, rows) if rows else "No pass rate changed."


def _escaped(text: str) -> str:
    """Text of a user's, in one line and shortened, that a table shows as it is."""
    flat = " ".join(text.split())
    flat = flat if len(flat) <= _CUT else flat[: _CUT - 1] + "…"
    return markdown.escape(flat)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4f}".rstrip("0").rstrip(".")


def _difference(line: Change) -> str:
    if line.before is None or line.now is None or line.before == line.now:
        return ""
    return ("+" if line.now > line.before else "−") + _number(abs(line.now - line.before))
