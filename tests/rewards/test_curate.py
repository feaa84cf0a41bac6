"""Which prompts are taken: copies, difficulty, limits, and that every prompt is accounted for."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_assets.contract import ROW_SCHEMA
from rl_assets.rewards.curate import Curated, Prompt, Selection, curate, read_prompts
from rl_assets.store import TableWriter
from tests.checks.stores import contract_row
from tests.rewards.builders import uid


def prompt(number: int, **changes: Any) -> Prompt:
    return {
        "uid": uid(number),
        "split": "train",
        "data_source": "openai/gsm8k",
        "source_file": "t.jsonl",
        "source_row": number,
        "digest": bytes([number]),
        **changes,
    }


def taken(curated: Curated) -> list[int]:
    return [prompt["source_row"] for prompt in curated.taken]


def left_out(curated: Curated) -> dict[int, str]:
    return {left.prompt["source_row"]: left.reason for left in curated.left_out}


def test_the_first_of_equal_prompts_is_taken() -> None:
    curated = curate([prompt(0), prompt(1, digest=b"same"), prompt(2, digest=b"same")], Selection(), {})
    assert taken(curated) == [0, 1]
    (left,) = curated.left_out
    assert left[1:] == ("duplicate", "same prompt as t.jsonl, row 1")


def test_a_train_prompt_that_is_in_validation_is_left_to_validation() -> None:
    prompts = [prompt(0, digest=b"same"), prompt(1), prompt(2, digest=b"same", split="val")]
    curated = curate(prompts, Selection(), {})
    assert taken(curated) == [1, 2]
    assert left_out(curated) == {0: "in_validation"}


def test_a_prompt_is_what_the_policy_is_shown_whatever_the_reward(tmp_path: Path) -> None:
    question = json.dumps([{"role": "user", "content": "What is 1 + 1?"}])
    spaced = json.dumps([{"content": "What is 1 + 1?", "role": "user"}], indent=1)
    with TableWriter(tmp_path / "rows.parquet", ROW_SCHEMA) as writer:
        writer.write_rows(
            [
                contract_row(0, "2", prompt=question),
                contract_row(1, "3", prompt=spaced),
                contract_row(2, "2", prompt=question, images=[{"item": "{}", "digest": "d"}]),
            ]
        )
    assert taken(curate(read_prompts(writer.table), Selection(), {})) == [0, 2]


def test_the_band_includes_its_ends_and_leaves_out_what_has_no_rate() -> None:
    rates = {uid(0): 0.0, uid(1): 0.25, uid(2): 0.75, uid(3): 1.0, uid(4): None}
    curated = curate([prompt(number) for number in range(6)], Selection(pass_rate=(0.25, 0.75)), rates)
    assert taken(curated) == [1, 2]
    assert left_out(curated) == {0: "too_hard", 3: "too_easy", 4: "no_pass_rate", 5: "no_pass_rate"}


def test_validation_is_not_chosen_by_difficulty_or_limits() -> None:
    curated = curate(
        [prompt(number, split="val") for number in range(3)],
        Selection(pass_rate=(0.5, 0.5), max_per_source=1),
        {},
    )
    assert taken(curated) == [0, 1, 2]


@pytest.mark.parametrize(
    ("limit", "sizes"), [(2, (2, 2)), ({"math": 1}, (5, 1)), ({}, (5, 5)), (9, (5, 5))], ids=str
)
def test_a_limit_holds_for_each_source(limit: Any, sizes: tuple[int, int]) -> None:
    prompts = [prompt(n) for n in range(5)] + [prompt(n, data_source="math") for n in range(5, 10)]
    rows = taken(curate(prompts, Selection(max_per_source=limit), {}))
    assert (sum(row < 5 for row in rows), sum(row >= 5 for row in rows)) == sizes


def test_the_seed_chooses_and_the_order_of_the_rows_does_not() -> None:
    prompts = [prompt(number) for number in range(40)]
    first = set(taken(curate(prompts, Selection(max_per_source=10), {})))
    assert set(taken(curate(prompts[::-1], Selection(max_per_source=10), {}))) == first
    assert set(taken(curate(prompts, Selection(max_per_source=10, seed=1), {}))) != first


def test_a_limit_keeps_its_choice_when_other_rows_go() -> None:
    prompts = [prompt(number) for number in range(40)]
    first = set(taken(curate(prompts, Selection(max_per_source=10), {})))
    fewer = [each for each in prompts if each["source_row"] in first or each["source_row"] % 2]
    assert set(taken(curate(fewer, Selection(max_per_source=10), {}))) == first


def test_only_train_prompts_are_left_out_for_what_they_quote_or_resemble() -> None:
    text = "one two three four five six seven eight nine ten"
    prompts = [prompt(0), prompt(1, split="val"), prompt(2, split="val"), prompt(3)]
    texts = [(each["uid"], "something else" if each is prompts[3] else text) for each in prompts]
    quoting = curate(prompts, Selection(contamination_ngram=5), {}, lambda: texts, [text])
    assert taken(quoting) == [1, 2, 3]
    assert [left.reason for left in quoting.left_out] == ["contaminated"]
    resembling = curate(prompts, Selection(near_duplicates=0.9), {}, lambda: texts)
    assert taken(resembling) == [1, 2, 3]
    assert [left.reason for left in resembling.left_out] == ["near_duplicate"]


def test_stages_count_what_is_left() -> None:
    curated = curate(
        [prompt(0), prompt(1, digest=bytes([0])), prompt(2, split="val")], Selection(max_per_source=1), {}
    )
    assert [(stage, dict(left)) for stage, left in curated.stages] == [
        ("length_filtered", {"train": 2, "val": 1}),
        ("duplicates", {"train": 1, "val": 1}),
        ("max_per_source", {"train": 1, "val": 1}),
    ]


@given(
    st.lists(st.tuples(st.sampled_from(["train", "val"]), st.integers(0, 3), st.none() | st.floats(0, 1))),
    st.integers(0, 3),
)
def test_every_prompt_is_taken_or_left_out_once(
    rows: list[tuple[str, int, float | None]], limit: int
) -> None:
    prompts = [prompt(n, split=split, digest=bytes([digest])) for n, (split, digest, _) in enumerate(rows)]
    rates = {uid(n): rate for n, (_, _, rate) in enumerate(rows)}
    curated = curate(prompts, Selection(pass_rate=(0.2, 0.8), max_per_source=limit), rates)
    assert sorted(taken(curated) + list(left_out(curated))) == list(range(len(rows)))
    assert len(curated.left_out) == len(left_out(curated))
    digests = [each["digest"] for each in curated.taken]
    assert len(set(digests)) == len(digests)
