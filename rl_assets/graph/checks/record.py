"""What the checks of an asset found, kept beside it for as long as nothing that they read changes."""

from typing import Any

from pydantic import BaseModel
from upath import UPath

from rl_assets.base.digests import digest_json
from rl_assets.base.manifests import read_record, write_record
from rl_assets.dataset.records import versions
from rl_assets.errors import InputError
from rl_assets.graph.checks.findings import Findings
from rl_assets.graph.dataset import GraphDataset
from rl_assets.graph.provenance import code_digest
from rl_assets.policy.fingerprint import file_digests, policy_folder, rendering_files

READS = {
    "raw_files": ("raw_files",),
    "rejected_rows": ("rejected_rows",),
    "field_contract": ("raw_files", "field_contract", "rejected_rows"),
    "length_filtered": ("field_contract", "length_filtered", "overlong_rows", "unrenderable_rows"),
    "proto_shards": ("length_filtered", "proto_shards"),
    "rollouts": ("field_contract", "proto_shards", "rollouts"),
    "reward_inputs": ("field_contract", "rollouts", "reward_inputs"),
    "reward_scores": ("reward_inputs", "reward_scores"),
    "prompt_difficulty": ("reward_scores", "prompt_difficulty"),
    "verl_dataset": ("length_filtered", "verl_dataset"),
}
"""The assets that the checks of each asset look at."""

_SETTINGS: Any = {
    **dict.fromkeys(("data", "contract", "rollout", "reward", "checks", "previews"), True),
    "curation": {"forms", "media"},
}


class CheckRecord(BaseModel):
    """What was found, by the check's name, and a digest of all that it was found in."""

    key: str
    findings: dict[str, Findings]


def check_key(dataset: GraphDataset, asset: str) -> str | None:
    """Digest of everything that the checks of `asset` depend on; None where that is not known."""
    read = versions(dataset, READS[asset])
    if read is None:
        return None
    settings = dataset.spec.model_dump(mode="json", include=_SETTINGS)
    tokenizer = _tokenizer(dataset) if asset == "field_contract" else None
    code = code_digest("rl_assets.graph.checks")
    return digest_json([read, settings, dataset.reward_function.digest, tokenizer, code])


def _tokenizer(dataset: GraphDataset) -> dict[str, str] | None:
    """The files with which a perfect answer is written as the policy would write it."""
    try:
        return file_digests(rendering_files(policy_folder(dataset.policy)))
    except InputError:
        return None


def recorded(dataset: GraphDataset, asset: str, key: str | None) -> dict[str, Findings]:
    """What was found under `key`, by the check's name; nothing where `key` is None or another."""
    record = read_record(CheckRecord, _path(dataset, asset))
    return record.findings if record and key is not None and record.key == key else {}


def record(dataset: GraphDataset, asset: str, key: str | None, findings: dict[str, Findings]) -> None:
    """Keep what was found, where it is known in what."""
    if key is not None:
        write_record(_path(dataset, asset), CheckRecord(key=key, findings=findings))


def _path(dataset: GraphDataset, asset: str) -> UPath:
    return dataset.storage / f"{asset}.checks.json"
