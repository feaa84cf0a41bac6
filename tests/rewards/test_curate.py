"""Which prompts are taken: copies, difficulty, limits, and that every prompt is accounted for."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_assets.base.digests import digest_bytes
from rl_assets.base.tables import TableWriter
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.schema import ROW_SCHEMA
from rl_assets.trainset.curate import Curated, Prompt, Selection, curate, read_prompts
from rl_assets.trainset.similar import Benchmark, prompt_texts
from tests.build import write_jsonl
from tests.checks.stores import contract_row
from tests.contract.rows import png
from tests.rewards.builders import uid


def prompt(number: int, **changes: Any) -> Prompt:
    return {
        "uid": uid(number),
        "split": "train",
        "data_source": "openai/gsm8k",
        "source_file": "t.jsonl",
        "source_row": number,
        "copy": bytes([number]),
        "prompt": bytes([number]),
        "beside": b"",
        "media": (),
        **changes,
    }


def taken(curated: Curated) -> list[int]:
    return [prompt["source_row"] for prompt in curated.taken]


def left_out(curated: Curated) -> dict[int, str]:
    return {left.prompt["source_row"]: left.reason for left in curated.left_out}


def test_the_first_of_equal_prompts_is_taken() -> None:
    curated = curate([prompt(0), prompt(1, copy=b"same"), prompt(2, copy=b"same")], Selection(), {})
    assert taken(curated) == [0, 1]
    (left,) = curated.left_out
    assert left[1:] == ("duplicate", "copy of t.jsonl, row 1")


def test_a_train_prompt_that_is_in_validation_is_left_to_validation() -> None:
    prompts = [prompt(0, prompt=b"same"), prompt(1), prompt(2, prompt=b"same", split="val")]
    curated = curate(prompts, Selection(), {})
    assert taken(curated) == [1, 2]
    assert left_out(curated) == {0: "in_validation"}


def chosen(
    folder: Path, *rows: dict[str, Any], benchmark: list[Any] | None = None, **selection: Any
) -> Curated:
    """What is chosen of these rows of the contract."""
    with TableWriter(folder / "rows.parquet", ROW_SCHEMA) as writer:
        writer.write_rows(rows)
    against = None
    if benchmark:
        write_jsonl(folder / "bench.jsonl", benchmark)
        against = Benchmark(scan_files("bench.jsonl", root=folder), folder)
    texts = partial(prompt_texts, writer.table)
    return curate(read_prompts(writer.table), Selection(**selection), {}, texts, against)


QUESTION = json.dumps([{"role": "user", "content": "In the figure two lines cross, find the angle x there."}])
TOOLS = {"tools": [{"type": "function", "function": {"name": "calc"}}]}


def image(data: bytes, **settings: Any) -> dict[str, Any]:
    item = {"path": "x.png", **settings}
    return {"images": [{"item": json.dumps(item), "digest": digest_bytes(data)}]}


def test_a_copy_equals_another_row_in_all_that_model_and_scorer_read(tmp_path: Path) -> None:
    spaced = json.dumps([dict(reversed(json.loads(QUESTION)[0].items()))], indent=1)
    first = {"prompt": QUESTION, "extra_columns": "{}", "extra_info": "{}"}
    others = [
        contract_row(2, "3", **first),
        contract_row(3, "2", **first, data_source="math"),
        contract_row(4, "2", **first | {"extra_columns": json.dumps(TOOLS)}),
        contract_row(5, "2", **first | {"extra_columns": '{"agent_name": "tool_agent"}'}),
        contract_row(6, "2", **first | {"extra_columns": '{"chat_template_kwargs": {"a": false}}'}),
        contract_row(7, "2", **first, **image(b"a")),
        contract_row(8, "2", **first, **image(b"b")),
        contract_row(9, "2", **first, **image(b"b", max_pixels=9)),
    ]
    copies = [
        contract_row(1, "2", **first | {"prompt": spaced, "extra_columns": '{"level": 3}'}),
        contract_row(10, "2", **first | {"extra_columns": json.dumps(TOOLS | {"level": 1})}),
        contract_row(11, "2", **first, **image(b"b")),
        contract_row(12, "2", **first | {"extra_columns": '{"tools": []}'}),
    ]
    curated = chosen(tmp_path, contract_row(0, "2", **first), *others, *copies)
    assert sorted(taken(curated)) == [0, *range(2, 10)]
    details = {left.prompt["source_row"]: left.detail.rsplit(" ", 1)[1] for left in curated.left_out}
    assert details == {1: "0", 10: "4", 11: "8", 12: "0"}


def test_a_train_prompt_is_in_validation_whatever_its_answer_and_tools(tmp_path: Path) -> None:
    rows = [
        contract_row(0, "2", prompt=QUESTION, extra_columns=json.dumps(TOOLS)),
        contract_row(1, "2", prompt=QUESTION, **image(b"a")),
        contract_row(2, "3", prompt=QUESTION, split="val"),
    ]
    assert left_out(chosen(tmp_path, *rows)) == {0: "in_validation"}


def test_prompts_with_other_media_or_tools_are_not_nearly_the_same(tmp_path: Path) -> None:
    rows = [contract_row(n, str(n), prompt=QUESTION, **image(bytes([n]))) for n in range(4)]
    rows.append(contract_row(4, "4", prompt=QUESTION, extra_columns=json.dumps(TOOLS)))
    rows += [contract_row(5, "5", prompt=QUESTION), contract_row(6, "6", prompt=QUESTION, **image(b"\0"))]
    curated = chosen(tmp_path, *rows, near_duplicates=0.8)
    assert left_out(curated) == {6: "near_duplicate"}


def test_a_prompt_with_media_quotes_a_benchmark_only_with_its_media(tmp_path: Path) -> None:
    (tmp_path / "bench.png").write_bytes(png())
    sentence = json.loads(QUESTION)[0]["content"]
    rows = [
        contract_row(0, prompt=QUESTION, **image(b"of my own")),
        contract_row(1, prompt=QUESTION, **image(png())),
        contract_row(2, prompt=QUESTION),
    ]
    alone = chosen(tmp_path, *rows, benchmark=[{"problem": sentence}], contamination_ngram=5)
    assert left_out(alone) == {2: "contaminated"}
    both = [{"problem": sentence, "image": "bench.png"}]
    assert left_out(chosen(tmp_path, *rows, benchmark=both, contamination_ngram=5)) == {
        1: "contaminated",
        2: "contaminated",
    }


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


def test_only_train_prompts_are_left_out_for_what_they_quote_or_resemble(tmp_path: Path) -> None:
    text = "one two three four five six seven eight nine ten"
    prompts = [prompt(0), prompt(1, split="val"), prompt(2, split="val"), prompt(3)]
    texts = [(each["uid"], "something else" if each is prompts[3] else text) for each in prompts]
    write_jsonl(tmp_path / "bench.jsonl", [{"problem": text}])
    benchmark = Benchmark(scan_files("bench.jsonl", root=tmp_path), tmp_path)
    quoting = curate(prompts, Selection(contamination_ngram=5), {}, lambda: texts, benchmark)
    assert taken(quoting) == [1, 2, 3]
    assert [left.reason for left in quoting.left_out] == ["contaminated"]
    resembling = curate(prompts, Selection(near_duplicates=0.9), {}, lambda: texts)
    assert taken(resembling) == [1, 2, 3]
    assert [left.reason for left in resembling.left_out] == ["near_duplicate"]


def test_stages_count_what_is_left() -> None:
    curated = curate(
        [prompt(0), prompt(1, copy=bytes([0])), prompt(2, split="val")], Selection(max_per_source=1), {}
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
    prompts = [
        prompt(n, split=split, copy=bytes([digest]), prompt=bytes([digest]))
        for n, (split, digest, _) in enumerate(rows)
    ]
    rates = {uid(n): rate for n, (_, _, rate) in enumerate(rows)}
    curated = curate(prompts, Selection(pass_rate=(0.2, 0.8), max_per_source=limit), rates)
    assert sorted(taken(curated) + list(left_out(curated))) == list(range(len(rows)))
    assert len(curated.left_out) == len(left_out(curated))
    digests = [each["copy"] for each in curated.taken]
    assert len(set(digests)) == len(digests)
