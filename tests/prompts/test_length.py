"""The length gate: every row is kept, set aside, or refused; nothing is rendered twice."""

import json
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_assets.base.tables import Table
from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.prompts import length as length_module
from rl_assets.prompts.length import LengthResult, cut_ids, filter_by_length
from rl_assets.prompts.measure import Job, measure, measure_all, measure_in_processes, media_counts
from rl_assets.prompts.render import PromptRenderer
from tests.build import problem, write_jsonl
from tests.prompts.families import GEMMA, QWEN, WEATHER, tokenizer_with
from tests.small import WITH_TOOLS

LIMIT = 50


def asking(number: int, content: Any, **more: Any) -> dict[str, Any]:
    return problem(number, prompt=[{"role": "user", "content": content}], **more)


ROWS = [
    *(problem(number) for number in range(6)),
    asking(6, "word " * 80),
    asking(7, "word " * 400),
    asking(8, [{"type": "text", "text": "a part"}]),
    asking(9, "With tools.", tools=[WEATHER]),
    asking(10, "No tools.", tools=None),
]


@pytest.fixture(scope="module")
def renderer(policy: Path) -> PromptRenderer:
    return PromptRenderer(
        tokenizer_with(policy, QWEN.replace("is string else ''", "is string else content + ''"))
    )


def contract(folder: Path, rows: list[Any]) -> Table:
    write_jsonl(folder / "rows.jsonl", rows)
    manifest = scan_files("rows.jsonl", root=folder)
    out = folder / "contract"
    out.mkdir(exist_ok=True)
    result = apply_contract(manifest, ContractOptions(), root=folder, folder=out)
    assert result.rejected_rows == 0, list(result.rejected.rows(["message"]))
    return result.accepted


def gate(
    folder: Path, table: Table, renderer: PromptRenderer, name: str = "gate", log: Any = None, **more: Any
) -> LengthResult:
    (folder / name).mkdir(exist_ok=True)
    settings = {"max_prompt_length": LIMIT, "log": log or (lambda _: None), **more}
    return filter_by_length(table, renderer, folder=folder / name, **settings)


def built(result: LengthResult) -> tuple[Table, Table]:
    return result.kept, result.overlong


def places(table: Table) -> list[int]:
    return [row["source_row"] for row in table.rows(["source_row"])]


def test_every_row_is_in_one_table_and_the_ids_are_the_templates(
    tmp_path: Path, renderer: PromptRenderer
) -> None:
    result = gate(tmp_path, contract(tmp_path, ROWS), renderer)
    assert places(result.kept) == [0, 1, 2, 3, 4, 5, 10]
    assert places(result.overlong) == [6, 7, 9]
    assert places(result.refused) == [8]
    assert (result.rendered, result.reused, result.cut, result.encoder) == (11, 0, 0, "fastokens")
    for row in [*result.kept.rows(), *result.overlong.rows()]:
        tools = json.loads(row["extra_columns"]).get("tools")
        ids = renderer.tokenizer.apply_chat_template(
            json.loads(row["prompt"]), tools=tools, add_generation_prompt=True, return_dict=False
        )
        assert row["prompt_length"] == len(ids)
        assert row["prompt_ids"] == (ids if len(ids) <= 2 * LIMIT else None)
    codes = {row["source_row"]: (row["code"], row["path"], row["message"]) for row in result.refused.rows()}
    assert codes[8][:2] == ("render.template_error", "prompt")


def test_a_prompt_of_exactly_the_limit_is_kept(tmp_path: Path, renderer: PromptRenderer) -> None:
    table = contract(tmp_path, ROWS[:1])
    (row,) = gate(tmp_path, table, renderer, max_prompt_length=10_000).kept.rows()
    exact = row["prompt_length"]
    assert places(gate(tmp_path, table, renderer, max_prompt_length=exact).kept) == [0]
    assert places(gate(tmp_path, table, renderer, max_prompt_length=exact - 1).overlong) == [0]


