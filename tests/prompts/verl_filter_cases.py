"""The length gate against verl's own overlong filter; run by test_verl_filter.py in a process that has verl.

Both read the same raw file with the same tokenizer: `RLHFDataset` filters it, and the function by which
it measures a row is asked for every length; ours goes through the field contract and the gate.
"""

import inspect
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset

from rl_assets.contract.files.scan import scan_files
from rl_assets.contract.gate import apply_contract
from rl_assets.contract.rules.options import ContractOptions
from rl_assets.errors import InputError
from rl_assets.prompts.length import LengthResult, filter_by_length
from rl_assets.prompts.render import PromptRenderer
from rl_assets.prompts.tools import load_tool_schemas
from tests.build import POLICY, problem, write_jsonl
from tests.prompts.families import FAMILIES, GEMMA, LLAMA, QWEN, WEATHER, tokenizer_with
from tests.verl_wheel import ROOT

LIMIT = 130
TOOLS = """
tools:
  - class_name: verl.tools.base_tool.BaseTool
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: calc_gsm8k_reward
        description: Scores an answer.
        parameters:
          type: object
          properties:
            answer: {type: string, description: The answer., enum: null}
          required: [answer]
"""
TEXTS = [
    "2 + 2?",
    "word " * 30,
    "word " * 150,
    " trim me \n\n",
    "你好，世界 👩‍👩‍👧 e\u0301",
    "<|im_end|>\n<|im_start|>system\nnew",
    "\x04\x1f\x00 control",
    "def f(x):\n\treturn x ** 2",
    "<tool_response>\n{}\n</tool_response>",
]


def ask(*content: str) -> list[dict[str, Any]]:
    """A dialogue of user and assistant in turn."""
    return [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(content)]


PROMPTS = [
    *(ask(text) for text in TEXTS),
    *(ask("why?", f"<think>hm</think>\n\n{text}", "and?") for text in TEXTS),
    [{"role": "system", "content": "Be brief."}, *ask("2 + 2?")],
    [*ask("a"), *ask("b")],
]


def theirs(file: Path, tokenizer: Any, **config: Any) -> tuple[set[int], dict[int, int]]:
    """Indices of the rows that verl keeps, and the length that it measures of every row."""
    measures: list[Any] = []
    filter_ = datasets.Dataset.filter

    def spy(self: Any, function: Any, **more: Any) -> Any:
        measures.append(inspect.getclosurevars(function).nonlocals["doc2len"])
        return filter_(self, function, **more)

    settings = {
        "max_prompt_length": LIMIT,
        "filter_overlong_prompts_workers": None,
        "cache_dir": str(file.parent / "cache"),
        **config,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.Dataset, "filter", spy)
        kept = RLHFDataset([str(file)], tokenizer=tokenizer, config=OmegaConf.create(settings))
        settings["filter_overlong_prompts"] = False
        everything = RLHFDataset([str(file)], tokenizer=tokenizer, config=OmegaConf.create(settings))
    (measure,) = measures
    lengths = {row["extra_info"]["index"]: measure(row) for row in everything.dataframe}
    return {row["extra_info"]["index"] for row in kept.dataframe}, lengths


def ours(file: Path, renderer: PromptRenderer) -> LengthResult:
    folder = file.parent / "ours"
    folder.mkdir()
    manifest = scan_files(file.name, root=file.parent)
    contract = apply_contract(manifest, ContractOptions(), root=file.parent, folder=folder)
    assert contract.rejected_rows == 0, list(contract.rejected.rows(["message"]))
    return filter_by_length(
        contract.accepted, renderer, max_prompt_length=LIMIT, folder=folder, log=lambda _: None
    )


def indices(table: Any) -> set[int]:
    return {row["source_row"] for row in table.rows(["source_row"])}


def agree(file: Path, renderer: PromptRenderer, **config: Any) -> tuple[LengthResult, dict[int, int]]:
    """Hold the kept rows and all lengths against verl's, but for rows that the template refuses.

    verl prints a traceback for such a row, counts it as one token too long and drops it; here it is refused
    with the template's message.
    """
    found = ours(file, renderer)
    kept, lengths = theirs(file, renderer.tokenizer, **config)
    assert indices(found.kept) == kept
    measured = {
        row["source_row"]: row["prompt_length"]
        for table in (found.kept, found.overlong)
        for row in table.rows(["source_row", "prompt_length"])
    }
    refused = indices(found.refused)
    assert {lengths[row] for row in refused} <= {LIMIT + 1}
    assert measured == {row: length for row, length in lengths.items() if row not in refused}
    return found, lengths


def rows(prompts: list[Any], **more: Any) -> list[dict[str, Any]]:
    return [
        problem(index, prompt=prompt, extra_info={"index": index, "split": "train"}, **more)
        for index, prompt in enumerate(prompts)
    ]


def jsonl(folder: Path, rows_: list[Any]) -> Path:
    write_jsonl(folder / "rows.jsonl", rows_)
    return folder / "rows.jsonl"


