"""Images from the raw file to the reward inputs, on a tiny vision-language policy."""

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from PIL import Image

from rl_assets.contract.schema import decode_row
from rl_assets.errors import InputError
from rl_assets.graph.dataset import GraphDataset
from rl_assets.media.store import MediaStore
from rl_assets.prompts.render import PromptRenderer
from rl_assets.protocol.dataproto import DataProto
from rl_assets.rollout.media import with_multi_modal_inputs
from tests.build import evaluations, failed, failure, make_dataset, materialize, problem
from tests.checks.stores import evaluate, problems
from tests.checks.test_checks import reshard, rewrite
from tests.prompts import media, processors

P, R = 160, 6


def asked(number: int, text: str, **columns: Any) -> dict[str, Any]:
    return problem(number, prompt=[{"role": "user", "content": text}], **columns)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[GraphDataset, dg.ExecuteInProcessResult]:
    """A dataset of text and image rows after one run of its whole graph, answered greedily."""
    root = tmp_path_factory.mktemp("project")
    policy = processors.save_policy("qwen2_5_vl", root / "policy")
    folder = root / "data/toy"
    (folder / "img").mkdir(parents=True)
    media.picture(50, 30).save(folder / "img/a.png")
    media.picture(20, 60).save(folder / "img/b.jpg")
    media.sound(folder / "s.wav")
    uri = "data:image/png;base64," + base64.b64encode(media.png(24, 24)).decode()
    rows = [
        asked(0, "What is 1 + 1?"),
        asked(1, "<image> What?", images=["img/a.png"]),
        asked(2, "<image> or <image>?", images=["img/b.jpg", {"path": "img/a.png"}]),
        asked(3, "Is <image> it?", images=[uri]),
        asked(4, "Hear <audio>?", audios=["s.wav"]),
        asked(5, "<image>" + "long " * 30, images=["img/a.png"]),
        asked(6, "", images=None)
        | {
            "prompt": [
                {
                    "role": "user",
                    "content": [{"type": "image", "image": "img/a.png"}, {"type": "text", "text": "?"}],
                }
            ]
        },
    ]
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    stored = asked(7, "In bytes: <image>", images=[{"bytes": media.png(16, 40, "RGBA"), "path": None}])
    table = pa.Table.from_pylist([stored])
    at = table.schema.get_field_index("images")
    table = table.set_column(at, "images", pa.array([stored["images"]], pa.list_(image)))
    pq.write_table(table, folder / "bytes.parquet")
    dataset = make_dataset(
        root,
        rows,
        data={
            "train_files": ["data/toy/train.jsonl", "data/toy/bytes.parquet"],
            "max_prompt_length": P,
            "max_response_length": R,
        },
        rollout={"n": 2, "do_sample": False},
        checks={"reject_rate": {"max": 0.2}},
        policy=policy,
    )
    return dataset, materialize(dataset)


@pytest.fixture
def dataset(run: tuple[GraphDataset, dg.ExecuteInProcessResult], tmp_path: Path) -> GraphDataset:
    """The same project in a folder of its own, to be changed."""
    shutil.copytree(run[0].root, tmp_path / "project")
    return GraphDataset(run[0].spec, tmp_path / "project")