def test_a_rows_own_tools_take_the_place_of_the_files(tmp_path: Path, renderer: PromptRenderer) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    rows = [asking(1, "Hi"), asking(2, "Hi", tools=[other]), asking(3, "Hi", tools=[])]
    result = gate(
        tmp_path, contract(tmp_path, rows), replace(renderer, tools=[WEATHER]), max_prompt_length=900
    )
    texts = [renderer.tokenizer.decode(row["prompt_ids"]) for row in result.kept.rows()]
    assert ["weather" in text for text in texts] == [True, False, False]
    assert ["other" in text for text in texts] == [False, True, False]


def test_an_argument_of_a_tool_call_is_no_medium(tmp_path: Path, policy: Path) -> None:
    call = {"type": "function", "function": {"name": "draw", "arguments": {"type": "image"}}}
    asked = [
        {"role": "user", "content": "Draw."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Done."},
    ]
    writes_calls = PromptRenderer(tokenizer_with(policy, WITH_TOOLS))
    result = gate(tmp_path, contract(tmp_path, [problem(1, prompt=asked)]), writes_calls)
    assert (places(result.kept), places(result.refused)) == ([0], [])


def test_tools_of_the_dataset_that_the_template_does_not_write_refuse_every_row(
    tmp_path: Path, policy: Path
) -> None:
    blind = PromptRenderer(tokenizer_with(policy, GEMMA), tools=[WEATHER])
    rows = [problem(1), problem(2), problem(3), problem(4, tools=[])]
    result = gate(tmp_path, contract(tmp_path, rows), blind)
    assert (places(result.kept), places(result.refused)) == ([3], [0, 1, 2])
    assert {row["code"] for row in result.refused.rows(["code"])} == {"render.tools_lost"}


WARNED: Any = {"render.tools_lost": "warning", "render.tool_calls_lost": "warning"}


def warned(table: Table) -> dict[int, list[tuple[str, str]]]:
    """The warnings of rows, by their number: code and path."""
    return {
        row["source_row"]: [(one["code"], one["path"]) for one in row["warnings"]]
        for row in table.rows(["source_row", "warnings"])
        if row["warnings"]
    }


def test_rows_go_on_without_what_a_warning_lets_be_lost(tmp_path: Path, policy: Path) -> None:
    blind = PromptRenderer(tokenizer_with(policy, GEMMA))
    called = {"type": "function", "function": {"name": "draw", "arguments": {"what": "a cat"}}}
    turns = [
        {"role": "user", "content": "Draw."},
        {"role": "assistant", "content": "I do.", "tool_calls": [called]},
        {"role": "user", "content": "Thanks."},
    ]
    rows = [
        problem(0),
        problem(1, tools=[WEATHER]),
        problem(2, prompt=turns, tools=[WEATHER]),
        asking(3, "word " * 80, tools=[WEATHER]),
        asking(4, [{"type": "text", "text": "a part"}], tools=[WEATHER]),
    ]
    table = contract(tmp_path, rows)
    tools = ("render.tools_lost", "tools[0].function.name")
    calls = ("render.tool_calls_lost", "prompt[1].tool_calls[0].function.name")
    result = gate(tmp_path, table, blind, severities=WARNED, max_prompt_length=80)
    assert (places(result.kept), places(result.overlong)) == ([0, 1, 2], [3])
    assert warned(result.kept) == {1: [tools], 2: [tools, calls]}
    assert warned(result.overlong) == {3: [tools]}
    assert result.warnings == {"render.tools_lost": 3, "render.tool_calls_lost": 1}
    # The text that is lost is still an error, and the row has that alone as its reason.
    (refused,) = result.refused.rows(["source_row", "errors"])
    assert (refused["source_row"], [one["code"] for one in refused["errors"]]) == (4, ["render.text_lost"])
    # The ids are those that the template gives.
    for row in result.kept.rows(["prompt", "prompt_ids"]):
        ids = blind.tokenizer.apply_chat_template(
            json.loads(row["prompt"]), add_generation_prompt=True, return_dict=False
        )
        assert row["prompt_ids"] == ids
    strict = gate(tmp_path, table, blind, "strict", max_prompt_length=80)
    assert (places(strict.kept), places(strict.overlong), strict.warnings) == ([0], [], {})
    errors = {row["source_row"]: [e["code"] for e in row["errors"]] for row in strict.refused.rows()}
    assert errors[2] == ["render.tools_lost", "render.tool_calls_lost"]


def test_what_renders_to_nothing_is_refused(tmp_path: Path, policy: Path) -> None:
    silent = PromptRenderer(tokenizer_with(policy, "{% if false %}x{% endif %}"))
    result = gate(tmp_path, contract(tmp_path, ROWS[:1]), silent)
    assert [row["code"] for row in result.refused.rows()] == ["render.empty_prompt"]


@pytest.mark.parametrize("truncation", ["left", "right", "middle"])
def test_a_cut_prompt_is_cut_as_verl_cuts_and_keeps_its_length(
    tmp_path: Path, renderer: PromptRenderer, truncation: Any
) -> None:
    table = contract(tmp_path, ROWS)
    whole = {
        row["source_row"]: row for row in gate(tmp_path, table, renderer, max_prompt_length=5_000).kept.rows()
    }
    result = gate(tmp_path, table, renderer, "cut", truncation=truncation)
    assert (places(result.overlong), result.cut) == ([], 3)
    for row in result.kept.rows():
        ids = whole[row["source_row"]]["prompt_ids"]
        was_cut = len(ids) > LIMIT
        half = LIMIT // 2
        expected = {"left": ids[-LIMIT:], "right": ids[:LIMIT], "middle": ids[:half] + ids[half - LIMIT :]}
        assert row["prompt_ids"] == (expected[truncation] if was_cut else ids)
        assert row["prompt_length"] == len(row["prompt_ids"]) <= LIMIT
        assert row["uncut_length"] == (len(ids) if was_cut else None)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_middle_of_an_odd_limit_keeps_one_more_at_the_end(limit: int) -> None:
    ids = np.arange(9, dtype=np.int32)
    half = limit // 2
    assert cut_ids(ids, limit, "middle").tolist() == [*range(half), *range(9 - (limit - half), 9)]
    assert cut_ids(ids, 9, "middle") is ids


class TestASecondBuild:
    """What the last build rendered is used again: same rows, same bytes, no rendering."""

    def again(
        self, tmp_path: Path, renderer: PromptRenderer, first: LengthResult, table: Table, **more: Any
    ) -> LengthResult:
        """A second build, held against one that knows nothing of the first."""
        second = gate(tmp_path, table, renderer, "second", earlier=built(first), **more)
        fresh = gate(tmp_path, table, renderer, "fresh", **more)
        for name in ("kept", "overlong", "refused"):
            assert getattr(second, name).digest == getattr(fresh, name).digest, name
        assert second.rendered + second.reused == table.num_rows
        return second

    @pytest.fixture
    def first(self, tmp_path: Path, renderer: PromptRenderer) -> LengthResult:
        return gate(tmp_path, contract(tmp_path, ROWS), renderer, "first")

    def test_without_a_change_only_refused_rows_are_tried_again(
        self, tmp_path: Path, renderer: PromptRenderer, first: LengthResult
    ) -> None:
        assert self.again(tmp_path, renderer, first, contract(tmp_path, ROWS)).rendered == 1

    def test_only_changed_rows_are_rendered(
        self, tmp_path: Path, renderer: PromptRenderer, first: LengthResult
    ) -> None:
        rows = [
            problem(99),
            *reversed(ROWS[1:8]),
            asking(9, "With tools.", tools=[{"function": {"name": "b"}}]),
        ]
        rows[1]["reward_model"] = {"ground_truth": "other"}
        assert self.again(tmp_path, renderer, first, contract(tmp_path, rows)).rendered == 2

    @pytest.mark.parametrize("limit", [20, 45, 2 * LIMIT])
    def test_another_limit_renders_nothing(
        self, tmp_path: Path, renderer: PromptRenderer, first: LengthResult, limit: int
    ) -> None:
        rows = contract(tmp_path, [row for row in ROWS if row is not ROWS[8]])
        first = gate(tmp_path, rows, renderer, "first")
        assert self.again(tmp_path, renderer, first, rows, max_prompt_length=limit).rendered == 0

    def test_far_beyond_twice_the_limit_there_are_no_ids_to_use(
        self, tmp_path: Path, renderer: PromptRenderer, first: LengthResult
    ) -> None:
        second = self.again(tmp_path, renderer, first, contract(tmp_path, ROWS[:8]), max_prompt_length=4_000)
        assert (second.rendered, places(second.kept)) == (1, [*range(8)])

    def test_cut_rows_are_used_again_where_they_are_cut_alike(
        self, tmp_path: Path, renderer: PromptRenderer
    ) -> None:
        rows = contract(tmp_path, ROWS[:8])
        first = gate(tmp_path, rows, renderer, "first", truncation="left")
        assert self.again(tmp_path, renderer, first, rows, truncation="left").rendered == 0
        assert self.again(tmp_path, renderer, first, rows, truncation="right").rendered == 2
        assert self.again(tmp_path, renderer, first, rows).rendered == 1

    def test_another_stamp_renders_everything(
        self, tmp_path: Path, policy: Path, renderer: PromptRenderer, first: LengthResult
    ) -> None:
        table = contract(tmp_path, ROWS[:6])
        other = PromptRenderer(tokenizer_with(policy, GEMMA))
        assert self.again(tmp_path, other, first, table).rendered == 6
        thinking = replace(renderer, template_kwargs={"enable_thinking": False})
        assert self.again(tmp_path, thinking, first, table).rendered == 6

    def test_a_template_that_asks_for_the_date_is_good_for_a_day(
        self, tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dated = PromptRenderer(tokenizer_with(policy, QWEN + "{{ strftime_now('%d %b') }}"))
        table = contract(tmp_path, ROWS[:4])
        lines: list[str] = []
        first = gate(tmp_path, table, dated, "first", log=lines.append)
        assert "writes today's date into prompts" in lines[0]
        assert gate(tmp_path, table, dated, "today", earlier=built(first)).rendered == 0

        class Tomorrow(date):
            @classmethod
            def today(cls) -> date:
                return date.fromordinal(date.today().toordinal() + 1)

        monkeypatch.setattr(length_module, "date", Tomorrow)
        assert gate(tmp_path, table, dated, "tomorrow", earlier=built(first)).rendered == 4

    def test_what_a_prompt_lacks_is_looked_for_again(self, tmp_path: Path, policy: Path) -> None:
        blind = PromptRenderer(tokenizer_with(policy, GEMMA))
        rows = [problem(0), problem(1, tools=[WEATHER]), asking(2, "word " * 80, tools=[WEATHER])]
        table = contract(tmp_path, rows)
        first = gate(tmp_path, table, blind, "first", severities=WARNED)
        second = self.again(tmp_path, blind, first, table, severities=WARNED, max_prompt_length=400)
        assert (second.rendered, sorted(warned(second.kept))) == (2, [1, 2])
        strict = self.again(tmp_path, blind, second, table, max_prompt_length=400)
        assert (places(strict.kept), places(strict.refused)) == ([0], [1, 2])

    def test_what_other_code_made_is_not_used_again(
        self, tmp_path: Path, renderer: PromptRenderer, first: LengthResult
    ) -> None:
        table = contract(tmp_path, ROWS)
        other = gate(tmp_path, table, renderer, "other", earlier=built(first), code="newer")
        assert (other.rendered, other.reused) == (table.num_rows, 0)
        assert gate(tmp_path, table, renderer, "next", earlier=built(other), code="newer").reused == 10

    def test_a_last_build_that_cannot_be_read_is_a_build_without_one(
        self, tmp_path: Path, renderer: PromptRenderer, first: LengthResult
    ) -> None:
        table = contract(tmp_path, ROWS[:3])
        (tmp_path / "bad.parquet").write_bytes(b"PAR1 cut")
        lines: list[str] = []
        bad = Table(tmp_path / "bad.parquet")
        assert gate(tmp_path, table, renderer, "next", log=lines.append, earlier=(bad, bad)).rendered == 3
        assert any("bad.parquet is not used again" in line for line in lines)


def test_a_sample_that_differs_has_everything_rendered_by_transformers(
    tmp_path: Path, renderer: PromptRenderer
) -> None:
    table = contract(tmp_path, ROWS)
    wrong = replace(renderer)
    encode = wrong.encoder.encode
    wrong.encoder.encode = lambda texts: replace(encode(texts), ids=encode(texts).ids + 1)  # type: ignore[method-assign]
    lines: list[str] = []
    result = gate(tmp_path, table, wrong, log=lines.append)
    assert (result.encoder, result.slower) == ("tokenizers", "fastokens gives other ids than tokenizers")
    assert any("rendered again by transformers alone" in line for line in lines)
    right = gate(tmp_path, table, renderer, "right")
    assert result.kept.read().equals(right.kept.read())


def test_without_the_fast_back_end_the_answer_is_the_same_and_the_log_says_what_to_install(
    tmp_path: Path, renderer: PromptRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = contract(tmp_path, ROWS)
    fast = gate(tmp_path, table, renderer, "fast")
    for package in ("fastokens", "minijinja"):
        monkeypatch.setitem(sys.modules, package, None)
    lines: list[str] = []
    plain = gate(tmp_path, table, replace(renderer), "plain", log=lines.append)
    assert (plain.encoder, plain.kept.digest) == ("tokenizers", fast.kept.digest)
    assert sum("pip install fastokens" in line for line in lines) == 1


def test_another_text_of_the_compiled_template_is_named(renderer: PromptRenderer, tmp_path: Path) -> None:
    wrong = replace(renderer)
    engine = wrong.template.interpreted
    wrong.template.interpreted = lambda *arguments: engine(*arguments) + "!"  # type: ignore[method-assign]
    result = gate(tmp_path, contract(tmp_path, ROWS[:2]), wrong)
    assert result.slower == "the compiled chat template gives another text than apply_chat_template"


def test_of_every_so_many_rows_one_is_held_against_transformers(
    tmp_path: Path, renderer: PromptRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Any] = []
    monkeypatch.setattr(PromptRenderer, "verify", lambda self, messages, *_: held.append(messages))
    (batch,) = contract(tmp_path, ROWS).batches()
    measure(renderer, batch)
    assert len(held) == 1
    monkeypatch.setattr("rl_assets.prompts.measure._ONE_IN", 3)
    measure(renderer, batch)
    assert len(held) == 1 + 3


@pytest.mark.parametrize("limit", [{"_BATCH_ROWS": 5}, {"_BATCH_BYTES": 1}, {"_BATCH_BYTES": 2_000}])
def test_what_is_written_does_not_depend_on_the_size_of_a_batch(
    limit: dict[str, int], renderer: PromptRenderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = contract(tmp_path, ROWS)
    once = gate(tmp_path, table, renderer)
    for name, value in limit.items():
        monkeypatch.setattr(length_module, name, value)
    many = gate(tmp_path, table, renderer, "many")
    for kind in ("kept", "overlong", "refused"):
        assert getattr(many, kind).digest == getattr(once, kind).digest


def jobs(table: Table) -> list[Job]:
    return [
        Job.of(batch, np.full(batch.num_rows, -1), media_counts(batch)) for batch in table.batches(size=3)
    ]


def test_processes_give_the_same_in_the_same_order(tmp_path: Path, renderer: PromptRenderer) -> None:
    table = contract(tmp_path, ROWS)
    here = [measure(renderer, job.todo) for job in jobs(table)]
    there = list(measure_in_processes(jobs(table), renderer, 2, lambda _: None))
    assert [job.batch["source_row"][0].as_py() for job, _ in there] == [0, 3, 6, 9]
    for (_, found), expected in zip(there, here, strict=True):
        assert np.array_equal(found.encoded.ids, expected.encoded.ids)
        assert np.array_equal(found.encoded.lengths, expected.encoded.lengths)
        assert found.refused == expected.refused


def test_processes_are_started_only_where_they_save_more_than_they_cost(
    tmp_path: Path, renderer: PromptRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def record(rest: Any, renderer: PromptRenderer, workers: int, log: Any) -> Any:
        started.append(workers)
        return ((job, measure(renderer, job.todo)) for job in rest)

    monkeypatch.setattr("rl_assets.prompts.measure.measure_in_processes", record)
    monkeypatch.setattr("rl_assets.prompts.measure.cores", lambda: 4)
    monkeypatch.setattr("rl_assets.prompts.measure._TIMED", 0)
    table = contract(tmp_path, ROWS)

    def count(total: int) -> int:
        return len(list(measure_all(jobs(table), renderer, total, lambda _: None)))

    assert (count(len(ROWS)), started) == (4, [])
    assert (count(10**9), started) == (4, [4])
