"""Rows that contradict each other."""

import dagster as dg

from rl_assets.base.jsontext import canonical, decode
from rl_assets.contract.rules.copies import COMPARED_COLUMNS, compared
from rl_assets.graph.checks.check import Check
from rl_assets.graph.checks.findings import PLACE, Findings
from rl_assets.graph.dataset import GraphDataset

_COLUMNS = list(dict.fromkeys([*PLACE, *COMPARED_COLUMNS]))


def _ground_truths_agree(dataset: GraphDataset) -> Findings:
    table = dataset.table("field_contract")
    seen, repeated = set[int](), set[int]()
    for batch in table.batches(["prompt"]):
        for prompt in map(_known_again, batch.column(0).to_pylist()):
            (repeated if prompt in seen else seen).add(prompt)
    findings = Findings({"prompts": len(seen), "repeated": len(repeated)})
    truths: dict[tuple[bytes, bytes], tuple[bytes, str]] = {}
    for row in table.rows(_COLUMNS) if repeated else ():
        if _known_again(row["prompt"]) in repeated:
            found = compared(row)
            place = f"{row['source_file']}, row {row['source_row']}"
            truth, first = truths.setdefault((found.prompt, found.beside), (found.truth, place))
            if truth != found.truth:
                findings.fail(f"another ground truth than {first} has for the same prompt", row)
    return findings


def _known_again(prompt: str) -> int:
    """Equal for messages of equal values, whatever the order of their keys."""
    return hash(canonical(decode(prompt)))


CHECKS = [
    Check(
        "field_contract",
        "ground_truths_agree",
        "No two rows have the same prompt, media and tools and different ground truths: one answer would be "
        "rewarded once and not the other time. They are compared by value; 1 and 1.0 differ, since a scorer "
        "that compares texts sees the difference.",
        _ground_truths_agree,
        dg.AssetCheckSeverity.WARN,
    )
]
