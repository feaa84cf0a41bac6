"""A batch as the three files of a shard, and back.

`tensors.safetensors` holds the tensors, `rows.parquet` the columns, `meta.json` the rest and the digests of
the other two, block by block. Equal batches give equal bytes (with equal versions of pyarrow and
safetensors). There is no pickle in any of them.
"""

import json
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.torch import save as save_tensors
from tensordict import TensorDict

from rl_assets.base import formats
from rl_assets.base.memory import uncollected
from rl_assets.errors import InputError
from rl_assets.protocol.columns import Encoding, decode, encode, exact_json
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.verified import DamagedError, FileRecord

TENSORS, ROWS, META = "tensors.safetensors", "rows.parquet", "meta.json"
ROW_GROUP = 2048

Rows = slice | Sequence[int]


class ShardMeta(BaseModel):
    """What meta.json says.

    Attributes:
        format: version of this layout.
        rows: number of rows.
        tensors: names of the tensors, or None where the batch has no TensorDict at all.
        columns: how each column of rows.parquet is kept.
        same_as: columns that are not stored, because another one holds the same values.
        meta_info: the batch's.
        files: what the other two files must be.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = formats.SHARD
    rows: int
    tensors: list[str] | None
    columns: dict[str, Encoding]
    same_as: dict[str, str]
    meta_info: dict[str, Any]
    files: dict[str, FileRecord]


def pack(data: DataProto) -> dict[str, bytes]:
    """The three files of a shard by name, meta.json last."""
    tensors = {} if data.batch is None else dict(sorted(data.batch.items()))
    arrays: dict[str, pa.Array] = {}
    encodings: dict[str, Encoding] = {}
    same_as: dict[str, str] = {}
    with uncollected():
        for key, values in sorted(data.non_tensor_batch.items()):
            twin = next((k for k in arrays if all(map(operator.is_, values, data.non_tensor_batch[k]))), None)
            if twin is None:
                array, encoding = encode(key, values)
                twin = _twin(array, encoding, arrays, encodings)
            if twin is None:
                arrays[key], encodings[key] = array, encoding
            else:
                same_as[key] = twin
    files = {TENSORS: save_tensors({key: _plain(key, tensor) for key, tensor in tensors.items()})}
    files[ROWS] = _parquet(arrays, encodings)
    meta = ShardMeta(
        rows=len(data),
        tensors=None if data.batch is None else list(tensors),
        columns=encodings,
        same_as=same_as,
        meta_info=data.meta_info,
        files={name: FileRecord.of(content) for name, content in files.items()},
    )
    try:
        files[META] = exact_json(meta.model_dump()).encode()
    except TypeError as error:
        raise InputError(
            found=str(error),
            expected="a meta_info that JSON can say",
            remedy="Take the entry out of meta_info, or convert it to text, numbers, lists and objects.",
        ) from None
    return files


def _twin(
    array: pa.Array, encoding: Encoding, arrays: Mapping[str, pa.Array], encodings: Mapping[str, Encoding]
) -> str | None:
    """The JSON column that holds the same values already (raw_prompt and prompt do, for text)."""
    if encoding == "json":
        for key, other in arrays.items():
            if encodings[key] == encoding and array.equals(other):
                return key
    return None


def _plain(key: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor by itself in CPU memory, as safetensors wants it."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_nested or tensor.layout != torch.strided:
        raise InputError(
            field=key,
            found=f"a {type(tensor).__name__} that is nested, sparse or no tensor",
            expected="a dense tensor of shape (rows, ...)",
            remedy="Pad it, or carry ragged values as a column of lists.",
        )
    return tensor.detach().to("cpu", copy=True).contiguous()


def _parquet(arrays: Mapping[str, pa.Array], encodings: Mapping[str, Encoding]) -> bytes:
    # Dictionaries pay for names that recur. Token ids stay plain: as packed dictionary indices, a repeated
    # prompt would not repeat its bytes, and zstd could not see it.
    names = [key for key, encoding in encodings.items() if encoding == "string"]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(dict(arrays)),
        sink,
        compression="zstd",
        use_dictionary=names or False,
        row_group_size=ROW_GROUP,
        write_statistics=False,
    )
    return sink.getvalue().to_pybytes()


def parse_meta(text: bytes, place: str) -> ShardMeta:
    """What a meta.json says; `place` is the shard's name in messages.

    Raises:
        DamagedError: it is not one, or of a layout that is no longer read.
        InputError: a newer release wrote it.
    """
    try:
        content = json.loads(text)
        found = formats.version(content)
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedError(f"a meta.json that does not describe a shard ({error})") from error
    formats.refuse_newer(place, found, formats.SHARD)
    if found < formats.SHARD:
        raise DamagedError(f"layout {found}, which is no longer read")
    try:
        return ShardMeta.model_validate(content)
    except ValidationError as error:
        raise DamagedError(f"a meta.json that does not describe a shard ({error})") from error


def unpack(
    meta: ShardMeta,
    open_file: Callable[[str, FileRecord], BinaryIO],
    columns: Collection[str] | None,
    rows: Rows | None,
    *,
    place: str,
) -> DataProto:
    """The batch that `pack` was given, or some of its fields or rows.

    Args:
        meta: what its meta.json says.
        open_file: opens one of the other two files by its name, and verifies it against its record.
        columns: names of the tensors and columns to read; None reads all.
        rows: a slice, or positions in the order wanted; None reads all.
        place: the shard's name in messages.

    Raises:
        DamagedError: the files do not hold what `meta` says.
        InputError: `columns` names a field that the shard lacks.
        IndexError: a position that no row has.
    """
    fields = [*(meta.tensors or ()), *meta.columns, *meta.same_as]
    for key in columns or ():
        if key not in fields:
            raise InputError(
                file=place,
                field=key,
                found="no such field",
                expected=f"one of {sorted(fields)}",
                remedy="Name another.",
            )
    wanted = set(fields if columns is None else columns)
    positions = None if rows is None else _positions(rows, meta.rows)
    count = meta.rows if positions is None else len(positions)
    names = [key for key in meta.tensors or () if key in wanted]
    stored = {key: meta.same_as.get(key, key) for key in [*meta.columns, *meta.same_as] if key in wanted}
    batch, decoded = None, {}
    try:
        if names or columns is None:
            with open_file(TENSORS, meta.files[TENSORS]) as stream:
                tensors = _read_tensors(stream, names, positions)
            batch = None if meta.tensors is None else TensorDict(tensors, batch_size=[count])
        if stored or columns is None:
            with open_file(ROWS, meta.files[ROWS]) as stream:
                table = _read_table(stream, sorted(set(stored.values())), positions)
            with uncollected():
                decoded = {
                    key: decode(table[key].combine_chunks(), meta.columns[key]) for key in table.column_names
                }
        values = {key: decoded[source] for key, source in sorted(stored.items())}
        return DataProto(batch, {key: array.copy() for key, array in values.items()}, dict(meta.meta_info))
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DamagedError(f"files that do not hold what its meta.json says ({error})") from error


def _positions(rows: Rows, count: int) -> np.ndarray:
    if isinstance(rows, slice):
        return np.arange(count)[rows]
    positions = np.array(rows, dtype=np.int64)
    if ((positions < -count) | (positions >= count)).any():
        raise IndexError(f"rows {list(rows)} of a shard of {count} rows")
    return positions % count if count else positions


def _read_table(stream: BinaryIO, names: list[str], positions: np.ndarray | None) -> pa.Table:
    with pq.ParquetFile(stream) as file:
        if positions is None:
            return file.read(columns=names, use_threads=isinstance(stream, pa.BufferReader))
        groups = np.unique(positions // ROW_GROUP)
        table = file.read_row_groups(groups.tolist(), columns=names, use_threads=False)
        within = np.searchsorted(groups, positions // ROW_GROUP) * ROW_GROUP + positions % ROW_GROUP
        return table.take(within)


_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def _read_tensors(
    stream: BinaryIO, names: Iterable[str], positions: np.ndarray | None
) -> dict[str, torch.Tensor]:
    """The named tensors, or some rows of them, reading no other bytes of the file.

    The layout of the file: https://huggingface.co/docs/safetensors/index#format
    """
    length = int.from_bytes(stream.read(8), "little")
    header = json.loads(stream.read(length))
    result = {}
    for name in names:
        entry = header[name]
        dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
        start, stop = (8 + length + offset for offset in entry["data_offsets"])
        runs = [(0, shape[0])] if positions is None else _runs(positions)
        row = (stop - start) // shape[0] if shape[0] else 0
        content = bytearray()
        for first, end in runs:
            stream.seek(start + first * row)
            content += stream.read((end - first) * row)
        shape = [shape[0] if positions is None else len(positions), *shape[1:]]
        result[name] = (
            torch.frombuffer(content, dtype=dtype).reshape(shape)
            if content
            else torch.empty(shape, dtype=dtype)
        )
    return result


def _runs(positions: np.ndarray) -> list[tuple[int, int]]:
    """Ranges [first, end) of neighbouring rows that together are `positions`, in order."""
    if not len(positions):
        return []
    parts = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts]
