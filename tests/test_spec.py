"""What a defs.yaml may say: verl's keys are honoured, or refused by name."""

import copy
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import yaml
from dagster._utils.schedules import cron_string_iterator
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from rl_assets.spec.data import DataSpec
from rl_assets.spec.dataset import DataToRolloutSpec
from rl_assets.spec.verl_keys import ANSWERS, VALUES, answer
from tests.verl_wheel import verl_site

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


def _places(model: type[BaseModel], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every field of the spec that is no block, by its path, with its annotation."""
    for name, field in model.model_fields.items():
        blocks = [
            kind
            for kind in (field.annotation, *get_args(field.annotation))
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        if blocks:
            yield from _places(blocks[0], (*at, name))
        else:
            yield (*at, name), field


def _wrapped(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(place):
        value = {name: value}
    whole = copy.deepcopy(MINIMAL)
    for block, inner in value.items():
        whole[block] = {**whole[block], **inner} if isinstance(whole.get(block), dict) else inner
    if place[0] == "partition_by":
        whole["partition_by"].setdefault("kind", "static")
    return whole


HUGE = [float("inf"), float("-inf"), float("nan"), 1e30, -1e30, 10**30, -(10**30)]
PLACES = [place for place, _ in _places(DataToRolloutSpec)]


@pytest.mark.parametrize("place", PLACES, ids=".".join)
@pytest.mark.parametrize("shape", [lambda v: v, lambda v: [v], lambda v: [v, v], lambda v: {"a": {"b": [v]}}])
def test_no_field_takes_a_number_without_bounds(place: tuple[str, ...], shape: Any) -> None:
    for number in HUGE:
        with pytest.raises(ValidationError):
            DataToRolloutSpec.model_validate(_wrapped(place, shape(number)))


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_a_text_of_a_field_has_a_length(place: tuple[str, ...]) -> None:
    if place == ("description",):
        return  # prose
    for text in ("x" * 100_000, ["x" * 100_000]):
        with pytest.raises(ValidationError):
            DataToRolloutSpec.model_validate(_wrapped(place, text))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("data.train_files", ""),
        ("data.train_files", [""]),
        ("data.train_files", ["a.jsonl", ""]),
        ("data.train_files", "a\0b"),
        ("data.tool_config_path", "tools\0.yaml"),
        ("policy.path", ""),
        ("policy.path", "p\nq"),
        ("contract.media_root", "\0"),
        ("reward.custom_reward_function.path", ""),
        ("curation.contamination_files", [""]),
        ("data.prompt_key", ""),
        ("rollout.stop", [""]),
        ("dataset", "n" * 300),
        ("dataset", ""),
        ("schedule.cron", "0 0 30 2 *"),
        ("schedule.cron", "0 0 31 4,6,9,11 *"),
        ("schedule.cron", "0 0 30 2 mon"),
        ("schedule.cron", "0 24 * * *"),
        ("schedule.cron", "0 2 * * someday"),
        ("schedule.max_age_hours", 1e300),
        ("reward.num_workers", 10**9),
        ("reward.num_workers", 1e9),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_at_its_field(place: str, value: Any) -> None:
    path = tuple(place.split("."))
    with pytest.raises(ValidationError) as refused:
        DataToRolloutSpec.model_validate(_wrapped(path, value))
    assert any(error["loc"][: len(path)] == path for error in refused.value.errors())


@pytest.mark.parametrize(
    "cron",
    [
        *("0 2 * * *", "*/5 * * * *", "0 0 29 2 *", "0 0 31 1-3 *", "0 0 * jul sun", "0 0 l * *"),
        *("0 0 * * fri#2", "0 0 ? * 1", "5-59/10 1,3 1 */2 *", "0 22-2 * * *"),
    ],
)
def test_a_cron_that_comes_is_taken(cron: str) -> None:
    assert next(cron_string_iterator(1704067200.0, cron, "UTC"))  # Dagster reads it too
    DataToRolloutSpec.model_validate(_wrapped(("schedule", "cron"), cron))


KNOWN = [f"{block}.{key}".lstrip(".") for block, keys in ANSWERS.items() for key in keys]


@pytest.mark.parametrize("path", KNOWN)
def test_a_key_of_verls_is_refused_with_what_to_write_in_its_place(path: str) -> None:
    place = tuple(path.split("."))
    attributes = _wrapped(place, {"enable": True})
    said = dict(schema_errors(attributes))
    assert answer(path)
    assert str(answer(path)) in said[f"$.{path}"]
    with pytest.raises(ValidationError) as refused:
        DataToRolloutSpec.model_validate(attributes)
    assert place in [error["loc"] for error in refused.value.errors()]


def test_what_is_to_be_written_in_place_of_a_key_of_verls_is_a_key() -> None:
    keys = {".".join(place) for place in PLACES} | {
        ".".join(place[:n]) for place in PLACES for n in range(1, len(place))
    }
    for path in [*KNOWN, *VALUES]:
        text = str(answer(path))
        for named in re.findall(r"(?:data|policy|rollout|reward|curation|contract)\.[a-z_.]*[a-z_]", text):
            assert named in keys, f"{path}: {named}"
    assert not set(KNOWN) & keys


def test_another_engine_is_refused_with_what_to_do() -> None:
    said = [message for path, message in schema_errors(_wrapped(("rollout", "name"), "vllm"))]
    assert any("leave it out" in message for message in said)


def test_every_key_of_verls_own_blocks_is_known() -> None:
    """Each is a key here, or has an answer."""
    folder = verl_site() / "verl/trainer/config"
    blocks = {"data/legacy_data": "data", "rollout/rollout": "rollout", "reward/reward": "reward"}
    blocks |= {"model/hf_model": "policy", "ppo_trainer": ""}
    for file, block in blocks.items():
        for key in yaml.safe_load((folder / f"{file}.yaml").read_text()):
            if key.startswith("_"):
                continue
            path = f"{block}.{key}".lstrip(".")
            assert answer(path) or any(".".join(place).startswith(path) for place in PLACES), path
