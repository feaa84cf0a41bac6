"""The shard store: what is written comes back, whole or in part, or the reader says why not."""

import json
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from upath import UPath

import rl_assets
from rl_assets.errors import InputError
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.manifest import ShardRef
from rl_assets.protocol.shards import find_shard, read_shard, write_shard
from rl_assets.protocol.values import deep_equal
from tests.protocol.batches import rollout_batch, text_batch
from tests.protocol.test_columns import columns

FILES = ("tensors.safetensors", "rows.parquet", "meta.json")


def same(one: DataProto, other: DataProto) -> bool:
    tensors = [None if data.batch is None else dict(data.batch.items()) for data in (one, other)]
    return (
        len(one) == len(other)
        and deep_equal(*tensors)
        and deep_equal(one.non_tensor_batch, other.non_tensor_batch)
        and deep_equal(one.meta_info, other.meta_info)
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ShardRef, DataProto]:
    root = tmp_path_factory.mktemp("big")
    data = rollout_batch(750)
    data.batch["wide"] = torch.arange(3000 * 600).reshape(3000, 600)
    return root, write_shard(root, "s", data), data


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ShardRef]:
    root = tmp_path_factory.mktemp("damage")
    return root, write_shard(root, "s", rollout_batch(5))


class TestRoundTrip:
    @pytest.mark.parametrize(
        "data",
        [
            text_batch(5),
            rollout_batch(7),
            DataProto(),
            DataProto(meta_info={"note": [1, 2.0, None, {"b": 1, "a": float("inf")}]}),
            DataProto.from_dict({"x": torch.zeros(0, 3)}, {"y": []}),
            DataProto.from_dict({"x": torch.tensor([1.5, float("nan")])}),
            DataProto.from_dict(non_tensors={"y": [None, "日本"]}),
            DataProto.from_tensordict(rollout_batch(2).to_tensordict()),
        ],
        ids=[
            "prompts",
            "rollouts",
            "nothing",
            "meta only",
            "no rows",
            "tensors only",
            "columns only",
            "tensordict",
        ],
    )
    def test_a_batch_comes_back(self, tmp_path: Path, data: DataProto) -> None:
        back = read_shard(tmp_path, write_shard(tmp_path, "s", data))
        assert same(back, data)

    @given(
        values=columns,
        dtype=st.sampled_from(
            [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64]
        ),
    )
    @settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_whatever_the_values(self, tmp_path: Path, values: list, dtype: torch.dtype) -> None:
        data = DataProto.from_dict(
            {"x": torch.arange(len(values) * 2).reshape(-1, 2).to(dtype)}, {"y": values}
        )
        ref = write_shard(tmp_path, "s", data)
        assert same(read_shard(tmp_path, ref), data)
        assert ref.rows == len(values)
        assert ref.bytes == sum(len(content) for content in contents(tmp_path / ref.path).values())

    def test_views_and_shared_tensors_are_stored_by_themselves(self, tmp_path: Path) -> None:
        ids = torch.arange(24).reshape(4, 6)
        data = DataProto.from_dict({"a": ids, "b": ids, "c": ids[:, ::2], "d": ids[:, :1].expand(4, 5)})
        assert same(read_shard(tmp_path, write_shard(tmp_path, "s", data)), data)

    def test_what_is_read_may_be_changed(self, tmp_path: Path) -> None:
        ref = write_shard(tmp_path, "s", rollout_batch(2))
        data = read_shard(tmp_path, ref)
        data.batch["input_ids"][0, 0] = -1
        data.non_tensor_batch["extra_info"][0]["score"] = 1
        assert same(read_shard(tmp_path, ref), rollout_batch(2))

    def test_what_needs_pickle_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"row 1: field `x`: found a builtins.tuple"):
            write_shard(tmp_path, "s", DataProto.from_dict(non_tensors={"x": [[1], (1,)]}))
        with pytest.raises(InputError, match=r"found a builtins.set at meta_info\.x"):
            write_shard(tmp_path, "s", DataProto(meta_info={"x": {1}}))
        with pytest.raises(InputError, match=r"field `x`: found a .*nested"):
            write_shard(
                tmp_path,
                "s",
                DataProto.from_dict({"x": torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged)}),
            )
        assert list(tmp_path.iterdir()) == []


