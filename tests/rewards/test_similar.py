"""Near copies and quotations are found, instructions that all prompts share are not mistaken for them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_assets.base.digests import digest_bytes
from rl_assets.base.tables import TableWriter
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.schema import ROW_SCHEMA
from rl_assets.trainset.similar import Benchmark, contaminated, near_duplicates, prompt_texts
from tests.build import write_jsonl
from tests.checks.stores import contract_row
from tests.contract.rows import data_uri, png
from tests.rewards.builders import uid

QUESTION = "A farmer has seventeen sheep and all but nine of them run away so how many sheep are left"
OTHER = "A train leaves the station at noon and travels sixty miles in an hour and a half before it stops"


def test_a_prompt_with_one_word_changed_at_its_end_is_a_near_duplicate() -> None:
    texts = {"a": QUESTION, "b": OTHER, "c": QUESTION.replace("left", "gone")}
    assert near_duplicates(texts.items(), 0.8) == {"c": ("a", pytest.approx(14 / 16))}
    assert near_duplicates(texts.items(), 0.9) == {}


def test_case_punctuation_and_spacing_make_no_difference() -> None:
    texts = {"a": QUESTION, "b": "  " + QUESTION.upper().replace(" ", ",\n") + "?!"}
    assert near_duplicates(texts.items(), 1.0) == {"b": ("a", 1.0)}


def test_the_order_says_which_one_stays() -> None:
    texts = {"a": QUESTION, "b": QUESTION}
    assert list(near_duplicates(reversed(texts.items()), 0.8)) == ["a"]


def test_prompts_of_a_few_words_are_compared_whole() -> None:
    assert near_duplicates({"a": "one two", "b": "one two", "c": "one three"}.items(), 0.5) == {
        "b": ("a", 1.0)
    }


def test_prompts_without_words_are_nobodys_copy() -> None:
    assert near_duplicates({"a": "?", "b": "!"}.items(), 0.5) == {}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcd"), min_size=8, max_size=12).map(" ".join), max_size=6))
def test_what_is_found_is_as_similar_as_it_is_said_to_be(prompts: list[str]) -> None:
    texts = {str(number): text for number, text in enumerate(prompts)}

    def shingles(text: str) -> set[str]:
        words = text.split()
        return {" ".join(words[start : start + 5]) for start in range(len(words) - 4)}

    for copy, (first, similarity) in near_duplicates(texts.items(), 0.5).items():
        one, other = shingles(texts[copy]), shingles(texts[first])
        assert similarity == pytest.approx(len(one & other) / len(one | other))
        assert similarity >= 0.5


def test_a_quotation_of_n_words_contaminates() -> None:
    texts = {"a": f"Please: {QUESTION}", "b": OTHER}
    quote = "so THIS: has seventeen sheep, and all but nine of them run."
    assert contaminated(texts.items, [quote], 9) == {"a": "has seventeen sheep and all but nine of them"}
    assert contaminated(texts.items, [quote], 11) == {}


def test_an_instruction_in_many_prompts_is_no_quotation() -> None:
    rule = "think step by step and write the answer after four hashes at the end"
    texts = {str(number): f"{number} {rule}" for number in range(11)}
    assert contaminated(texts.items, [f"Another question. {rule}"], 8) == {}
    few = {key: texts[key] for key in list(texts)[:10]}
    assert contaminated(few.items, [f"Another question. {rule}"], 8).keys() == few.keys()


def test_a_prompts_text_is_that_of_its_messages(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},
    ]
    with TableWriter(tmp_path / "rows.parquet", ROW_SCHEMA) as writer:
        writer.write_rows([contract_row(0, prompt=json.dumps(messages))])
    assert list(prompt_texts(writer.table)) == [(uid(0), "Be brief.\nWhat is it?")]


def test_a_benchmark_is_every_text_in_its_rows(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "bench.jsonl",
        [{"question": "Q1", "n": 1}, {"messages": [{"role": "user", "content": "Q2"}]}],
    )
    benchmark = Benchmark(scan_files("bench.jsonl", root=tmp_path), tmp_path)
    assert list(benchmark.texts()) == ["Q1", "user", "Q2"]
    assert benchmark.media() == set()


def test_the_media_of_a_benchmark_are_found_as_bytes_data_uris_and_paths(tmp_path: Path) -> None:
    (tmp_path / "img").mkdir()
    pictures = [png(8 + n, 8) for n in range(3)]
    (tmp_path / "img/0.png").write_bytes(pictures[0])
    write_jsonl(
        tmp_path / "bench.jsonl",
        [{"image": "img/0.png", "question": "What is it?"}, {"images": [{"path": data_uri(pictures[1])}]}],
    )
    nested = [{"images": [{"bytes": pictures[2], "path": None}]}]
    pq.write_table(pa.Table.from_pylist(nested), tmp_path / "bench.parquet")
    benchmark = Benchmark(scan_files(["bench.jsonl", "bench.parquet"], root=tmp_path), tmp_path)
    assert benchmark.media() == set(map(digest_bytes, pictures))


def test_prompts_are_compared_with_those_that_show_the_same() -> None:
    texts = dict.fromkeys("abcd", QUESTION)
    looks = {"a": b"", "b": b"one", "c": b"one", "d": b""}
    assert near_duplicates(texts.items(), 0.8, looks) == {"c": ("b", 1.0), "d": ("a", 1.0)}
