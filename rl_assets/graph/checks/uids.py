"""uid presence, uniqueness, and survival of every stage with the same multiset."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import PLACE, Findings, place
from rl_assets.graph.dataset import GraphDataset
from rl_assets.protocol.manifest import shard_name

NAME = "uids"

Sample = tuple[str, int]
Items = Callable[[], Iterable[Any]]


def _contract(dataset: GraphDataset) -> Findings:
    findings = Findings()
    seen: set[str] = set()
    for row in dataset.table("field_contract").rows(PLACE):
        uid = row["uid"]
        if not uid:
            findings.fail("the row has no uid", row)
        elif "_" in uid:
            findings.fail("an underscore in a uid is where verl cuts it off", row)
        elif uid in seen:
            findings.fail("another row has the same uid", row)
        seen.add(uid)
    findings.numbers["uids"] = len(seen)
    return findings


def _length(dataset: GraphDataset) -> Findings:
    parts = ("length_filtered", "overlong_rows", "unrenderable_rows")

    def found() -> Iterator[str]:
        return chain.from_iterable(_uids(dataset, name) for name in parts)

    expected = partial(_uids, dataset, "field_contract")
    return _same(dataset, expected, found, "the contract", "the length gate's tables")


def _shards(dataset: GraphDataset) -> Findings:
    kept = set(_uids(dataset, "length_filtered"))
    findings, seen = Findings(), set()
    for ref, data in dataset.shards("proto_shards"):
        fields = data.non_tensor_batch
        with findings.shard(ref.name, len(data)):
            for index, uid in enumerate(fields["uid"]):
                row = place(data, index)
                if uid not in kept:
                    findings.fail("the row is not in length_filtered", row)
                elif uid in seen:
                    findings.fail("the row is in the shards twice", row)
                elif shard_name(fields["split"][index], uid, int(ref.name.rsplit("-", 1)[1])) != ref.name:
                    findings.fail(f"the row is in {ref.name}, but its uid belongs to another shard", row)
                seen.add(uid)
    findings.numbers["uids"] = len(seen)
    return findings


def _rollouts(dataset: GraphDataset) -> Findings:
    due = {  # about 200 bytes a prompt
        uid: dataset.responses_per_prompt(split)
        for _, data in dataset.shards("proto_shards")
        for uid, split in zip(data.non_tensor_batch["uid"], data.non_tensor_batch["split"], strict=True)
    }
    shards = []
    for ref, data in dataset.shards("rollouts"):
        uids, samples = data.non_tensor_batch["uid"], data.non_tensor_batch["sample_index"]
        strange = sum(not 0 <= n < due.get(uid, 0) for uid, n in zip(uids, samples, strict=True))
        shards.append({"shard": ref.name, "rows": len(data), "uids": len(set(uids)), "failures": strange})

    def expected() -> Iterator[Sample]:
        return ((uid, sample) for uid, n in due.items() for sample in range(n))

    found = partial(_samples, dataset)
    findings = _same(dataset, expected, found, "the shards times n", "the rollouts")
    findings.shards = shards
    return findings


def _reward_inputs(dataset: GraphDataset) -> Findings:
    def found() -> Iterator[Sample]:
        rows = dataset.table("reward_inputs").rows(["uid", "sample_index"])
        return ((row["uid"], row["sample_index"]) for row in rows)

    return _same(dataset, partial(_samples, dataset), found, "the rollouts", "the reward inputs")


def _uids(dataset: GraphDataset, asset: str) -> Iterator[str]:
    for batch in dataset.table(asset).batches(["uid"]):
        yield from batch.column(0).to_pylist()


def _samples(dataset: GraphDataset) -> Iterator[Sample]:
    for _, data in dataset.shards("rollouts"):
        fields = data.non_tensor_batch
        yield from zip(fields["uid"], fields["sample_index"], strict=True)


def _same(dataset: GraphDataset, due: Items, made: Items, there: str, here: str) -> Findings:
    """Hold two multisets of uids, or of (uid, sample index), against each other."""
    one, other = _digests(due()), _digests(made())
    findings = Findings({"expected": len(one), "found": len(other)})
    if np.array_equal(one, other):
        return findings
    before, after = Counter(due()), Counter(made())
    places = {row["uid"]: row for row in dataset.table("field_contract").rows(PLACE)}
    for difference, verdict in (
        (before - after, f"in {there}, not in {here}"),
        (after - before, f"in {here}, not in {there}"),
    ):
        for item, times in difference.items():
            uid, sample = item if isinstance(item, tuple) else (item, None)
            which = "" if sample is None else f"sample {sample}: "
            findings.fail(f"{which}{times} × {verdict}", places.get(uid, {"uid": uid}))
    return findings


def _digests(items: Iterable[Any]) -> np.ndarray:
    """Sixteen bytes for each item, sorted: those of equal multisets are equal."""
    texts = (" ".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in items)
    digests = (hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
    return np.sort(np.fromiter(digests, dtype="S16"))


CHECKS = [
    Check(
        "field_contract",
        NAME,
        "Every accepted row has a uid of its own, without an underscore (verl cuts a uid off there). The "
        "uid joins a prompt to its responses and scores; two prompts under one uid would be one group.",
        _contract,
    ),
    Check(
        "length_filtered",
        NAME,
        "The uids of the length gate's three tables together are those of the contract, each once.",
        _length,
    ),
    Check(
        "proto_shards",
        NAME,
        "Every sharded row comes from length_filtered and is there once, in the shard that its uid says. The "
        "table has each shard.",
        _shards,
    ),
    Check(
        "rollouts",
        NAME,
        "Every sharded uid occurs n times, with sample indices 0 … n-1, and no other does.",
        _rollouts,
    ),
    Check(
        "reward_inputs",
        NAME,
        "Every response of the rollouts is there once, by uid and sample index.",
        _reward_inputs,
    ),
]
