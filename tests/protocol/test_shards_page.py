"""docs/shards.md is enough to read a shard with safetensors and pyarrow alone."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from rl_assets.protocol.columns import Encoding
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.manifest import ShardManifest
from rl_assets.protocol.shards import read_shard, write_shard
from rl_assets.rollout.tensors import rollout_tensors
from tests.protocol.batches import rollout_batch, text_batch

PAGE = (Path(__file__).parents[2] / "docs/shards.md").read_text()
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def odd_batch() -> DataProto:
    """A batch whose columns are kept in every way that there is."""
    data = rollout_batch(3)
    data.batch.pop("half")  # bfloat16, which numpy does not have
    odd: list[Any] = [{"score": float("nan")}, "\ud800", None]
    kinds = {"odd": odd * 4, "some": [1, None, 3] * 4, "rate": [0.5] * 12, "yes": [True] * 12}
    return data.union(DataProto.from_dict(non_tensors=kinds))


@pytest.mark.parametrize("data", [text_batch(5), odd_batch()], ids=["prompts", "rollouts"])
def test_the_page_reads_what_the_project_reads(
    data: DataProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "rl_assets" not in CODE
    store = tmp_path / "data/storage/gsm_symbolic"
    ref = write_shard(store / "rollouts", "train-0000", data)
    (store / "rollouts.json").write_text(ShardManifest(shards=[ref]).model_dump_json())
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(CODE, names)
    read = read_shard(store / "rollouts", ref)
    assert read.batch is not None
    assert {name: tensor.tolist() for name, tensor in names["tensors"].items()} == {
        name: tensor.tolist() for name, tensor in read.batch.items()
    }
    assert {name: str(tensor.dtype) for name, tensor in names["tensors"].items()} == {
        name: str(tensor.dtype).removeprefix("torch.") for name, tensor in read.batch.items()
    }
    expected = {name: list(values) for name, values in read.non_tensor_batch.items()}
    assert json.dumps(names["columns"], sort_keys=True) == json.dumps(expected, sort_keys=True)
    assert names["meta_info"] == read.meta_info


def test_the_page_names_every_tensor_and_every_way_a_column_is_kept() -> None:
    doc = rollout_tensors.__doc__ or ""
    for name in re.findall(r"^\s+``(\w+)``", doc, re.MULTILINE):
        assert re.search(rf"^\|[^|]*\| `{name}` \|", PAGE, re.MULTILINE), name
    for kept in get_args(Encoding):
        assert f"`{kept}`" in PAGE
