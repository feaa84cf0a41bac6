"""What DataProto promises: verl's operations, without the mistakes that verl lets through."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_assets.protocol.dataproto import DataProto, DataProtoItem
from rl_assets.protocol.dataproto import pad_dataproto_to_divisor as pad
from rl_assets.protocol.dataproto import unpad_dataproto as unpad
from rl_assets.protocol.fields import MismatchError
from rl_assets.protocol.values import deep_equal


def batch(rows: int = 6, **columns: list) -> DataProto:
    tensors = {"ids": torch.arange(rows * 2).reshape(rows, 2), "reward": torch.arange(rows).float()}
    labels = [f"row {row}" for row in range(rows)]
    info = [{"index": row, "turns": [row]} for row in range(rows)]
    return DataProto.from_dict(tensors, {"label": labels, "extra_info": info, **columns}, {"step": 3})


def labels(data: DataProto) -> list[str]:
    """The labels, once it is certain that every other field went with them."""
    assert data.batch["ids"][:, 0].tolist() == [
        2 * info["index"] for info in data.non_tensor_batch["extra_info"]
    ]
    assert [f"row {info['index']}" for info in data.non_tensor_batch["extra_info"]] == list(
        data.non_tensor_batch["label"]
    )
    assert data.batch["reward"].tolist() == [info["index"] for info in data.non_tensor_batch["extra_info"]]
    assert data.meta_info == {"step": 3}
    return [int(label.split()[1]) for label in data.non_tensor_batch["label"]]


class TestConstruction:
    def test_lists_of_equal_length_stay_lists(self) -> None:
        data = DataProto.from_dict(non_tensors={"turns": [[{"a": 1}], [{"b": 2}]]})
        assert data.non_tensor_batch["turns"].shape == (2,)
        assert data.non_tensor_batch["turns"][0] == [{"a": 1}]

    def test_arrays_become_columns_of_python_values(self) -> None:
        data = DataProto.from_dict(
            non_tensors={
                "turns": np.array([2, 4], dtype=np.int32),
                "name": np.array(["a", "b"]),
                "pairs": np.array([[1.5, 2.0], [3.0, 4.0]]),
            }
        )
        columns = {key: list(values) for key, values in data.non_tensor_batch.items()}
        assert columns == {"turns": [2, 4], "name": ["a", "b"], "pairs": [[1.5, 2.0], [3.0, 4.0]]}
        assert {type(value) for values in columns.values() for value in values} == {int, str, list}

    @pytest.mark.parametrize("value", [7, "text", np.array(7), {"a": 1}, None])
    def test_a_field_needs_one_value_per_row(self, value: object) -> None:
        with pytest.raises(MismatchError, match="key `x`"):
            DataProto.from_dict(non_tensors={"x": value})

    def test_lengths_are_checked_with_tensors(self) -> None:
        with pytest.raises(MismatchError, match=r"key `b` has 3 rows, the batch has 2"):
            DataProto.from_dict({"a": torch.zeros(2, 1)}, {"b": [1, 2, 3]})
        with pytest.raises(MismatchError, match=r"key `b` has 3 rows, key `a` has 2"):
            DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(3)})

    def test_lengths_are_checked_without_tensors(self) -> None:
        with pytest.raises(MismatchError, match=r"key `b` has 3 rows, the batch has 2"):
            DataProto.from_dict(non_tensors={"a": [1, 2], "b": [1, 2, 3]})

    def test_a_key_is_in_one_half_only(self) -> None:
        with pytest.raises(MismatchError, match="key `a` is both"):
            DataProto.from_dict({"a": torch.zeros(2)}, {"a": [1, 2]})

    def test_a_single_dict_holds_tensors_and_arrays(self) -> None:
        data = DataProto.from_single_dict(
            {"a": torch.zeros(2), "b": np.array([1, 2], dtype=object)}, {"c": 3}
        )
        assert (list(data.batch.keys()), list(data.non_tensor_batch), data.meta_info) == (
            ["a"],
            ["b"],
            {"c": 3},
        )
        with pytest.raises(ValueError, match=r"key `b`: found list\[int\]"):
            DataProto.from_single_dict({"a": torch.zeros(2), "b": [1, 2]})  # type: ignore[dict-item]

    def test_meta_info_is_not_shared_with_what_is_derived(self) -> None:
        data = batch()
        data[:2].meta_info["step"] = 4
        data.repeat(2).meta_info["step"] = 5
        assert data.meta_info == {"step": 3}

    def test_length(self) -> None:
        assert len(batch(4)) == 4
        assert len(DataProto.from_dict(non_tensors={"a": [1, 2]})) == 2
        assert len(DataProto()) == len(DataProto(None, None)) == 0  # type: ignore[arg-type]


class TestIndexing:
    def test_one_row(self) -> None:
        item = batch()[-1]
        assert isinstance(item, DataProtoItem)
        assert item.batch["ids"].tolist() == [10, 11]
        assert item.non_tensor_batch["label"] == "row 5"
        assert item.meta_info == {"step": 3}

    @pytest.mark.parametrize("index", [6, -7])
    def test_a_row_that_is_not_there(self, index: int) -> None:
        with pytest.raises(IndexError, match=f"row {index} of a batch of 6 rows"):
            batch()[index]
        with pytest.raises(IndexError, match=f"row {index} of a batch of 6 rows"):
            batch()[[0, index]]

    @pytest.mark.parametrize("index", ["a", (1, 2), True, 1.0, [0.5], [[1]], ["a"]])
    def test_what_is_no_index(self, index: object) -> None:
        with pytest.raises(TypeError):
            batch()[index]  # type: ignore[index]

    @given(
        start=st.none() | st.integers(-9, 9),
        stop=st.none() | st.integers(-9, 9),
        step=st.none() | st.integers(-3, 3).filter(bool),
    )
    def test_slices_are_pythons(self, start: int | None, stop: int | None, step: int | None) -> None:
        assert labels(batch()[start:stop:step]) == list(range(6))[start:stop:step]

    @given(st.lists(st.integers(-6, 5), max_size=9))
    def test_indices_as_list_array_and_tensor(self, indices: list[int]) -> None:
        expected = [range(6)[index] for index in indices]
        assert labels(batch()[indices]) == expected
        assert labels(batch()[np.array(indices, dtype=np.int64)]) == expected
        assert labels(batch()[torch.tensor(indices, dtype=torch.int64)]) == expected

    @given(st.lists(st.booleans(), min_size=6, max_size=6))
    def test_masks_as_list_array_and_tensor(self, mask: list[bool]) -> None:
        expected = [row for row in range(6) if mask[row]]
        assert labels(batch()[mask]) == expected
        assert labels(batch()[np.array(mask)]) == expected
        assert labels(batch()[torch.tensor(mask)]) == expected

    def test_a_mask_has_the_batch_length(self) -> None:
        with pytest.raises(MismatchError, match="a mask of length 2 for a batch of 6 rows"):
            batch()[[True, False]]


class TestRepeating:
    def test_interleaved_and_tiled(self) -> None:
        assert labels(batch(3).repeat(2)) == [0, 0, 1, 1, 2, 2]
        assert labels(batch(3).repeat(2, interleave=False)) == [0, 1, 2, 0, 1, 2]
        assert labels(batch(3).repeat(0)) == []

    @pytest.mark.parametrize("counts", [[2, 0, 1], (2, 0, 1), np.array([2, 0, 1]), torch.tensor([2, 0, 1])])
    def test_a_count_for_each_row(self, counts: list[int]) -> None:
        assert labels(batch(3).sample_level_repeat(counts)) == [0, 0, 2]

    @pytest.mark.parametrize("counts", [[1, 2], [1, 2, -1], [[1], [2], [3]]])
    def test_counts_that_do_not_fit(self, counts: list[int]) -> None:
        with pytest.raises(MismatchError, match="3 counts, one for each row"):
            batch(3).sample_level_repeat(counts)

    @pytest.mark.parametrize(
        "repeated",
        [
            lambda data: data.repeat(2),
            lambda data: data.repeat(2, interleave=False)[[0, 3]],
            lambda data: data.sample_level_repeat([2, 1, 1]),
            lambda data: data[[0, 0]],
            lambda data: pad(data, 4)[0][[0, 3]],
        ],
    )
    def test_siblings_share_nothing_that_a_reward_function_may_change(self, repeated) -> None:
        data = batch(3)
        twice = repeated(data).non_tensor_batch["extra_info"]
        assert twice[0] == twice[1]
        twice[0]["score"] = 1.0
        twice[0]["turns"].append("more")
        assert twice[1] == data.non_tensor_batch["extra_info"][0] == {"index": 0, "turns": [0]}

    def test_what_cannot_be_changed_in_place_is_shared(self) -> None:
        picture = object()
        data = DataProto.from_dict(
            non_tensors={"raw_prompt": [[{"type": "image", "image": picture}]]}
        ).repeat(3)
        assert all(messages[0]["image"] is picture for messages in data.non_tensor_batch["raw_prompt"])


class TestOrderAndParts:
    def test_reorder_in_place(self) -> None:
        data = batch(4)
        data.reorder(torch.tensor([2, 0, 3, 1]))
        assert labels(data) == [2, 0, 3, 1]

    @pytest.mark.parametrize("indices", [[0, 1], [0, 0, 1, 2], [0, 1, 2, 3, 3]])
    def test_reorder_takes_permutations_only(self, indices: list[int]) -> None:
        with pytest.raises(MismatchError, match="not a permutation of 4 rows"):
            batch(4).reorder(indices)

    @given(rows=st.integers(0, 12), parts=st.integers(1, 6))
    def test_chunks_are_equal_and_concat_undoes_them(self, rows: int, parts: int) -> None:
        data = batch(rows)
        if rows % parts:
            with pytest.raises(MismatchError, match=f"{rows} and chunk {parts}"):
                data.chunk(parts)
            data.meta_info["_verl_auto_padding"] = True
        chunks = data.chunk(parts)
        assert len(chunks) == parts
        assert max(map(len, chunks)) == -(-rows // parts)
        joined = DataProto.concat(chunks)
        joined.meta_info.pop("_verl_auto_padding", None)
        assert labels(joined) == list(range(rows))

    @given(rows=st.integers(1, 12), size=st.integers(1, 13))
    def test_splits_are_of_the_size_and_concat_undoes_them(self, rows: int, size: int) -> None:
        parts = batch(rows).split(size)
        assert [len(part) for part in parts] == [min(size, rows - start) for start in range(0, rows, size)]
        assert labels(DataProto.concat(parts)) == list(range(rows))

    @pytest.mark.parametrize(
        "cut", [lambda d: d.chunk(0), lambda d: d.split(0), lambda d: DataProto.concat([])]
    )
    def test_no_parts(self, cut) -> None:
        with pytest.raises(ValueError, match=r"cannot be|there is no batch"):
            cut(batch())

    @given(rows=st.integers(1, 9), divisor=st.integers(1, 20))
    def test_padding_repeats_leading_rows_and_unpadding_removes_them(self, rows: int, divisor: int) -> None:
        padded, added = pad(batch(rows), divisor)
        assert (len(padded) % divisor, added) == (0, -rows % divisor)
        assert labels(padded) == [*range(rows), *(row % rows for row in range(added))]
        assert labels(unpad(padded, added)) == list(range(rows))

    def test_padding_an_empty_batch(self) -> None:
        assert pad(batch(0), 4)[1] == 0

    def test_concat_wants_the_same_fields(self) -> None:
        def one(**tensors: torch.Tensor) -> DataProto:
            return DataProto.from_dict(tensors, {"label": ["a"]})

        x = torch.zeros(1, 2)
        with pytest.raises(
            MismatchError, match=r"batch of batch 1 has the keys \['x', 'y'\], that of batch 0 \['x'\]"
        ):
            DataProto.concat([one(x=x), one(x=x, y=x)])
        with pytest.raises(MismatchError, match=r"non_tensor_batch of batch 1 has the keys \[\]"):
            DataProto.concat([one(x=x), DataProto.from_dict({"x": x})])
        with pytest.raises(MismatchError, match=r"batch of batch 1 has the keys"):
            DataProto.concat([DataProto.from_dict(non_tensors={"label": ["a"]}), one(x=x)])
        with pytest.raises(
            MismatchError, match=r"key `x`: .*torch.float32 \(1, 3\) in batch 1, .* \(1, 2\) in batch 0"
        ):
            DataProto.concat([one(x=x), one(x=torch.zeros(1, 3))])
        with pytest.raises(MismatchError, match=r"key `x`: .*torch.int64"):
            DataProto.concat([one(x=x), one(x=torch.zeros(1, 2, dtype=torch.int64))])

    def test_concat_merges_meta_info(self) -> None:
        def of(meta: dict) -> DataProto:
            return DataProto.from_dict(non_tensors={"a": [1]}, meta_info=meta)

        nan = float("nan")
        joined = DataProto.concat(
            [
                of({"lr": nan, "metrics": {"loss": 1}}),
                of({"lr": float("nan"), "metrics": [{"loss": 2}], "x": 1}),
            ]
        )
        assert deep_equal(joined.meta_info, {"lr": nan, "x": 1, "metrics": {"loss": [1, 2]}})
        with pytest.raises(MismatchError, match="Conflicting values for meta_info key 'x': 1 and 2"):
            DataProto.concat([of({"x": 1}), of({"x": 2})])


class TestFields:
    def test_select(self) -> None:
        data = batch()
        chosen = data.select(["ids"], ["label"], [])
        assert (list(chosen.batch.keys()), list(chosen.non_tensor_batch), chosen.meta_info) == (
            ["ids"],
            ["label"],
            {},
        )
        assert list(data.select(["ids"]).non_tensor_batch) == ["label", "extra_info"]

    def test_select_can_copy_to_the_bottom(self) -> None:
        data = batch()
        data.select(deepcopy=True).non_tensor_batch["extra_info"][0]["index"] = 9
        assert data.non_tensor_batch["extra_info"][0]["index"] == 0

    def test_pop(self) -> None:
        data = batch()
        popped = data.pop(["ids"], ["label"], ["step"])
        assert popped.batch.keys() == {"ids"}
        assert list(popped.non_tensor_batch) == ["label"]
        assert popped.meta_info == {"step": 3}
        assert data.batch.keys() == {"reward"}
        assert list(data.non_tensor_batch) == ["extra_info"]
        assert data.meta_info == {}

    def test_pop_takes_all_or_nothing(self) -> None:
        data = batch()
        with pytest.raises(KeyError, match=r"meta_info has no key `absent`; it has \['step'\]"):
            data.pop(["ids"], ["label"], ["absent"])
        assert labels(data) == list(range(6))

    def test_a_key_that_is_not_there_is_named(self) -> None:
        with pytest.raises(KeyError, match=r"non_tensor_batch has no key `lable`"):
            batch().select(non_tensor_batch_keys=["lable"])
        with pytest.raises(KeyError, match=r"batch has no key `ids`; it has \[\]"):
            DataProto.from_dict(non_tensors={"a": [1]}).pop(["ids"])

    def test_rename(self) -> None:
        data = (
            batch()
            .rename(["ids", "label"], ["input_ids", "name"])
            .rename("input_ids", "ids")
            .rename("name", "label")
        )
        assert labels(data) == list(range(6))

    def test_rename_refuses_and_changes_nothing(self) -> None:
        data = batch()
        with pytest.raises(KeyError, match="no key `absent`"):
            data.rename(["ids", "absent"], ["x", "y"])
        with pytest.raises(MismatchError, match=r"two fields the name \['label'\]"):
            data.rename("ids", "label")
        with pytest.raises(MismatchError, match="2 old keys and 1 new"):
            data.rename(["ids", "label"], ["x"])
        assert labels(data) == list(range(6))


class TestUnion:
    def test_adds_fields_in_place(self) -> None:
        data = batch()
        other = DataProto.from_dict({"mask": torch.ones(6)}, {"uid": list("abcdef")}, {"seed": 1})
        assert data.union(other) is data
        assert data.batch.keys() == {"ids", "reward", "mask"}
        assert list(data.non_tensor_batch["uid"]) == list("abcdef")
        assert data.meta_info == {"step": 3, "seed": 1}

    def test_works_without_tensors_on_either_side(self) -> None:
        words = DataProto.from_dict(non_tensors={"uid": list("abcdef")})
        assert len(batch().union(words)) == len(words.union(batch())) == len(DataProto().union(batch())) == 6
        assert len(batch().union(DataProto(meta_info={"a": 1}))) == 6

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"batch": {"reward": torch.ones(6)}}, "batch key `reward`"),
            (
                {"batch": {"ids": torch.zeros(6, 2)}},
                r"batch key `ids` .*torch.int64 \(6, 2\) and .*torch.float32",
            ),
            ({"columns": {"label": ["x"] * 6}}, "non_tensor_batch key `label`"),
            ({"columns": {"label": [1] * 6}}, "non_tensor_batch key `label`"),
            ({"meta": {"step": 4}}, "meta_info key `step`"),
            ({"meta": {"step": 3.0}}, "meta_info key `step`"),
        ],
    )
    def test_what_differs_is_named_and_nothing_is_changed(self, change: dict, message: str) -> None:
        data = batch()
        other = DataProto.from_dict(
            {"new": torch.ones(6), **change.get("batch", {})}, change.get("columns"), change.get("meta")
        )
        with pytest.raises(MismatchError, match=message):
            data.union(other)
        assert data.batch.keys() == {"ids", "reward"}
        assert labels(data) == list(range(6))

    def test_lengths(self) -> None:
        with pytest.raises(MismatchError, match="6 rows cannot be joined with one of 5"):
            batch().union(batch(5))

    def test_nan_equals_nan_at_any_depth(self) -> None:
        def one() -> DataProto:
            nan = float("nan")
            return DataProto.from_dict(
                {"x": torch.tensor([nan])}, {"y": [{"z": [nan, np.array([nan])]}]}, {"m": nan}
            )

        assert len(one().union(one())) == 1


class TestIteration:
    def test_every_row_once_per_epoch(self) -> None:
        parts = list(batch().make_iterator(2, epochs=2))
        assert [labels(part) for part in parts] == [[0, 1], [2, 3], [4, 5]] * 2

    def test_shuffling_depends_on_the_seed(self) -> None:
        def order(seed: int) -> list[int]:
            parts = batch().make_iterator(3, epochs=1, seed=seed, dataloader_kwargs={"shuffle": True})
            return [label for part in parts for label in labels(part)]

        assert order(1) == order(1) != order(2)
        assert sorted(order(1)) == list(range(6))

    def test_one_element_lists_stay_lists(self) -> None:
        (part,) = DataProto.from_dict(non_tensors={"a": [[1], [2]]}).make_iterator(2, epochs=1)
        assert part.non_tensor_batch["a"].shape == (2,)

    def test_mini_batches_divide_the_rows(self) -> None:
        with pytest.raises(MismatchError, match="6 rows do not divide into mini-batches of 4"):
            batch().make_iterator(4, epochs=1)


class TestConversion:
    def test_tensordict_and_back(self) -> None:
        data = batch(3, scores=[[], [0.5], [1.0, 2.0]], same=[1, 1, 1], nothing=[None, None, None])
        back = DataProto.from_tensordict(data.to_tensordict())
        assert labels(back) == [0, 1, 2]
        for key, values in data.non_tensor_batch.items():
            assert [list(v) if key == "scores" else v for v in back.non_tensor_batch[key]] == list(values)

    def test_tensordict_without_tensors(self) -> None:
        data = DataProto.from_dict(non_tensors={"a": ["x", "y"]}, meta_info={"m": {"n": 1}})
        back = DataProto.from_tensordict(data.to_tensordict())
        assert (back.batch, list(back.non_tensor_batch["a"]), back.meta_info) == (
            None,
            ["x", "y"],
            {"m": {"n": 1}},
        )

    def test_a_meta_key_may_not_be_a_field(self) -> None:
        with pytest.raises(MismatchError, match="key `a` is both a field and an entry of meta_info"):
            DataProto.from_dict(non_tensors={"a": [1]}, meta_info={"a": 1}).to_tensordict()

    def test_info_names_types(self) -> None:
        info = batch().get_data_info()
        assert "  ids: (6, 2) (torch.int64) cpu" in info
        assert "  extra_info: ndarray(6,) of dict[str: int]" in info
        assert "  step: int" in info
        assert DataProto().get_data_info() == "batch\nnon_tensor_batch\nmeta_info"


class TestDeepEqual:
    @pytest.mark.parametrize(
        ("a", "b"),
        [(1, 1.0), (1, True), ([1], (1,)), ({"a": 1}, {"a": True}), ({"a": 1}, {"a": 1, "b": 2}), ("1", 1)],
    )
    def test_types_count(self, a: object, b: object) -> None:
        assert not deep_equal(a, b)

    def test_a_value_that_contains_itself(self) -> None:
        a: list = [1]
        a.append(a)
        b: list = [1]
        b.append(b)
        assert deep_equal(a, b)
        b[0] = 2
        assert not deep_equal(a, b)
