"""The script that makes a tiny vision-language policy, and images that go through the graph with it."""

from pathlib import Path

import dagster as dg

from scripts.make_tiny_vl_policy import save_tiny_vl_policy
from tests.build import evaluations, failed, failure, make_dataset, materialize, problem
from tests.prompts import media


def test_images_go_through_the_graph_with_it(tmp_path: Path) -> None:
    sizes = [(50, 30), (60, 60), (30, 90), (120, 40)]
    for number, size in enumerate(sizes):
        file = tmp_path / f"data/toy/img/{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        media.picture(*size).save(file)
    asked = [{"role": "user", "content": "<image>How many dots are there?"}]
    rows = [problem(number, prompt=asked, images=[f"img/{number}.png"]) for number in range(len(sizes))]
    policy = save_tiny_vl_policy(tmp_path / "policy")
    result = materialize(made := make_dataset(tmp_path, rows, data={"max_prompt_length": 160}, policy=policy))
    assert result.success, failure(result)
    stopping = dg.AssetCheckSeverity.ERROR
    assert {name for name in failed(result) if evaluations(result)[name].severity == stopping} == set()
    arrived = made.table("reward_inputs").rows(["source_row"])
    assert sorted(row["source_row"] for row in arrived) == sorted([0, 1, 2, 3] * 2)
