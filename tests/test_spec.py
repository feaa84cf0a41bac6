"""What a defs.yaml may say: verl's keys are honoured, or refused by name."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from rl_assets.spec import DataSpec, DataToRolloutSpec

MINIMAL = {"dataset": "toy", "data": {"train_files": "a.jsonl"}, "policy": {"path": "p"}}

# verl 0.9's own data block with its defaults, file names and tool paths aside.
VERL_BLOCK = {
    "tokenizer": None,
    "use_shm": False,
    "train_files": "train.parquet",
    "val_files": "test.parquet",
    "train_max_samples": -1,
    "val_max_samples": -1,
    "prompt_key": "prompt",
    "reward_fn_key": "data_source",
    "max_prompt_length": 512,
    "max_response_length": 512,
    "train_batch_size": 1024,
    "gen_batch_size": None,
    "val_batch_size": None,
    "tool_config_path": None,
    "function_tool_path": None,
    "return_raw_input_ids": False,
    "return_raw_chat": True,
    "return_full_prompt": False,
    "shuffle": True,
    "seed": None,
    "dataloader_num_workers": 8,
    "image_patch_size": 14,
    "validation_shuffle": False,
    "filter_overlong_prompts": False,
    "filter_overlong_prompts_workers": 1,
    "truncation": "error",
    "image_key": "images",
    "video_key": "videos",
    "audio_key": "audios",
    "trust_remote_code": False,
    "return_multi_modal_inputs": True,
    "apply_chat_template_kwargs": {},
    "mm_processor_kwargs": {},
    "custom_cls": {"path": None, "name": None},
    "sampler": {"class_path": None, "class_name": None},
    "datagen": {"path": None, "name": None},
}


def schema_errors(attributes: dict[str, Any]) -> list[tuple[str, str]]:
    """What `dg check yaml` finds: the path of the field and the message."""
    validator = Draft202012Validator(DataToRolloutSpec.model_json_schema())
    return [(error.json_path, error.message) for error in validator.iter_errors(attributes)]


def test_verls_data_block_can_be_pasted() -> None:
    assert not schema_errors({**MINIMAL, "data": VERL_BLOCK})
    data = DataSpec.model_validate(VERL_BLOCK)
    assert (data.train_paths, data.val_paths) == (["train.parquet"], ["test.parquet"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("truncation", "both"),
        ("tokenizer", "another/tokenizer"),
        ("function_tool_path", "tools.py"),
        ("return_raw_chat", False),
        ("return_full_prompt", True),
        ("return_raw_input_ids", True),
        ("custom_cls.path", "my_dataset.py"),
    ],
)
def test_a_key_that_cannot_be_honoured_is_refused_by_name(key: str, value: Any) -> None:
    block, _, inner = key.partition(".")
    attributes = {**MINIMAL, "data": {**VERL_BLOCK, block: {inner: value} if inner else value}}
    assert [path for path, _ in schema_errors(attributes)] == [f"$.data.{key}"]
    with pytest.raises(ValidationError, match=rf"data\.{key}"):
        DataToRolloutSpec.model_validate(attributes)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"data": {"train_files": "a", "max_prompt_length": "forty"}}, "$.data.max_prompt_length"),
        ({"data": {"train_files": "a", "max_prompt_length": 0}}, "$.data.max_prompt_length"),
        ({"data": {"train_files": "a", "train_file": "b"}}, "$.data"),
        ({"data": {}}, "$.data"),
        ({"dataset": "a b"}, "$.dataset"),
        ({"rollout": {"n": 0}}, "$.rollout.n"),
        ({"rollout": {"top_p": 1.5}}, "$.rollout.top_p"),
        ({"rollout": {"name": "vllm"}}, "$.rollout.name"),
        ({"policy": {"path": "p", "dtype": "int8"}}, "$.policy.dtype"),
        ({"checks": {"reject_rate": {"max": 2}}}, "$.checks.reject_rate.max"),
        ({"checks": {"reject_rate": {"severity": "fatal"}}}, "$.checks.reject_rate.severity"),
        ({"schedule": {"cron": "nightly"}}, "$.schedule.cron"),
        ({"unknown": 1}, "$"),
    ],
)
def test_every_mistake_is_found_by_the_schema_at_its_field(changes: dict[str, Any], path: str) -> None:
    attributes = {**MINIMAL, **changes}
    assert path in [found for found, _ in schema_errors(attributes)]
    with pytest.raises(ValidationError):
        DataToRolloutSpec.model_validate(attributes)


def test_files_may_be_empty_for_one_split_only() -> None:
    assert DataSpec.model_validate({"val_files": "a"}).train_paths == []
    with pytest.raises(ValidationError, match="both empty"):
        DataSpec.model_validate({"train_files": [], "val_files": []})


def test_a_time_zone_is_an_iana_name() -> None:
    DataToRolloutSpec.model_validate({**MINIMAL, "schedule": {"timezone": "Europe/Berlin"}})
    with pytest.raises(ValidationError, match="IANA"):
        DataToRolloutSpec.model_validate({**MINIMAL, "schedule": {"timezone": "Berlin"}})


def test_every_key_is_described() -> None:
    schema = DataToRolloutSpec.model_json_schema()
    models = [schema, *schema["$defs"].values()]
    undescribed = [
        f"{model['title']}.{key}"
        for model in models
        for key, field in model.get("properties", {}).items()
        if "description" not in field
    ]
    assert undescribed == []


def test_max_samples_of_minus_one_is_no_cap() -> None:
    data = DataSpec.model_validate({"train_files": "a", "val_max_samples": 3})
    assert (data.max_samples("train"), data.max_samples("val")) == (None, 3)


def test_every_key_shows_its_default_or_is_required() -> None:
    """As the component's page, `dg utils inspect-component` and an editor show them."""
    schema = DataToRolloutSpec.model_json_schema()
    silent = [
        f"{model['title']}.{key}"
        for model in [schema, *schema["$defs"].values()]
        for key, field in model.get("properties", {}).items()
        if key not in model.get("required", []) and not {"default", "const", "$ref"} & field.keys()
    ]
    assert silent == []


def test_the_keys_of_a_block_are_not_hidden_by_a_choice() -> None:
    """Dagster shows a model with `anyOf` as "one of: unknown"."""
    schema = DataToRolloutSpec.model_json_schema()
    assert [name for name, model in schema["$defs"].items() if "anyOf" in model] == []


def test_a_severity_is_given_to_a_check_that_there_is() -> None:
    assert not schema_errors({**MINIMAL, "checks": {"severities": {"uids": "warn"}}})
    (mistake,) = schema_errors({**MINIMAL, "checks": {"severities": {"uid": "warn"}}})
    assert mistake[0] == "$.checks.severities"
    assert "'uid' is not one of" in mistake[1]
    assert "'uids'" in mistake[1]
