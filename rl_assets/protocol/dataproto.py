"""`DataProto`, the batch type: tensors, columns of Python values, and facts about the whole batch.

The operations and their names are those of verl's class of the same name, so that code written for one
reads the other. Where verl lets a mistake through, this one refuses: see `MismatchError`.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rl_assets.protocol.fields import MismatchError, column, merged, merged_meta
from rl_assets.protocol.values import describe, fresh

AUTO_PADDING_KEY = "_verl_auto_padding"

Indices = Sequence[int] | Sequence[bool] | np.ndarray | torch.Tensor


@dataclass
class DataProtoItem:
    """One row of a `DataProto`, as `data[3]` gives it.

    Attributes:
        batch: the row's tensors without their batch dimension, or None.
        non_tensor_batch: the row's other values.
        meta_info: facts about the whole batch that the row came from.
    """

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


@dataclass
class DataProto:
    """Rows whose fields are tensors, Python values, or both, with facts about the whole.

    Attributes:
        batch: tensors of shape (rows, ...) as a TensorDict with one batch dimension, or None.
        non_tensor_batch: 1-D object arrays of length rows; what is given as another sequence is converted.
        meta_info: anything; operations that make a new batch hand on a shallow copy.

    Raises:
        MismatchError: fields differ in length (with tensors or without), a key is in both halves, or the
            TensorDict has not exactly one batch dimension.
    """

    batch: TensorDict = None  # TensorDict | None, without asking each user of a rollout to rule None out
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.non_tensor_batch = {k: column(k, v) for k, v in (self.non_tensor_batch or {}).items()}
        self.meta_info = {} if self.meta_info is None else self.meta_info
        self.check_consistency()

    def check_consistency(self) -> None:
        """Raise `MismatchError` where the fields do not make one batch."""
        lengths = {}
        if self.batch is not None:
            if len(self.batch.batch_size) != 1:
                raise MismatchError(
                    f"the TensorDict has batch size {tuple(self.batch.batch_size)}, expected one dimension"
                )
            lengths = {key: self.batch.batch_size[0] for key, _ in self.batch.items()}
        for key, values in self.non_tensor_batch.items():
            if key in lengths:
                raise MismatchError(f"key `{key}` is both a tensor and a column; rename one of them")
            if values.ndim != 1 or values.dtype != object:
                raise MismatchError(f"key `{key}`: found {describe(values)}, expected a 1-D object array")
            lengths[key] = len(values)
        for key, length in lengths.items():
            if length != len(self):
                raise MismatchError(f"key `{key}` has {length} rows, the batch has {len(self)}")

    def __len__(self) -> int:
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        return len(next(iter(self.non_tensor_batch.values()), ()))

    # Making one and taking it apart ------------------------------------------------------------------

    @classmethod
    def from_single_dict(
        cls,
        data: Mapping[str, torch.Tensor | np.ndarray],
        meta_info: dict[str, Any] | None = None,
        auto_padding: bool = False,
    ) -> Self:
        """A batch from one dict, as `collate_fn` makes it: tensors to one half, arrays to the other.

        Raises:
            ValueError: a value is neither a tensor nor an array.
        """
        for key, value in data.items():
            if not isinstance(value, torch.Tensor | np.ndarray):
                raise ValueError(f"key `{key}`: found {describe(value)}, expected a tensor or an array")
        return cls.from_dict(
            tensors={k: v for k, v in data.items() if isinstance(v, torch.Tensor)},
            non_tensors={k: v for k, v in data.items() if isinstance(v, np.ndarray)},
            meta_info=meta_info,
            auto_padding=auto_padding,
        )

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, torch.Tensor] | None = None,
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> Self:
        """A batch from its halves.

        Args:
            tensors: each of shape (rows, ...).
            non_tensors: each a sequence of one value per row.
            meta_info: facts about the whole; copied.
            num_batch_dims: only 1, verl's default, is accepted.
            auto_padding: let `chunk` give parts of unequal length.

        Raises:
            MismatchError: the fields do not make one batch.
        """
        if num_batch_dims != 1:
            raise MismatchError(
                f"num_batch_dims is {num_batch_dims}; a batch has exactly one batch dimension"
            )
        batch = None
        for key, tensor in (tensors or {}).items():
            if tensor.dim() == 0:
                raise MismatchError(f"key `{key}`: found a 0-d tensor ({tensor.dtype}), expected (rows, ...)")
            if batch is None:
                batch = TensorDict({}, batch_size=[tensor.shape[0]])
                first = key
            elif tensor.shape[0] != batch.batch_size[0]:
                raise MismatchError(
                    f"key `{key}` has {tensor.shape[0]} rows, key `{first}` has {batch.batch_size[0]}"
                )
            batch.set(key, tensor)
        meta_info = dict(meta_info or {})
        if auto_padding:
            meta_info[AUTO_PADDING_KEY] = True
        return cls(batch, dict(non_tensors or {}), meta_info)

    @classmethod
    def from_tensordict(cls, tensor_dict: TensorDict, meta_info: dict[str, Any] | None = None) -> Self:
        """A batch from a TensorDict: tensors, stacks of non-tensors (columns), single non-tensors (meta)."""
        tensors, columns, meta = {}, {}, dict(meta_info or {})
        for key, value in tensor_dict.items():
            if isinstance(value, torch.Tensor):
                tensors[key] = value
            elif isinstance(value, NonTensorStack):
                columns[key] = column(key, [element.data for element in value])
            elif isinstance(value, NonTensorData):
                meta[key] = value.data
            else:
                raise ValueError(
                    f"key `{key}`: found {describe(value)}, expected a tensor or non-tensor data"
                )
        return cls.from_dict(tensors, columns, meta)

    def to_tensordict(self) -> TensorDict:
        """A TensorDict with each column as a NonTensorStack and each entry of meta_info as NonTensorData.

        Raises:
            MismatchError: a key of meta_info is also a field's.
        """
        fields: dict[str, Any] = {} if self.batch is None else dict(self.batch.items())
        for key, values in self.non_tensor_batch.items():
            fields[key] = NonTensorStack.from_list([NonTensorData(value) for value in values])
        for key, value in self.meta_info.items():
            if key in fields:
                raise MismatchError(f"key `{key}` is both a field and an entry of meta_info")
            fields[key] = NonTensorData(value)
        return TensorDict(fields, batch_size=[len(self)])

    def get_data_info(self) -> str:
        """Keys, shapes, dtypes and devices, and the types found in columns and meta_info, as text."""
        lines = ["batch"]
        for key, tensor in () if self.batch is None else sorted(self.batch.items()):
            lines.append(f"  {key}: {tuple(tensor.shape)} ({tensor.dtype}) {tensor.device}")
        lines.append("non_tensor_batch")
        for key, values in self.non_tensor_batch.items():
            lines.append(f"  {key}: ndarray{values.shape} of {describe(values[0]) if len(values) else '...'}")
        lines.append("meta_info")
        lines.extend(f"  {key}: {describe(value)}" for key, value in self.meta_info.items())
        return "\n".join(lines)

    def to(self, device: torch.device | str) -> Self:
        """Move the tensors to `device`, in place; returns the batch itself."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    # Choosing rows -----------------------------------------------------------------------------------

    def __getitem__(self, item: int | slice | Indices) -> Any:
        """`data[3]` is a `DataProtoItem`; a slice, list, array or tensor of indices or a mask, a batch."""
        if isinstance(item, slice):
            return self.slice(item.start, item.stop, item.step)
        if isinstance(item, list | np.ndarray | torch.Tensor):
            return self.select_idxs(item)
        if isinstance(item, bool | np.bool_) or not isinstance(item, int | np.integer):
            raise TypeError(f"a batch cannot be indexed with {describe(item)}")
        if not -len(self) <= item < len(self):
            raise IndexError(f"row {item} of a batch of {len(self)} rows")
        return DataProtoItem(
            batch=None if self.batch is None else self.batch[int(item)],
            non_tensor_batch={key: values[item] for key, values in self.non_tensor_batch.items()},
            meta_info=dict(self.meta_info),
        )

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> Self:
        """Rows start, start+step, … before end, as Python's slices choose them; tensors share memory."""
        if step is not None and step < 0:
            return self._take(np.arange(len(self))[start:end:step])
        rows = slice(start, end, step)
        return self._derive(
            None if self.batch is None else self.batch[rows],
            {key: values[rows] for key, values in self.non_tensor_batch.items()},
        )

    def select_idxs(self, idxs: Indices) -> Self:
        """The rows at `idxs` (negative ones count from the end) or where the mask `idxs` is true.

        Raises:
            MismatchError: a mask whose length is not the batch's.
            IndexError: an index that no row has.
        """
        return self._take(self._positions(idxs))

    def _positions(self, idxs: Indices) -> np.ndarray:
        array = idxs.detach().cpu().numpy() if isinstance(idxs, torch.Tensor) else np.asarray(idxs)
        if array.size == 0 and array.dtype != bool:
            array = array.astype(np.int64)
        if array.ndim != 1 or not (array.dtype == bool or np.issubdtype(array.dtype, np.integer)):
            raise TypeError(f"found {describe(array)}, expected a 1-D sequence of row indices or a mask")
        if array.dtype == bool:
            if len(array) != len(self):
                raise MismatchError(f"a mask of length {len(array)} for a batch of {len(self)} rows")
            return np.flatnonzero(array)
        wrong = (array < -len(self)) | (array >= len(self))
        if wrong.any():
            raise IndexError(f"row {array[wrong][0]} of a batch of {len(self)} rows")
        return np.where(array < 0, array + len(self), array).astype(np.int64)

    def _take(self, positions: np.ndarray) -> Self:
        """Rows by position. A row taken more than once is copied each time, so that no two share values."""
        batch = None
        if self.batch is not None:
            index = torch.from_numpy(positions.copy())
            batch = TensorDict(
                {key: tensor[index.to(tensor.device)] for key, tensor in self.batch.items()},
                batch_size=[len(positions)],
                device=self.batch.device,
            )
        repeated = np.bincount(positions, minlength=len(self))[positions] > 1
        columns = {key: values[positions] for key, values in self.non_tensor_batch.items()}
        for values in columns.values():
            for row in np.flatnonzero(repeated):
                values[row] = fresh(values[row])
        return self._derive(batch, columns)

    def _derive(self, batch: TensorDict | None, columns: dict[str, np.ndarray]) -> Self:
        return type(self)(batch, columns, dict(self.meta_info))

    def reorder(self, indices: Indices) -> None:
        """Put the rows in the order `indices`, in place.

        Raises:
            MismatchError: `indices` is not a permutation of the rows.
        """
        positions = self._positions(indices)
        if not np.array_equal(np.sort(positions), np.arange(len(self))):
            raise MismatchError(
                f"{len(positions)} indices are not a permutation of {len(self)} rows; "
                "select_idxs chooses and repeats rows"
            )
        taken = self._take(positions)
        self.batch, self.non_tensor_batch = taken.batch, taken.non_tensor_batch

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> Self:
        """Every row `repeat_times` times: AABB when `interleave`, ABAB otherwise.

        Dicts and lists are copied for each repetition, so that what one sample's reward function writes
        into its `extra_info` is not seen by its siblings. What they hold (text, images) is shared.
        """
        rows = np.arange(len(self))
        return self._take(np.repeat(rows, repeat_times) if interleave else np.tile(rows, repeat_times))

    def sample_level_repeat(self, repeat_times: Sequence[int] | np.ndarray | torch.Tensor) -> Self:
        """Row i `repeat_times[i]` times, next to each other, copied as `repeat` does.

        Raises:
            MismatchError: not one count per row, or a negative one.
        """
        if isinstance(repeat_times, torch.Tensor):
            repeat_times = repeat_times.detach().cpu().numpy()
        counts = np.asarray(repeat_times, dtype=np.int64)
        if counts.shape != (len(self),) or (counts < 0).any():
            raise MismatchError(f"found {counts.tolist()}, expected {len(self)} counts, one for each row")
        return self._take(np.repeat(np.arange(len(self)), counts))

    # Choosing fields ---------------------------------------------------------------------------------

    def _require(
        self, batch_keys: Iterable[str], non_tensor_batch_keys: Iterable[str], meta_info_keys: Iterable[str]
    ) -> None:
        for wanted, half, name in (
            (batch_keys, self.batch, "batch"),
            (non_tensor_batch_keys, self.non_tensor_batch, "non_tensor_batch"),
            (meta_info_keys, self.meta_info, "meta_info"),
        ):
            present = [] if half is None else list(half.keys())
            for key in wanted:
                if key not in present:
                    raise KeyError(f"{name} has no key `{key}`; it has {sorted(present)}")

    def select(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
        deepcopy: bool = False,
    ) -> Self:
        """A batch of the named fields; a half that is not named stays whole.

        Args:
            batch_keys: tensors to keep.
            non_tensor_batch_keys: columns to keep.
            meta_info_keys: entries of meta_info to keep.
            deepcopy: copy columns and meta_info to the bottom; tensors are shared either way.

        Raises:
            KeyError: a key that is not there.
        """
        batch = self.batch
        columns, meta = dict(self.non_tensor_batch), dict(self.meta_info)
        batch_keys = None if batch_keys is None else list(batch_keys)
        non_tensor_batch_keys = list(columns if non_tensor_batch_keys is None else non_tensor_batch_keys)
        meta_info_keys = list(meta if meta_info_keys is None else meta_info_keys)
        self._require(batch_keys or (), non_tensor_batch_keys, meta_info_keys)
        if batch is not None and batch_keys is not None:
            batch = batch.select(*batch_keys)
        columns = {key: columns[key] for key in non_tensor_batch_keys}
        meta = {key: meta[key] for key in meta_info_keys}
        if deepcopy:
            columns, meta = copy.deepcopy(columns), copy.deepcopy(meta)
        return type(self)(batch, columns, meta)

    def pop(
        self,
        batch_keys: Iterable[str] = (),
        non_tensor_batch_keys: Iterable[str] = (),
        meta_info_keys: Iterable[str] = (),
    ) -> Self:
        """Remove the named fields and return them as a batch. All of them, or none where one is missing.

        Raises:
            KeyError: a key that is not there; nothing was removed.
        """
        batch_keys, non_tensor_batch_keys, meta_info_keys = (
            list(dict.fromkeys(keys or ())) for keys in (batch_keys, non_tensor_batch_keys, meta_info_keys)
        )
        self._require(batch_keys, non_tensor_batch_keys, meta_info_keys)
        return type(self).from_dict(
            {key: self.batch.pop(key) for key in batch_keys} if self.batch is not None else {},
            {key: self.non_tensor_batch.pop(key) for key in non_tensor_batch_keys},
            {key: self.meta_info.pop(key) for key in meta_info_keys},
        )

    def rename(self, old_keys: str | Sequence[str], new_keys: str | Sequence[str]) -> Self:
        """Rename fields of either half, in place; returns the batch itself.

        Raises:
            KeyError: an old key that is not there; nothing was renamed.
            MismatchError: not as many new keys as old, or a new key that is taken.
        """
        old = [old_keys] if isinstance(old_keys, str) else list(old_keys)
        new = [new_keys] if isinstance(new_keys, str) else list(new_keys)
        if len(old) != len(new):
            raise MismatchError(f"{len(old)} old keys and {len(new)} new keys")
        tensors = {} if self.batch is None else dict(self.batch.items())
        present = [*tensors, *self.non_tensor_batch]
        for key in old:
            if key not in present:
                raise KeyError(f"the batch has no key `{key}`; it has {sorted(present)}")
        names = dict(zip(old, new, strict=True))
        after = [names.get(key, key) for key in present]
        if len(set(after)) != len(after):
            taken = sorted(key for key in set(after) if after.count(key) > 1)
            raise MismatchError(f"renaming {names} would give two fields the name {taken}")
        if self.batch is not None:
            renamed = {names.get(key, key): tensor for key, tensor in tensors.items()}
            self.batch = TensorDict(renamed, batch_size=self.batch.batch_size, device=self.batch.device)
        self.non_tensor_batch = {names.get(key, key): v for key, v in self.non_tensor_batch.items()}
        return self

    # Joining and parting -----------------------------------------------------------------------------

    def union(self, other: "DataProto") -> Self:
        """Add the fields of `other` (same rows, same order) to this batch, in place; returns it.

        A field that both have must be equal in both: same dtype and shape, same values and types, NaN
        equal to NaN. Nothing is changed when they differ.

        Raises:
            MismatchError: other lengths, or a field or entry of meta_info that differs.
        """
        empty = self.batch is None and not self.non_tensor_batch
        if not empty and len(self) != len(other) and (other.batch is not None or other.non_tensor_batch):
            raise MismatchError(f"a batch of {len(self)} rows cannot be joined with one of {len(other)}")
        mine = {} if self.batch is None else dict(self.batch.items())
        theirs = {} if other.batch is None else dict(other.batch.items())
        tensors = merged("batch", mine, theirs)
        columns = merged("non_tensor_batch", self.non_tensor_batch, other.non_tensor_batch)
        meta = merged("meta_info", self.meta_info, other.meta_info)
        batch = self.batch
        if other.batch is not None:
            device = other.batch.device if self.batch is None else self.batch.device
            batch = TensorDict(tensors, batch_size=[len(other)], device=device)
        joined = type(self)(batch, columns, meta)
        self.batch, self.non_tensor_batch, self.meta_info = joined.batch, joined.non_tensor_batch, meta
        return self

    def chunk(self, chunks: int) -> list[Self]:
        """`chunks` parts of equal length, in order.

        With `auto_padding` on (see `from_dict`) the lengths may differ: as many as fit get ceil(rows /
        chunks) rows, and the last ones are shorter or empty.

        Raises:
            MismatchError: the rows do not divide evenly.
            ValueError: `chunks` is not positive.
        """
        if chunks < 1:
            raise ValueError(f"a batch cannot be cut into {chunks} chunks")
        if len(self) % chunks and not self.meta_info.get(AUTO_PADDING_KEY):
            raise MismatchError(
                f"only support equal chunk. Got size of DataProto {len(self)} and chunk {chunks}."
            )
        size = -(-len(self) // chunks)
        return [self[part * size : (part + 1) * size] for part in range(chunks)]

    def split(self, split_size: int) -> list[Self]:
        """Parts of `split_size` rows, in order; the last may be shorter.

        Raises:
            ValueError: `split_size` is not positive.
        """
        if split_size < 1:
            raise ValueError(f"a batch cannot be split into parts of {split_size} rows")
        return [self[start : start + split_size] for start in range(0, len(self), split_size)]

    @staticmethod
    def concat(data: Sequence["DataProto"]) -> "DataProto":
        """The rows of all batches, in order.

        meta_info is merged: `metrics` (a dict, or a list of dicts, in each) become one dict of lists;
        every other entry must be equal wherever it occurs.

        Raises:
            MismatchError: the batches differ in keys, in a tensor's dtype or row shape, or in meta_info.
            ValueError: there is no batch.
        """
        data = list(data)
        if not data:
            raise ValueError("there is no batch to concatenate")
        first = data[0]
        for position, other in enumerate(data[1:], start=1):
            _check_same_fields(first, other, position)
        batch = None
        if first.batch is not None:
            batch = TensorDict(
                {key: torch.cat([other.batch[key] for other in data]) for key, _ in first.batch.items()},
                batch_size=[sum(len(other) for other in data)],
                device=first.batch.device,
            )
        columns = {
            key: np.concatenate([d.non_tensor_batch[key] for d in data]) for key in first.non_tensor_batch
        }
        return type(first)(batch, columns, merged_meta([d.meta_info for d in data]))

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: dict[str, Any] | None = None,
    ) -> Iterator[Self]:
        """Mini-batches of `mini_batch_size` rows, `epochs` times over, through a torch DataLoader.

        Args:
            mini_batch_size: must divide the number of rows.
            epochs: how often to go over the rows.
            seed: seed of the DataLoader's generator.
            dataloader_kwargs: more arguments for the DataLoader; `{"shuffle": True}` shuffles.

        Raises:
            MismatchError: the rows do not divide evenly.
        """
        from torch.utils.data import DataLoader

        if mini_batch_size < 1 or len(self) % mini_batch_size:
            raise MismatchError(f"{len(self)} rows do not divide into mini-batches of {mini_batch_size}")
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        loader: Iterable[Self] = DataLoader(
            range(len(self)),  # type: ignore[arg-type]
            batch_size=mini_batch_size,
            collate_fn=self.select_idxs,
            generator=generator,
            **(dataloader_kwargs or {}),
        )
        return (batch for _ in range(epochs) for batch in loader)