class TestAddress:
    def test_equal_batches_have_equal_bytes_wherever_they_are_made(self, tmp_path: Path) -> None:
        data = rollout_batch(9)
        reverse = DataProto.from_dict(
            dict(reversed(list(data.batch.items()))),
            dict(reversed(list(data.non_tensor_batch.items()))),
            data.meta_info,
        )
        one, two = write_shard(tmp_path / "1", "s", data), write_shard(tmp_path / "2", "s", reverse)
        assert one == two
        assert contents(tmp_path / "1" / one.path) == contents(tmp_path / "2" / two.path)

    def test_any_change_is_another_address(self, tmp_path: Path) -> None:
        data = text_batch(3)
        digests = {write_shard(tmp_path, "s", data).digest}
        data.meta_info["a"] = 1
        digests.add(write_shard(tmp_path, "s", data).digest)
        data.batch["dummy_tensor"][0] = 1
        digests.add(write_shard(tmp_path, "s", data).digest)
        data.non_tensor_batch["extra_info"][2]["index"] = 7
        digests.add(write_shard(tmp_path, "s", data).digest)
        assert len(digests) == 4

    def test_a_shard_that_is_there_is_not_written_again(self, tmp_path: Path) -> None:
        ref = write_shard(tmp_path, "s", text_batch(3))
        before = {name: (tmp_path / ref.path / name).stat() for name in FILES}
        assert write_shard(tmp_path, "s", text_batch(3)) == ref
        assert {name: (tmp_path / ref.path / name).stat() for name in FILES} == before

    @pytest.mark.parametrize("name", FILES)
    def test_a_damaged_shard_is_written_again(self, tmp_path: Path, name: str) -> None:
        ref = write_shard(tmp_path, "s", text_batch(3))
        (tmp_path / ref.path / name).write_bytes(b"damage")
        assert write_shard(tmp_path, "s", text_batch(3)) == ref
        assert same(read_shard(tmp_path, ref), text_batch(3))
        assert sorted(path.name for path in tmp_path.iterdir()) == [".staging", ref.path]

    def test_a_shard_is_found_by_its_name_if_it_is_intact(self, tmp_path: Path) -> None:
        assert find_shard(tmp_path / "absent", "s") is None
        ref = write_shard(tmp_path, "s", text_batch(3))
        write_shard(tmp_path, "s-2", text_batch(4))
        assert find_shard(tmp_path, "s") == ref
        assert find_shard(tmp_path, "t") is None
        (tmp_path / ref.path / "rows.parquet").write_bytes(b"damage")
        assert find_shard(tmp_path, "s") is None

    def test_repeated_rows_are_stored_once(self, tmp_path: Path) -> None:
        once, often = text_batch(500), text_batch(500).repeat(8)
        sizes = [write_shard(tmp_path, name, data).bytes for name, data in (("one", once), ("eight", often))]
        assert sizes[1] < 2 * sizes[0]


class TestParts:
    @given(rows=st.lists(st.integers(-3000, 2999), max_size=6) | st.slices(3000))
    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_rows(self, big: tuple[Path, ShardRef, DataProto], rows: list[int] | slice) -> None:
        root, ref, data = big
        assert same(read_shard(root, ref, rows=rows), data[rows])

    def test_columns(self, big: tuple[Path, ShardRef, DataProto]) -> None:
        root, ref, data = big
        part = read_shard(root, ref, columns=["uid", "raw_prompt", "responses"])
        assert same(part, data.select(["responses"], ["raw_prompt", "uid"]))
        assert read_shard(root, ref, columns=["uid"]).batch is None
        assert read_shard(root, ref, columns=["flags"], rows=[-1]).batch["flags"].tolist() == [
            data.batch["flags"][-1].item()
        ]

    def test_what_is_not_there(self, big: tuple[Path, ShardRef, DataProto]) -> None:
        root, ref, _ = big
        with pytest.raises(InputError, match="field `uuid`: found no such field"):
            read_shard(root, ref, columns=["uuid"])
        with pytest.raises(IndexError, match="3000"):
            read_shard(root, ref, rows=[3000])

    def test_only_what_is_asked_for_is_read_and_that_is_verified(
        self, big: tuple[Path, ShardRef, DataProto], tmp_path: Path
    ) -> None:
        _, _, data = big
        ref = write_shard(tmp_path, "s", data)
        uids = {"uid": data.non_tensor_batch["uid"]}
        tensors = tmp_path / ref.path / "tensors.safetensors"
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(content)
        assert same(read_shard(tmp_path, ref, columns=["uid"]), DataProto(None, uids, data.meta_info))
        assert same(
            read_shard(tmp_path, ref, columns=["input_ids"], rows=[0]), data.select(["input_ids"], [])[:1]
        )
        with pytest.raises(InputError, match=re.escape(ref.path)):
            read_shard(tmp_path, ref, columns=list(data.batch.keys()))


