"""Row conservation: at every stage, what went in is what came out plus what was set aside."""

from collections import Counter
from collections.abc import Callable, Iterable

from rl_assets.contract.files.manifest import SPLITS, RawManifest
from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import PLACE, Findings
from rl_assets.graph.dataset import GraphDataset

NAME = "rows_conserved"
_GATE = ("length_filtered", "overlong_rows", "unrenderable_rows")

Places = Counter[tuple[str, int]]
"""How often each raw file and row occurs."""


def _contract(dataset: GraphDataset) -> Findings:
    manifest, names = dataset.raw_manifest(), ("field_contract", "rejected_rows")
    return _compare(dataset, "raw_files", manifest.rows, names, lambda: _raw_places(manifest))


def _length(dataset: GraphDataset) -> Findings:
    return _from_table(dataset, "field_contract", _GATE)


def _shards(dataset: GraphDataset) -> Findings:
    kept = dataset.table("length_filtered").counts("split")
    shards = dataset.shard_manifest("proto_shards").shards
    findings = Findings({"length_filtered": kept.total()})
    for split in SPLITS:
        cap = dataset.spec.data.max_samples(split)
        due = kept[split] if cap is None else min(kept[split], cap)
        found = sum(ref.rows for ref in shards if ref.split == split)
        findings.numbers[f"{split}_prompts"] = found
        if found != due:
            findings.fail(f"{split}: {due:,} prompts were to be sharded, and {found:,} were")
    findings.shards = [
        {"shard": ref.name, "rows": ref.rows, "bytes": ref.bytes, "failures": 0} for ref in shards
    ]
    return findings


def _rollouts(dataset: GraphDataset) -> Findings:
    findings = Findings({"prompts": 0, "responses": 0})
    # A rollout shard is called after its prompt shard, and an address after that.
    answers = {ref.name.rsplit("-", 1)[0]: ref for ref in dataset.shard_manifest("rollouts").shards}
    for shard in dataset.shard_manifest("proto_shards").shards:
        due = shard.rows * dataset.responses_per_prompt(shard.split)
        ref = answers.pop(shard.name, None)
        found = ref.rows if ref else 0
        with findings.shard(shard.name, found) as line:
            line["prompts"] = shard.rows
            if found != due:
                findings.fail(f"{shard.name}: {due:,} responses are due, and there are {found:,}")
        findings.count("prompts", shard.rows)
        findings.count("responses", found)
    for ref in answers.values():
        findings.fail(f"{ref.name}: {ref.rows:,} responses, and proto_shards has no such shard")
    return findings


def _reward_inputs(dataset: GraphDataset) -> Findings:
    def places() -> Places:
        fields = (data.non_tensor_batch for _, data in dataset.shards("rollouts"))
        return Counter(
            place for shard in fields for place in zip(shard["source_file"], shard["source_row"], strict=True)
        )

    return _compare(dataset, "rollouts", dataset.shard_manifest("rollouts").rows, ["reward_inputs"], places)


def _reward_scores(dataset: GraphDataset) -> Findings:
    return _from_table(dataset, "reward_inputs", ["reward_scores"])


def _prompt_difficulty(dataset: GraphDataset) -> Findings:
    scores = dataset.table("reward_scores")

    def places() -> Places:
        return Counter(
            {row["uid"]: (row["source_file"], row["source_row"]) for row in scores.rows(PLACE)}.values()
        )

    answered = len({row["uid"] for row in scores.rows(["uid"])})  # about 150 bytes a prompt
    return _compare(dataset, "answered_prompts", answered, ["prompt_difficulty"], places)


def _verl_dataset(dataset: GraphDataset) -> Findings:
    export = dataset.export()
    parts = {file.name: file.rows for file in export.files}
    parts |= {f"left out as {reason}": rows for reason, rows in export.left_out.items()}
    return _counted("length_filtered", dataset.table("length_filtered").num_rows, parts)


def _from_table(dataset: GraphDataset, before: str, after: Iterable[str]) -> Findings:
    rows = dataset.table(before).num_rows
    return _compare(dataset, before, rows, after, lambda: _places(dataset, [before]))


def _compare(
    dataset: GraphDataset, before: str, rows_in: int, after: Iterable[str], places: Callable[[], Places]
) -> Findings:
    """Rows that went in against the rows of the tables `after`; where they differ, which ones."""
    parts = {name: dataset.table(name).num_rows for name in after}
    findings = _counted(before, rows_in, parts)
    if not findings.passed:
        expected, found, here = places(), _places(dataset, parts), " or ".join(parts)
        for file, row in expected - found:
            findings.fail(f"the row is not in {here}", {"source_file": file, "source_row": row})
        for file, row in found - expected:
            findings.fail(f"the row is too often in {here}", {"source_file": file, "source_row": row})
    return findings


def _counted(before: str, rows_in: int, parts: dict[str, int]) -> Findings:
    rows_out = sum(parts.values())
    findings = Findings({before: rows_in, **parts})
    if rows_in != rows_out:
        findings.fail(f"{before} has {rows_in:,} rows, and {' + '.join(parts)} have {rows_out:,}")
    return findings


def _places(dataset: GraphDataset, assets: Iterable[str]) -> Places:
    return Counter(
        (row["source_file"], row["source_row"])
        for name in assets
        for row in dataset.table(name).rows(["source_file", "source_row"])
    )


def _raw_places(manifest: RawManifest) -> Places:
    return Counter((file.path, row) for file in manifest.files for row in range(file.rows))


def _check(asset: str, description: str, evaluate: Callable[[GraphDataset], Findings]) -> Check:
    return Check(asset, NAME, description, evaluate)


CHECKS = [
    _check(
        "field_contract",
        "No raw row is lost: rows in the raw files = accepted rows + rejected rows. A row that is in neither "
        "table would have vanished without a reason.",
        _contract,
    ),
    _check(
        "length_filtered",
        "No accepted row is lost at the length gate: accepted rows = fitting + overlong + unrenderable rows.",
        _length,
    ),
    _check(
        "proto_shards",
        "Every fitting prompt is in a shard, or as many as `data.train_max_samples` and "
        "`data.val_max_samples` allow.",
        _shards,
    ),
    _check(
        "rollouts",
        "Every sharded prompt was answered n times (`rollout.n`, for validation `rollout.val_kwargs.n`): per "
        "shard, responses = prompts × n.",
        _rollouts,
    ),
    _check(
        "reward_inputs",
        "There is one reward input per response, so that no response goes unscored.",
        _reward_inputs,
    ),
    _check(
        "reward_scores",
        "Every reward input is there with a score, or with an error in its place.",
        _reward_scores,
    ),
    _check(
        "verl_dataset",
        "Every fitting prompt is in the training set's files or left out of them with a reason.",
        _verl_dataset,
    ),
    _check("prompt_difficulty", "There is one row per prompt that was answered.", _prompt_difficulty),
]
