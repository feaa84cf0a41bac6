"""What a trainer would pass over is named before anything is generated."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_assets.prompts.length import LENGTH_FILTERED_SCHEMA
from tests.checks.stores import bare_dataset, contract_row, evaluate, problems, put

TOOL = {"type": "function", "function": {"name": "add", "description": "d", "parameters": {}}}


def found(root: Path, *rows: dict[str, Any], **attributes: Any) -> list[str]:
    dataset = bare_dataset(root, **attributes)
    fitting = ({**row, "prompt_ids": [1], "prompt_length": 1} for row in rows)
    put(dataset, "length_filtered", LENGTH_FILTERED_SCHEMA, fitting)
    return problems(evaluate(dataset, "length_filtered", "trainers_read_rows"))


def asked(content: Any, **columns: list[Any]) -> dict[str, Any]:
    media = {
        name: [{"item": json.dumps(item), "bytes": None, "digest": None} for item in items]
        for name, items in columns.items()
    }
    messages = [{"role": "user", "content": content}]
    return contract_row(0, prompt=json.dumps(messages, separators=(",", ":")), **media)


def own(**columns: Any) -> dict[str, Any]:
    return contract_row(0, extra_columns=json.dumps(columns, separators=(",", ":")))


IMAGE = asked("<image>", images=["a.png"])
FRAMES = asked("<video>", videos=[["a.png", "b.png"]])
FORMS = {"curation": {"forms": ["trl", "openrlhf"]}}


def test_text_and_images_are_read_by_all(tmp_path: Path) -> None:
    parts = asked([{"type": "image", "image": "a.png"}, {"type": "text", "text": "?"}])
    assert found(tmp_path, contract_row(1), IMAGE, parts, own(level=3, tools=[]), **FORMS) == []


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (own(tools=[TOOL]), "tools"),
        (own(chat_template_kwargs={"enable_thinking": False}), "chat_template_kwargs"),
        (FRAMES, "videos"),
        (asked("<image>", images=[{"image": "a.png", "max_pixels": 640}]), "settings of an image"),
        (asked([{"type": "image", "image": "a.png", "max_pixels": 640}]), "settings of an image"),
    ],
)
def test_what_other_trainers_do_not_read_is_named_for_each(
    tmp_path: Path, row: dict[str, Any], field: str
) -> None:
    told = found(tmp_path, contract_row(1), row, **FORMS)
    assert [problem.partition(":")[0] for problem in told] == [
        f"TRL's GRPOTrainer does not read `{field}` (`curation.forms` has trl)",
        f"OpenRLHF does not read `{field}` (`curation.forms` has openrlhf)",
    ]
    assert found(tmp_path, row) == []


def test_tools_and_template_arguments_of_the_yaml_are_named(tmp_path: Path) -> None:
    data = {"train_files": "t.jsonl", "tool_config_path": "tools.yaml"}
    told = found(tmp_path, data=data, **FORMS)
    assert [problem.partition(" (")[0] for problem in told] == [
        "TRL's GRPOTrainer does not read the tools of `data`",
        "OpenRLHF does not read the tools of `data`",
    ]
    data = {"train_files": "t.jsonl", "apply_chat_template_kwargs": {"enable_thinking": False}}
    (told,) = found(tmp_path, data=data, **FORMS)
    assert told.startswith("OpenRLHF does not read the chat_template_kwargs of `data`")


def test_a_column_that_a_trainer_uses_itself_is_named(tmp_path: Path) -> None:
    assert len(found(tmp_path, own(label="x"), **FORMS)) == 1
    assert len(found(tmp_path, own(completion="x", messages=[]), **FORMS)) == 2
    assert found(tmp_path, own(label="x", completion="x")) == []


@pytest.mark.parametrize(
    "row",
    [
        asked("<video>", videos=["a.mp4"]),
        asked("<audio>", audios=["a.wav"]),
        asked("<video>", videos=["data:video/mp4;base64,AAAA"]),
        asked("<video>", videos=[{"bytes": None}]),
    ],
    ids=["video file", "audio file", "video as text", "video as bytes"],
)
def test_a_clip_needs_paths(tmp_path: Path, row: dict[str, Any]) -> None:
    (told,) = found(tmp_path, row)
    assert "opens it by its path alone: write `curation.media: paths`" in told
    assert found(tmp_path, row, curation={"media": "paths"}) == []
    assert found(tmp_path, FRAMES) == []