def _check_same_fields(first: DataProto, other: DataProto, position: int) -> None:
    for half in ("batch", "non_tensor_batch"):
        wanted, found = (
            set((getattr(d, half) if getattr(d, half) is not None else {}).keys()) for d in (first, other)
        )
        if wanted != found or (getattr(first, half) is None) != (getattr(other, half) is None):
            raise MismatchError(
                f"{half} of batch {position} has the keys {sorted(found)}, that of batch 0 {sorted(wanted)}"
            )
    for key, tensor in () if first.batch is None or other.batch is None else first.batch.items():
        theirs = other.batch[key]
        if tensor.dtype != theirs.dtype or tensor.shape[1:] != theirs.shape[1:]:
            raise MismatchError(
                f"key `{key}`: {describe(theirs)} in batch {position}, {describe(tensor)} in batch 0"
            )


def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """The batch with copies of its leading rows appended, over and over, until `size_divisor` divides it.

    Returns:
        The padded batch and the number of rows added: (d − rows mod d) mod d. An empty batch, or one that
        divides already, is returned itself with 0.
    """
    pad_size = -len(data) % size_divisor if len(data) else 0
    if pad_size == 0:
        return data, 0
    rows = np.concatenate([np.arange(len(data)), np.arange(pad_size) % len(data)])
    return data.select_idxs(rows), pad_size


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """The batch without the `pad_size` rows that `pad_dataproto_to_divisor` appended."""
    return data[: len(data) - pad_size] if pad_size else data
