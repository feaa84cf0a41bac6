"""Placeholder–media consistency: as many placeholders as media, per row and kind."""

from functools import partial

from rl_assets.assets.dataset import Dataset
from rl_assets.checks.check import Check
from rl_assets.checks.findings import Findings
from rl_assets.contract import MEDIA_COLUMNS, decode_row
from rl_assets.contract.consistency import media_counts

NAME = "placeholder_media"
_COLUMNS = ["uid", "source_file", "source_row", "data_source", "ability", "prompt", "reward_model"]


def _consistent(asset: str, dataset: Dataset) -> Findings:
    findings = Findings({"rows": 0, "rows_with_media": 0})
    columns = [*_COLUMNS, "extra_info", "extra_columns", *MEDIA_COLUMNS]
    rows = with_media = 0
    for record in dataset.table(asset).rows(columns):
        rows += 1
        counts = media_counts(decode_row(record))
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
        "Every `<image>`, `<video>` and `<audio>` in a prompt has its medium in the row's columns, and every "
        "medium its placeholder. Otherwise a processor puts a picture into the wrong place, or fails.",
        partial(_consistent, asset),
    )
    for asset in ("field_contract", "length_filtered")
]
