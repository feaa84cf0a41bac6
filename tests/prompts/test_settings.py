"""A row's own settings of the chat template hold for that row alone, or the row is set aside by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rl_assets.contract.schema import ROW_SCHEMA
from rl_assets.media.source import MediaSource
from rl_assets.prompts.measure import measure
from rl_assets.prompts.multimodal import MediaRenderer
from rl_assets.prompts.render import PromptRenderer
from rl_assets.prompts.reuse import _keys
from tests.prompts import media, processors
from tests.prompts.families import QWEN
from tests.prompts.processors import tokenizer

ASK = [{"role": "user", "content": "2 + 2?"}]
OFF = "<think>\n\n</think>"
SWITCH = "{%- if enable_thinking is false %}{{- '" + OFF.replace("\n", "\\n") + "' }}{%- endif %}"


def batch(*rows: dict[str, Any], extra_info: dict[int, Any] | None = None) -> pa.RecordBatch:
    """Rows of the contract with one prompt and these columns of their own."""
    records = [
        {
            "uid": str(index),
            "split": "train",
            "source_file": "data/rows.jsonl",
            "source_row": index,
            "data_source": "a",
            "prompt": json.dumps(ASK),
            "reward_model": "{}",
            "extra_info": json.dumps((extra_info or {}).get(index, {}), separators=(",", ":")),
            "extra_columns": json.dumps(columns, separators=(",", ":")),
        }
        for index, columns in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(records, schema=ROW_SCHEMA)


def own(**settings: Any) -> dict[str, Any]:
    return {"chat_template_kwargs": settings}


@pytest.fixture
def renderer() -> PromptRenderer:
    return PromptRenderer(tokenizer(QWEN))


def rendered(renderer: PromptRenderer, rows: pa.RecordBatch) -> list[bool]:
    """Per row whether thinking is switched off; every row is held against transformers."""
    measured = measure(renderer, rows, rows.num_rows)
    assert not measured.refused
    return [OFF in renderer.tokenizer.decode(ids) for ids in measured.encoded.split()]


def test_each_row_has_its_own(renderer: PromptRenderer) -> None:
    rows = batch({}, own(enable_thinking=False), own(enable_thinking=True), own(enable_thinking=False), own())
    assert rendered(renderer, rows) == [False, True, False, True, False]


@pytest.mark.parametrize("value", [True, False])
def test_a_row_counts_more_than_the_dataset(value: bool) -> None:
    renderer = PromptRenderer(tokenizer(QWEN), template_kwargs={"enable_thinking": not value})
    assert rendered(renderer, batch(own(enable_thinking=value), {})) == [not value, value]


def test_a_column_counts_more_than_extra_info_and_null_is_none(renderer: PromptRenderer) -> None:
    rows = batch(
        {},
        own(enable_thinking=True),
        own(enable_thinking=None),
        {},
        extra_info={number: own(enable_thinking=False) for number in range(3)}
        | {3: {"chat_template_kwargs": None}},
    )
    assert rendered(renderer, rows) == [True, False, True, False]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"enable_thinkign": False}, "does not read `enable_thinkign`, did you mean enable_thinking?"),
        ({"add_generation_prompt": False}, "`add_generation_prompt`"),
        ({"continue_final_message": True}, "`continue_final_message`"),
        ({"chat_template": "{{ 1 }}"}, "`chat_template`"),
        ({"messages": []}, "`messages`"),
        ("enable_thinking", "found text of 15 characters, expected an object"),
    ],
)
@pytest.mark.parametrize("place", ["column", "extra_info"])
def test_what_nobody_reads_sets_its_row_aside(
    renderer: PromptRenderer, settings: Any, said: str, place: str
) -> None:
    given = {"chat_template_kwargs": settings}
    rows = batch({}, given) if place == "column" else batch({}, {}, extra_info={1: given})
    measured = measure(renderer, rows)
    (why,) = measured.refused.values()
    assert (list(measured.refused), why.code) == ([1], "render.settings_invalid")
    assert said in (why.error or "")
    assert measured.encoded.lengths.tolist()[1] == 0 < measured.encoded.lengths.tolist()[0]


def test_ids_of_the_last_build_are_those_of_the_same_settings() -> None:
    rows = batch(
        {}, own(enable_thinking=False), own(enable_thinking=True), own(), {}, extra_info={4: own(a=1)}
    )
    one, off, on, empty, told = _keys(rows)
    assert len({one, off, on, told}) == 4
    assert one == empty


def test_rows_with_media_have_their_own_too(tmp_path: Path) -> None:
    """In the gate, and when their tensors are made for a rollout."""
    (tmp_path / "a.png").write_bytes(media.png(30, 30))
    processor = processors.qwen2_5_vl()
    processor.chat_template += SWITCH
    renderer = MediaRenderer(processor, MediaSource(tmp_path, "."))
    row = media.row("<image>?", images=["a.png"])
    rows = [row, row | own(enable_thinking=False), row | {"extra_info": own(enable_thinking=False)}]
    made = renderer.render(rows)
    assert [OFF in processor.tokenizer.decode(one.ids) for one in made] == [False, True, True]
    for one, given in zip(made, rows, strict=True):
        assert one.ids == renderer.inputs(given)[0]


def test_verify_renders_with_the_settings_of_the_row(renderer: PromptRenderer) -> None:
    alike = renderer.with_settings({"enable_thinking": False})
    (prompt,) = alike.render([ASK])
    alike.verify(ASK, None, np.array(prompt.ids))
    assert alike.stamp.fingerprint != renderer.stamp.fingerprint
