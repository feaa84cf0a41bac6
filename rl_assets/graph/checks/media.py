"""Placeholder–media consistency: as many placeholders as media, in the row and in its rendered prompt.

A mark in the text of a row that has no such media is no placeholder: `contract.consistency` has the rule.
"""

from functools import partial
from pathlib import Path

from rl_assets.base.modalities import MEDIA_COLUMNS
from rl_assets.contract.schema import decode_row
from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import PLACE, Findings
from rl_assets.graph.dataset import GraphDataset
from rl_assets.media.placeholders import media_counts
from rl_assets.media.source import has_media
from rl_assets.policy.media_tokens import read_media_token_ids

NAME = "placeholder_media"
_COLUMNS = [*PLACE, "data_source", "ability", "prompt", "reward_model"]


def _consistent(asset: str, dataset: GraphDataset) -> Findings:
    findings = Findings({"rows": 0, "rows_with_media": 0})
    columns = [*_COLUMNS, "extra_info", "extra_columns", *MEDIA_COLUMNS]
    marks: frozenset[int] = frozenset()
    if asset == "length_filtered":
        columns.append("prompt_ids")
        marks = read_media_token_ids(dataset.policy) if isinstance(dataset.policy, Path) else marks
    rows = with_media = 0
    for record in dataset.table(asset).rows(columns):
        rows += 1
        row = decode_row(record)
        seen = not marks.isdisjoint(record.get("prompt_ids", ()))
        if marks and seen != has_media(row):
            problem = (
                "media tokens in the rendered prompt of a row without media"
                if seen
                else "no media token in the rendered prompt of a row with media"
            )
            findings.fail(problem, record)
        counts = media_counts(row)
        with_media += any(media for _, media in counts.values())
        for modality, (placeholders, media) in counts.items():
            if placeholders != media:
                findings.fail(f"{placeholders} `<{modality}>` and {media} {modality}s", record)
    findings.numbers = {"rows": rows, "rows_with_media": with_media}
    return findings


CHECKS = [
    Check(
        asset,
        NAME,
        "In rows with media, every `<image>`, `<video>` and `<audio>` of a kind that the row has is one of "
        "them, and every medium has its placeholder; a rendered prompt has media tokens where its row has "
        "media. Otherwise a processor puts a picture into the wrong place, or fails.",
        partial(_consistent, asset),
    )
    for asset in ("field_contract", "length_filtered")
]