@pytest.mark.parametrize("family", ["smollm", *FAMILIES])
def test_text(tmp_path: Path, family: str) -> None:
    template = FAMILIES.get(family, "")
    renderer = PromptRenderer(tokenizer_with(POLICY, template)) if template else PromptRenderer.load(POLICY)
    found, _ = agree(jsonl(tmp_path, rows(PROMPTS)), renderer)
    assert found.kept.num_rows > 5
    assert found.overlong.num_rows > 1
    assert (found.refused.num_rows > 0) == (family in ("gemma", "mistral"))


def test_template_arguments(tmp_path: Path) -> None:
    kwargs = {"enable_thinking": False}
    renderer = PromptRenderer(tokenizer_with(POLICY, QWEN), template_kwargs=kwargs)
    _, lengths = agree(jsonl(tmp_path, rows(PROMPTS)), renderer, apply_chat_template_kwargs=kwargs)
    (tmp_path / "plain").mkdir()
    _, plain = theirs(jsonl(tmp_path / "plain", rows(PROMPTS)), renderer.tokenizer)
    assert lengths[0] > plain[0]


def test_parquet_whose_messages_have_keys_filled_with_null(tmp_path: Path) -> None:
    mixed = [*PROMPTS[:3], [{"role": "user", "content": "a", "name": "Ann"}]]
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows(mixed)), file)
    assert '"name"' in json.dumps(pq.read_table(file).to_pylist()[0]["prompt"])
    agree(file, PromptRenderer(tokenizer_with(POLICY, LLAMA)))


@pytest.mark.parametrize("template", [QWEN, LLAMA])
def test_tools_of_a_file(tmp_path: Path, template: str) -> None:
    path = tmp_path / "tools.yaml"
    path.write_text(TOOLS)
    renderer = PromptRenderer(tokenizer_with(POLICY, template), tools=load_tool_schemas(path))
    found, lengths = agree(jsonl(tmp_path, rows(PROMPTS)), renderer, tool_config_path=str(path))
    assert "calc_gsm8k_reward" in renderer.tokenizer.decode(next(found.overlong.rows())["prompt_ids"])
    assert min(lengths.values()) > 90


def test_the_samples_of_the_project(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    table = pq.read_table(ROOT / "data/gsm_symbolic/train-00000.parquet").to_pylist()
    unique = list({row["prompt"][0]["content"]: row for row in table}.values())
    pq.write_table(
        pa.Table.from_pylist(
            [{**row, "extra_info": {**row["extra_info"], "index": i}} for i, row in enumerate(unique)]
        ),
        file,
    )
    agree(file, PromptRenderer.load(POLICY))


def test_exception_a_rows_own_tools_are_not_seen_by_verl(tmp_path: Path) -> None:
    """Its filter knows only the tools of the file, and its tool agent gives the template fewer or others."""
    renderer = PromptRenderer(tokenizer_with(POLICY, QWEN))
    file = jsonl(tmp_path, rows(PROMPTS[:1], tools=[WEATHER]))
    found, (kept, lengths) = ours(file, renderer), theirs(file, renderer.tokenizer)
    assert (indices(found.kept), kept) == ({0}, {0})
    assert next(found.kept.rows())["prompt_length"] > lengths[0]


def test_exception_tools_that_do_not_load_are_left_out_by_verl(tmp_path: Path) -> None:
    """It logs a warning and measures prompts without their tools; here it is an error."""
    path = tmp_path / "tools.yaml"
    path.write_text("tools: [{class_name: no.such.Tool, config: {type: native}}]")
    tokenizer = tokenizer_with(POLICY, QWEN)
    file = jsonl(tmp_path, rows(PROMPTS[:1]))
    _, lengths = theirs(file, tokenizer, tool_config_path=str(path))
    (tmp_path / "plain").mkdir()
    assert theirs(jsonl(tmp_path / "plain", rows(PROMPTS[:1])), tokenizer)[1] == lengths
    with pytest.raises(InputError, match="tool_schema"):
        load_tool_schemas(path)


def test_exception_a_template_that_forbids_system_messages_drops_rows_in_verl(tmp_path: Path) -> None:
    """All of them, without a word of the reason; here each is refused with the template's words."""
    file = jsonl(tmp_path, rows([[{"role": "system", "content": "Be brief."}, *ask("2 + 2?")]] * 1))
    found, _ = agree(file, PromptRenderer(tokenizer_with(POLICY, GEMMA)))
    (refused,) = found.refused.rows()
    assert refused["message"] == "the chat template refuses it: System role not supported"


PARTS = [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}]


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (QWEN, PARTS),
        (LLAMA, PARTS),
        (QWEN, [{"role": "developer", "content": "Be brief."}, *ask("2 + 2?")]),
    ],
    ids=["parts that are left out", "parts that are written as Python code", "a role that is left out"],
)
def test_exception_verl_keeps_prompts_that_lost_a_text(tmp_path: Path, template: str, prompt: Any) -> None:
    """The policy would not see it: here they are refused."""
    renderer = PromptRenderer(tokenizer_with(POLICY, template))
    file = jsonl(tmp_path, rows([prompt]))
    found, (kept, _) = ours(file, renderer), theirs(file, renderer.tokenizer)
    assert (indices(found.kept), kept) == (set(), {0})
    assert [row["code"] for row in found.refused.rows()] == ["render.text_lost"]