class TestDamage:
    @given(file=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
    @settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_a_flipped_bit_is_detected_and_named(
        self, shard: tuple[Path, ShardRef], file: str, place: float, bit: int
    ) -> None:
        root, ref = shard
        path = root / ref.path / file
        intact = path.read_bytes()
        damaged = bytearray(intact)
        damaged[int(place * len(intact))] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            for which in (ref, ref.path):
                with pytest.raises(InputError, match=re.escape(ref.path)):
                    read_shard(root, which)
        finally:
            path.write_bytes(intact)

    @pytest.mark.parametrize("file", FILES)
    def test_a_cut_or_missing_file_is_named(self, tmp_path: Path, file: str) -> None:
        ref = write_shard(tmp_path, "s", rollout_batch(3))
        path = tmp_path / ref.path / file
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(InputError, match=re.escape(ref.path)):
            read_shard(tmp_path, ref)
        path.unlink()
        with pytest.raises(InputError, match=f"{re.escape(ref.path)}: found no {re.escape(file)}"):
            read_shard(tmp_path, ref)

    def test_a_missing_shard_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"s-0123456789ab: found no meta.json"):
            read_shard(tmp_path, "s-0123456789ab")

    def test_another_shard_in_its_place_is_refused(self, tmp_path: Path) -> None:
        one, two = write_shard(tmp_path, "s", text_batch(3)), write_shard(tmp_path, "s", text_batch(4))
        for file in FILES:
            (tmp_path / two.path / file).replace(tmp_path / one.path / file)
        with pytest.raises(InputError, match=r"a meta.json other than the one that was written"):
            read_shard(tmp_path, one)


class Bomb:
    def __reduce__(self) -> tuple:
        return os.mkdir, (os.environ["BOMB"],)


class TestNoPickle:
    def test_the_package_never_names_it(self) -> None:
        forbidden = re.compile(
            r"import \w*pickle|pickle\.\w|torch\.(save|load)\b|\bmarshal\b|\beval\(|allow_pickle"
        )
        for path in (Path(rl_assets.__file__).parent / "protocol").rglob("*.py"):
            assert not forbidden.search(path.read_text()), path

    @pytest.mark.parametrize("file", FILES)
    def test_a_shard_with_a_pickle_in_it_is_refused_and_runs_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
    ) -> None:
        monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
        ref = write_shard(tmp_path, "s", rollout_batch(3))
        (tmp_path / ref.path / file).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(InputError, match=re.escape(ref.path)):
            read_shard(tmp_path, ref)
        with pytest.raises(InputError, match=re.escape(ref.path)):
            read_shard(tmp_path, ref, columns=["uid", "responses"], rows=[0])
        assert not (tmp_path / "exploded").exists()

    def test_a_pickle_with_a_forged_record_is_no_table_and_runs_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rl_assets.base.digests import digest_bytes
        from rl_assets.protocol.verified import FileRecord

        monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
        ref = write_shard(tmp_path, "s", rollout_batch(3))
        bomb = pickle.dumps(Bomb())
        meta = json.loads((tmp_path / ref.path / "meta.json").read_bytes())
        for name in meta["files"]:
            (tmp_path / ref.path / name).write_bytes(bomb)
            meta["files"][name] = FileRecord.of(bomb).model_dump()
        text = json.dumps(meta).encode()
        (tmp_path / ref.path / "meta.json").write_bytes(text)
        forged = ref.model_copy(update={"digest": digest_bytes(text)})
        with pytest.raises(InputError, match=re.escape(ref.path)):
            read_shard(tmp_path, forged)
        assert not (tmp_path / "exploded").exists()


class TestMemoryStore:
    def test_a_batch_comes_back_and_is_committed_by_its_meta(self) -> None:
        root = UPath("memory://shards/store")
        data = rollout_batch(5)
        ref = write_shard(root, "s", data)
        assert write_shard(root, "s", data) == ref == find_shard(root, "s")
        assert same(read_shard(root, ref), data)
        assert same(
            read_shard(root, ref, columns=["uid", "responses"], rows=[4, 0]),
            data.select(["responses"], ["uid"])[[4, 0]],
        )
        (root / ref.path / "meta.json").unlink()
        assert find_shard(root, "s") is None
        with pytest.raises(InputError, match=f"{ref.path}: found no meta.json"):
            read_shard(root, ref)
        assert write_shard(root, "s", data) == ref
        assert same(read_shard(root, ref), data)


def test_columns_with_equal_values_are_stored_once(tmp_path: Path) -> None:
    ref = write_shard(tmp_path, "s", text_batch(3))
    meta = json.loads((tmp_path / ref.path / "meta.json").read_bytes())
    assert meta["same_as"] == {
        "raw_prompt": "prompt",
        "multi_modal_data": "interaction_kwargs",
        "tools_kwargs": "interaction_kwargs",
    }
    back = read_shard(tmp_path, ref)
    assert isinstance(back.non_tensor_batch["raw_prompt"], np.ndarray)
    assert back.non_tensor_batch["raw_prompt"] is not back.non_tensor_batch["prompt"]
