"""Row conservation: at every stage, what went in is what came out plus what was set aside."""

from collections import Counter
from collections.abc import Callable

from rl_assets.assets.dataset import SPLITS, Dataset
from rl_assets.checks.check import Check, Findings

NAME = "rows_conserved"


def _compare(before: str, rows_in: int, parts: dict[str, int]) -> Findings:
    rows_out = sum(parts.values())
    findings = Findings({before: rows_in, **parts})
    if rows_in != rows_out:
        findings.fail(f"{before} has {rows_in:,} rows, and {' + '.join(parts)} have {rows_out:,}")
    return findings


def _contract(dataset: Dataset) -> Findings:
    parts = {name: dataset.table(name).num_rows for name in ("field_contract", "rejected_rows")}
    return _compare("raw_files", dataset.raw_manifest().rows, parts)


def _length(dataset: Dataset) -> Findings:
    names = ("length_filtered", "overlong_rows", "unrenderable_rows")
    return _compare(
        "field_contract",
        dataset.table("field_contract").num_rows,
        {name: dataset.table(name).num_rows for name in names},
    )


def _shards(dataset: Dataset) -> Findings:
    kept = Counter(dataset.table("length_filtered").read(["split"]).column(0).to_pylist())
    caps = {split: dataset.spec.data.max_samples(split) for split in SPLITS}
    taken = {
        split: kept[split] if caps[split] is None else min(kept[split], caps[split] or 0) for split in SPLITS
    }
    sharded = _rows_by_split(dataset, "proto_shards")
    findings = Findings({"length_filtered": kept.total()})
    for split in SPLITS:
        findings.numbers[f"{split}_prompts"] = sharded[split]
        if sharded[split] != taken[split]:
            findings.fail(
                f"{split}: {taken[split]:,} prompts were to be sharded, and {sharded[split]:,} were"
            )
    return findings


def _rollouts(dataset: Dataset) -> Findings:
    prompts, responses = _rows_by_split(dataset, "proto_shards"), _rows_by_split(dataset, "rollouts")
    findings = Findings({"prompts": prompts.total(), "responses": responses.total()})
    for split in SPLITS:
        due = prompts[split] * dataset.responses_per_prompt(split)
        if responses[split] != due:
            findings.fail(f"{split}: {due:,} responses are due, and there are {responses[split]:,}")
    return findings


def _reward_inputs(dataset: Dataset) -> Findings:
    rows = dataset.table("reward_inputs").num_rows
    return _compare("rollouts", dataset.shard_manifest("rollouts").rows, {"reward_inputs": rows})


def _reward_scores(dataset: Dataset) -> Findings:
    rows = dataset.table("reward_scores").num_rows
    return _compare("reward_inputs", dataset.table("reward_inputs").num_rows, {"reward_scores": rows})


def _prompt_difficulty(dataset: Dataset) -> Findings:
    prompts = len(set(dataset.table("reward_scores").read(["uid"]).column(0).to_pylist()))
    rows = dataset.table("prompt_difficulty").num_rows
    return _compare("scored_prompts", prompts, {"prompt_difficulty": rows})


def _verl_dataset(dataset: Dataset) -> Findings:
    export = dataset.export()
    parts = {file.name: file.rows for file in export.files}
    parts |= {f"left out as {reason}": rows for reason, rows in export.left_out.items()}
    return _compare("length_filtered", dataset.table("length_filtered").num_rows, parts)


def _rows_by_split(dataset: Dataset, asset: str) -> Counter[str]:
    rows: Counter[str] = Counter()
    for ref in dataset.shard_manifest(asset).shards:
        rows[ref.split] += ref.rows
    return rows


def _check(asset: str, description: str, evaluate: Callable[[Dataset], Findings]) -> Check:
    return Check(asset, NAME, description, evaluate)


CHECKS = [
    _check("field_contract", "Raw rows = accepted rows + rejected rows.", _contract),
    _check("length_filtered", "Accepted rows = fitting + overlong + unrenderable rows.", _length),
    _check(
        "proto_shards",
        "Every fitting prompt is in a shard, or as many as `data.train_max_samples` and "
        "`data.val_max_samples` allow.",
        _shards,
    ),
    _check("rollouts", "Responses = prompts × n.", _rollouts),
    _check("reward_inputs", "One reward input per response.", _reward_inputs),
    _check("reward_scores", "Every reward input has a score, or an error in its place.", _reward_scores),
    _check(
        "verl_dataset",
        "Every fitting prompt is in the training set or left out with a reason.",
        _verl_dataset,
    ),
    _check("prompt_difficulty", "One row per prompt that was answered.", _prompt_difficulty),
]