def test_a_patch_size_that_verls_rollouts_do_not_use_is_refused(tmp_path: Path) -> None:
    def renderer(side: int | None) -> PromptRenderer:
        data = {"train_files": "train.jsonl", "image_patch_size": side}
        return make_dataset(tmp_path, data=data, policy=tmp_path / "policy").renderer()

    processors.save("qwen2_5_vl", tmp_path / "policy")
    assert renderer(processors.FACTOR // 2).stamp == renderer(None).stamp
    with pytest.raises(InputError, match=r"data\.image_patch_size"):
        renderer(14)


def rollouts(dataset: GraphDataset) -> DataProto:
    (shard,) = [data for _, data in dataset.shards("rollouts")]
    return shard


def test_every_check_that_stops_a_run_passes(run: tuple[GraphDataset, dg.ExecuteInProcessResult]) -> None:
    _, result = run
    assert result.success, failure(result)
    stopping = {
        name for name in failed(result) if evaluations(result)[name].severity == dg.AssetCheckSeverity.ERROR
    }
    assert stopping == set()
    assert evaluations(result)["length_filtered.placeholder_media"].passed


def test_the_training_set_has_every_medium_and_is_opened_whole(
    run: tuple[GraphDataset, dg.ExecuteInProcessResult], dataset: GraphDataset
) -> None:
    found = evaluate(dataset, "verl_dataset", "loads_whole")
    assert (found.passed, found.numbers) == (True, {"rows": 6, "opened": 5})
    path = str(dataset.storage / "verl_dataset/train.parquet")
    table = pq.read_table(path)
    rows = table.to_pylist()
    (at,) = (n for n, row in enumerate(rows) if row["extra_info"]["index"] == 2)
    rows[at]["images"][1]["bytes"] = rows[at]["images"][1]["bytes"][:-40]
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    changed, dropped = problems(evaluate(dataset, "verl_dataset", "loads_whole"))
    assert changed == "`images` is not what the raw file says"
    assert dropped.startswith("verl drops it: ")


def test_every_row_arrives_or_has_its_reason(run: tuple[GraphDataset, dg.ExecuteInProcessResult]) -> None:
    dataset, _ = run
    (refused,) = dataset.table("unrenderable_rows").rows()
    assert (refused["code"], refused["source_row"]) == ("render.media_unsupported", 4)
    assert "reads no audio" in refused["message"]
    (long,) = dataset.table("overlong_rows").rows()
    assert (long["source_row"], long["prompt_length"] > P) == (5, True)
    arrived = [row["source_row"] for row in dataset.table("reward_inputs").rows(["source_row"])]
    assert sorted(arrived) == sorted([0, 1, 2, 3, 6, 0] * 2)


def test_greedy_responses_are_those_of_generate_on_the_same_media(
    run: tuple[GraphDataset, dg.ExecuteInProcessResult],
) -> None:
    """Text and images go through transformers alone: its processor, and `generate`."""
    dataset, _ = run
    folder = dataset.root / "policy"
    processor = transformers.AutoProcessor.from_pretrained(folder)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    marks = ("image", "video", "vision", "audio")
    never = [
        processors.token_id(token)
        for token in processors.SPECIAL
        if any(mark in token.lower() for mark in marks)
    ]
    images = {
        1: [media.picture(50, 30)],
        2: [Image.open(dataset.root / "data/toy/img/b.jpg"), media.picture(50, 30)],
        3: [media.picture(24, 24)],
        6: [media.picture(50, 30)],
    }
    data = rollouts(dataset)
    rows = {
        (record["source_file"][-5:], record["source_row"]): decode_row(record)
        for record in dataset.table("field_contract").rows()
    }
    compared = 0
    for index in range(0, len(data), 2):
        fields = {name: values[index] for name, values in data.non_tensor_batch.items()}
        if fields["source_file"].endswith("parquet"):
            continue
        content = rows["jsonl", fields["source_row"]]["prompt"][0]["content"]
        if isinstance(content, str):
            pieces = content.replace("<image>", "\0<image>\0").split("\0")
            content = [
                {"type": "image", "image": ""} if piece == "<image>" else {"type": "text", "text": piece}
                for piece in pieces
                if piece
            ]
        text = processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True
        )
        given = [processors.verls_image("qwen", image) for image in images.get(fields["source_row"], ())]
        inputs = processor(
            text=[text],
            images=given or None,
            add_special_tokens=False,
            return_tensors="pt",
        )
        length = inputs["input_ids"].shape[1]
        assert list(fields["prompt_ids"]) == inputs["input_ids"][0].tolist()
        with torch.inference_mode():
            made = model.generate(**inputs, do_sample=False, max_new_tokens=R, suppress_tokens=never)
        expected = made[0, length:].tolist()
        for sample in (index, index + 1):
            got = data.batch["responses"][sample, : fields["response_length"]].tolist()
            assert got == expected, fields["source_row"]
        compared += 1
    assert compared == 5


def test_shards_refer_to_media_and_hold_none(run: tuple[GraphDataset, dg.ExecuteInProcessResult]) -> None:
    dataset, _ = run
    ((_, prompts),) = dataset.shards("proto_shards")
    data = rollouts(dataset)
    kept = [values for values in prompts.non_tensor_batch["multi_modal_data"] if values]
    images = [item for values in kept for item in values["image"]]
    (stored,) = [item["bytes"] for item in images if isinstance(item.get("bytes"), dict)]
    assert MediaStore(dataset.storage / "media").get(stored["digest"]) == media.png(16, 40, "RGBA")
    assert "multi_modal_inputs" not in data.non_tensor_batch
    assert data.batch["position_ids"].shape == (12, 4, P + R)
    # 50 × 30 pixels are 96 patches, 20 × 60 are 64 (16 × 64), 24 × 24 are 36, 16 × 40 are 40.
    assert sorted(data.meta_info["images_seqlens"]) == sorted([96, 64, 96, 36, 96, 40] * 2)


def test_the_tensors_are_made_again_for_verl(run: tuple[GraphDataset, dg.ExecuteInProcessResult]) -> None:
    dataset, _ = run
    renderer = dataset.renderer().media
    assert renderer is not None
    data = rollouts(dataset)
    whole = with_multi_modal_inputs(data, renderer.reading(MediaStore(dataset.storage / "media")))
    assert whole.meta_info["images_seqlens"] == data.meta_info["images_seqlens"]
    patches = [len(one["pixel_values"]) for one in whole.non_tensor_batch["multi_modal_inputs"] if one]
    assert sum(patches) == sum(data.meta_info["images_seqlens"])


