"""The form `openrlhf` read by the real OpenRLHF; run by test_other_trainers.py in a process that has it."""

import argparse
import ast
import importlib.util
import re
import shlex
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openrlhf.datasets import PromptDataset
from openrlhf.datasets.utils import blending_datasets
from openrlhf.utils.config import hierarchize
from openrlhf.utils.utils import get_tokenizer
from openrlhf.utils.vlm_utils import process_prompt_with_images

from rl_assets.base.tables import Table
from rl_assets.contract.schema import decode_row
from rl_assets.prompts.render import PromptRenderer
from tests.build import problem, write_jsonl
from tests.prompts import processors
from tests.rewards.test_media import contract, export, mixed, with_parts
from tests.verl_wheel import ROOT


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return processors.save_policy("qwen2_5_vl", tmp_path_factory.mktemp("policy"))


def parser() -> argparse.ArgumentParser:
    """The parser of its trainer, out of the file that imports a GPU's libraries."""
    spec = importlib.util.find_spec("openrlhf.cli.train_ppo_ray")
    assert spec is not None
    assert spec.origin is not None
    *_, main = ast.parse(Path(spec.origin).read_text()).body
    assert isinstance(main, ast.If)
    end = next(n for n, statement in enumerate(main.body) if "parse_args" in ast.unparse(statement))
    names: dict[str, Any] = {"argparse": argparse, "datetime": datetime}
    exec(compile(ast.Module(main.body[:end], []), spec.origin, "exec"), names)
    return names["parser"]


def command_line() -> list[str]:
    """The options that the page of results gives."""
    (line,) = re.findall(r"^(--data\.prompt_dataset .*)$", (ROOT / "docs/using-results.md").read_text(), re.M)
    return shlex.split(line)


def read(file: Path, policy: Path) -> PromptDataset:
    options = command_line()
    options[options.index("--data.prompt_dataset") + 1] = str(file)
    args = hierarchize(parser().parse_args([*options, "--actor.model_name_or_path", str(policy)]))
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: True, print=print)
    data = blending_datasets(
        args.data.prompt_dataset, args.data.prompt_probs, strategy, dataset_split=args.data.prompt_split
    )
    tokenizer = get_tokenizer(str(policy), None, "left", strategy)
    return PromptDataset(data, tokenizer, strategy, input_template=args.data.input_template)


def test_the_command_line_of_the_page_is_one_that_it_takes() -> None:
    args = parser().parse_args(command_line())
    assert getattr(args, "data.input_key") == "prompt"
    assert getattr(args, "data.label_key") == "label"
    assert getattr(args, "data.apply_chat_template") is True
    assert getattr(args, "data.image_key") == "images"
    with pytest.raises(SystemExit):
        parser().parse_args(["--input_key", "prompt"])


def ids(renderer: PromptRenderer, record: dict[str, Any]) -> list[int]:
    row = {**decode_row(record), "source_file": record["source_file"]}
    if row.get("images") or isinstance(row["prompt"][-1]["content"], list):
        assert renderer.media is not None
        return renderer.media.inputs(row)[0]
    return renderer.render([row["prompt"]])[0].ids or []


@pytest.mark.parametrize("form", ["bytes", "paths"])
@pytest.mark.parametrize("make", [mixed, with_parts])
def test_its_prompts_are_those_of_the_length_gate(tmp_path: Path, policy: Path, form: Any, make: Any) -> None:
    rows: Table = make(tmp_path)
    _, folder = export(tmp_path, rows, form, forms=["openrlhf"])
    data = read(folder / "openrlhf/train.parquet", policy)
    processor = get_tokenizer(str(policy), None)
    renderer = PromptRenderer.load(policy, root=tmp_path)
    records = list(rows.rows())
    assert len(data) == len(records)
    for record, (source, prompt, label, images) in zip(records, data, strict=True):
        row = decode_row(record)
        found, tensors, pictures = process_prompt_with_images(processor, prompt, images)
        assert found == ids(renderer, record)
        assert (source, label) == (row["data_source"], row["reward_model"]["ground_truth"])
        assert len(pictures) == len(images or [])
        assert (tensors is None) == (not images)


def test_a_text_that_quotes_a_placeholder_stays_text(tmp_path: Path, policy: Path) -> None:
    from rl_assets.trainset.forms import OPENRLHF

    (tmp_path / "raw").mkdir()
    write_jsonl(tmp_path / "raw/rows.jsonl", [problem(0)])
    rows = contract(tmp_path)
    row = decode_row(next(rows.rows()))
    row["prompt"] = [{"role": "user", "content": "What does <image> mean in HTML?"}]
    from openrlhf.datasets.prompts_dataset import preprocess_data

    template = get_tokenizer(str(policy), None).apply_chat_template
    made, _ = preprocess_data(OPENRLHF.row(row), None, "prompt", "label", template)
    assert "What does <image> mean in HTML?" in made
    assert "image_pad" not in made
