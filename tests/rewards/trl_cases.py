"""The form `trl` read by the real TRL; run by test_other_trainers.py in a process that has it."""

import re
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from PIL import Image
from trl import GRPOConfig, GRPOTrainer

from rl_assets.prompts.render import PromptRenderer
from tests.prompts import processors
from tests.rewards.test_media import export, mixed, with_parts
from tests.verl_wheel import ROOT


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return processors.save_policy("qwen2_5_vl", tmp_path_factory.mktemp("policy"))


def reward_of_the_page() -> Any:
    """The reward function that the page of results shows."""
    page = (ROOT / "docs/using-results.md").read_text()
    (block,) = (
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def reward" in block
    )
    names: dict[str, Any] = {}
    exec(block[: block.index("train_dataset")] + block[block.index("def reward") :], names)
    return names["reward"]


def trainer(policy: Path, data: Any, reward: Any, folder: Path, **settings: Any) -> GRPOTrainer:
    config = GRPOConfig(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=4,
        max_steps=len(data),
        learning_rate=1e-3,
        shuffle_dataset=False,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        **settings,
    )
    return GRPOTrainer(
        model=transformers.AutoModelForImageTextToText.from_pretrained(policy, dtype=torch.float32),
        reward_funcs=reward,
        args=config,
        train_dataset=data,
        processing_class=transformers.AutoProcessor.from_pretrained(policy, padding_side="left"),
    )


def test_grpo_trains_on_rows_with_and_without_images(tmp_path: Path, policy: Path) -> None:
    """A step of the optimiser for every row. The policy sees the pictures, and the reward functions get every
    column."""
    rows = mixed(tmp_path)
    _, folder = export(tmp_path, rows, forms=["trl"])
    data = datasets.load_dataset(
        "parquet",
        data_files=str(folder / "trl/train.parquet"),
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    told: list[dict[str, Any]] = []
    score = reward_of_the_page()

    def reward(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        names = [name for name in columns if name in data.column_names]
        for index, prompt in enumerate(prompts):
            told.append({"prompt": prompt} | {name: columns[name][index] for name in names})
        assert score(prompts=prompts, completions=completions, **columns) == [0.0] * len(prompts)
        return [float(n % 2) for n in range(len(prompts))]

    made = trainer(policy, data, reward, tmp_path)
    before = {name: value.clone() for name, value in made.model.named_parameters()}
    made.train()
    changed = [name for name, value in made.model.named_parameters() if not torch.equal(value, before[name])]
    assert any("visual" in name for name in changed)
    assert {row["uid"] for row in told} == set(rows.read(["uid"])["uid"].to_pylist())
    for row in told:
        pictures = [part["image"] for part in parts(row["prompt"]) if part["type"] == "image"]
        assert len(pictures) == len(row["images"])
        assert all(isinstance(picture, Image.Image) for picture in pictures)
        assert "<image>" not in str(row["prompt"])
        assert row["ground_truth"] == row["reward_model"]["ground_truth"]
        assert row["extra_info"].keys() >= {"index"}


def parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        part for message in messages if isinstance(message["content"], list) for part in message["content"]
    ]


@pytest.mark.parametrize("form", ["bytes", "paths"])
def test_its_prompts_are_those_of_the_length_gate(tmp_path: Path, policy: Path, form: Any) -> None:
    rows = with_parts(tmp_path)
    _, folder = export(tmp_path, rows, form, forms=["trl"])
    data = datasets.Dataset.from_parquet(str(folder / "trl/train.parquet"), cache_dir=str(tmp_path / "cache"))
    made = trainer(policy, data, lambda prompts, **_: [0.0] * len(prompts), tmp_path)
    renderer = PromptRenderer.load(policy, root=tmp_path).media
    from trl.data_utils import prepare_multimodal_messages

    from rl_assets.contract.schema import decode_row

    expected = {
        record["uid"]: renderer.inputs({**decode_row(record), "source_file": record["source_file"]})[0]
        for record in rows.rows()
    }
    for row in data:
        prompt = prepare_multimodal_messages(row["prompt"], images=row["images"])
        ids, images, fields = made._tokenize_prompts([prompt])
        assert list(ids[0]) == expected[row["uid"]]
        assert len(images[0]) == len(fields["image_grid_thw"]) == len(row["images"])