def test_a_changed_image_is_answered_anew_and_nothing_else_is(dataset: GraphDataset) -> None:
    media.picture(30, 60).save(dataset.root / "data/toy/img/b.jpg")
    result = materialize(dataset)
    assert result.success, failure(result)
    (event,) = [
        event
        for event in result.get_asset_materialization_events()
        if event.asset_key == dataset.key("rollouts")
    ]
    assert event.materialization.metadata["generated_responses"].value == 2


def edited(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Replaces text in a file of the policy."""

    def edit(policy: Path) -> None:
        text = (policy / name).read_text()
        assert old in text
        (policy / name).write_text(text.replace(old, new))

    return edit


TOOLS = "tools: [{tool_schema: {type: function, function: {name: weather}}}]"


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (edited("tokenizer.json", "<end_of_image>", "<end_of_it>"), "tokenizer"),
        (edited("chat_template.jinja", "assistant", "policy"), "chat template and processor template"),
        (edited("processor_config.json", '"shortest_edge": 256', '"shortest_edge": 320'), "processor"),
        ({"mm_processor_kwargs": {"fps": 1}}, "mm processor kwargs"),
        ({"apply_chat_template_kwargs": {"chat_template": "{{ messages[0].role }}"}}, "template kwargs"),
        ({"tool_config_path": "tools.yaml"}, "tools"),
    ],
)
def test_shards_that_were_rendered_otherwise_are_not_rolled_out(
    run: tuple[GraphDataset, dg.ExecuteInProcessResult], tmp_path: Path, change: Any, parts: str
) -> None:
    """Whatever goes into a prompt is in the stamp of its shard, and is named when it is another now."""
    dataset, _ = run
    shutil.copytree(dataset.root / "policy", tmp_path / "policy")
    (tmp_path / "tools.yaml").write_text(TOOLS)
    data = change if isinstance(change, dict) else {}
    if callable(change):
        change(tmp_path / "policy")
    spec = dataset.spec.model_copy(
        update={
            "policy": dataset.spec.policy.model_copy(update={"path": "policy"}),
            "data": dataset.spec.data.model_copy(update=data),
        }
    )
    stamps = dataset.shard_manifest("proto_shards").stamps
    dataset.renderer().stamp.require(stamps, "toy/proto_shards")
    with pytest.raises(InputError, match=f"found prompts rendered with another {parts}, expected"):
        GraphDataset(spec, tmp_path).renderer().stamp.require(stamps, "toy/proto_shards")


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        (0, P - 1, "the prompt's positions are not cumsum(mask) - 1"),
        (1, P - 1, "the response do not go on from the largest of the prompt's"),
        (2, P + 1, "the response do not go on from the largest of the prompt's"),
        (3, 0, "padding is elsewhere"),
    ],
)
def test_wrong_multimodal_positions_are_found(
    dataset: GraphDataset, row: int, column: int, problem: str
) -> None:
    def change(data: DataProto) -> DataProto:
        data.batch["position_ids"][:, row, column] += 500
        return data

    reshard(dataset, "rollouts", change)
    assert any(problem in found for found in problems(evaluate(dataset, "rollouts", "tensor_rules")))


@pytest.mark.parametrize(
    ("source_row", "token", "problem"),
    [
        (1, "a", "no media token in the rendered prompt of a row with media"),
        (0, "<|image_pad|>", "media tokens in the rendered prompt of a row without media"),
    ],
)
def test_a_rendered_prompt_without_its_media_is_found(
    dataset: GraphDataset, source_row: int, token: str, problem: str
) -> None:
    other = processors.tokenizer().convert_tokens_to_ids(token)

    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["source_row"] == source_row and row["source_file"].endswith("jsonl"):
                row["prompt_ids"] = [other] * row["prompt_length"]

    rewrite(dataset, "length_filtered", change)
    assert problems(evaluate(dataset, "length_filtered", "placeholder_media")) == [problem]


def test_patch_counts_that_are_not_the_images_are_found(dataset: GraphDataset) -> None:
    def change(data: DataProto) -> DataProto:
        data.meta_info["images_seqlens"] = data.meta_info["images_seqlens"][1:]
        return data

    reshard(dataset, "rollouts", change)
    (found,) = problems(evaluate(dataset, "rollouts", "tensor_rules"))
    assert "`images_seqlens` has 11 entries for 12 images" in found


def test_the_row_of_the_readme_is_accepted(tmp_path: Path) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    (row,) = [line for line in readme.splitlines() if line.startswith('{"') and '"images"' in line]
    (tmp_path / "data/toy/img").mkdir(parents=True)
    media.picture().save(tmp_path / "data/toy/img/dots.png")
    dataset = make_dataset(
        tmp_path,
        [row],
        data={"mm_processor_kwargs": {"fps": 2}},
        policy=processors.save_policy("qwen2_5_vl", tmp_path / "policy"),
    )
    gate = ("length_filtered", "overlong_rows", "unrenderable_rows")
    assert materialize(dataset, "raw_files", "field_contract", "rejected_rows", "tokenizer", *gate).success
    (kept,) = dataset.table("length_filtered").rows()
    assert list(kept["prompt_ids"]).count(processors.token_id("<|image_pad|>")) == 24
