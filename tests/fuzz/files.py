"""Mutated raw files: damage of every kind, files that are no files, and files that blow up; all by seed."""

import gzip
import io
import json
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.contract.rows import data_uri, png, row

Random = random.Random
MIB = 1 << 20


def zstd(data: bytes) -> bytes:
    """`data` as one zstd frame."""
    return pa.Codec("zstd").compress(data, asbytes=True)


def sources() -> dict[str, bytes]:
    """Small whole files of every format and compression, by name; each holds thirty good rows."""
    rows = [
        row(prompt=[{"role": "user", "content": f"What is {n} + é? {'x' * n}"}], extra_info={"index": n})
        for n in range(30)
    ]
    lines = b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in rows)
    array, wrapped = json.dumps(rows, indent=1).encode(), json.dumps({"data": rows}).encode()
    files = {"a.jsonl": lines, "a.json": array, "w.json": wrapped, "lines.json": lines}
    table = pa.Table.from_pylist(rows)
    for name, options in {
        "plain": {"compression": "none", "use_dictionary": False},
        "snappy": {"row_group_size": 7},
        "zstd": {"compression": "zstd", "data_page_version": "2.0", "use_byte_stream_split": False},
        "gzip": {"compression": "gzip", "write_page_checksum": True},
    }.items():
        sink = io.BytesIO()
        pq.write_table(table, sink, **options)
        files[f"{name}.parquet"] = sink.getvalue()
    return files | {
        "a.jsonl.gz": gzip.compress(lines, mtime=0),
        "a.jsonl.zst": zstd(lines),
        "a.json.gz": gzip.compress(array, mtime=0),
        "snappy.parquet.zst": zstd(files["snappy.parquet"]),
    }


def mutated_files(seed: int, count: int, folder: Path) -> list[str]:
    """Write `count` damaged files into `folder` and return their names."""
    chance, whole = Random(seed), sources()
    names = []
    for number in range(count):
        source = chance.choice(sorted(whole))
        data = whole[source]
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            data = chance.choice(_CHANGES)(data, chance)
        if chance.random() < 0.1:
            source = chance.choice(sorted(whole))
        names.append(f"{number:03}-{source}")
        (folder / names[-1]).write_bytes(data)
    return names


def _flip(data: bytes, chance: Random) -> bytes:
    made = bytearray(data)
    for _ in range(chance.choice((1, 2, 8, 64)) if made else 0):
        made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
    return bytes(made)


def _flip_near_the_end(data: bytes, chance: Random) -> bytes:
    """Where parquet has its footer."""
    cut = max(0, len(data) - 1500)
    return data[:cut] + _flip(data[cut:], chance)


def _cut(data: bytes, chance: Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _cut_the_start(data: bytes, chance: Random) -> bytes:
    return data[chance.randrange(len(data) + 1) :]


def _blank(data: bytes, chance: Random) -> bytes:
    at, size = chance.randrange(len(data) + 1), chance.randrange(1, 600)
    return data[:at] + chance.choice([b"\0", b"\xff", b" ", b"\n"]) * size + data[at + size :]


def _insert(data: bytes, chance: Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.randrange(1, 40)) + data[at:]


def _move(data: bytes, chance: Random) -> bytes:
    first, second = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    return data[second:] + data[first:second] + data[:first]


def _recode(data: bytes, chance: Random) -> bytes:
    coding = chance.choice(["utf-16", "utf-16-be", "utf-32", "latin-1", "cp1252"])
    return data.decode("utf-8", "replace").encode(coding, "replace")


_CHANGES: list[Callable[[bytes, Random], bytes]] = [
    _flip, _flip_near_the_end, _flip_near_the_end, _cut, _cut_the_start, _blank, _insert, _move, _recode,
    lambda data, chance: b"",
    lambda data, chance: b"\xef\xbb\xbf" + data,
    lambda data, chance: data + data,
    lambda data, chance: data + b"\0" * 100,
    lambda data, chance: data.replace(b"\n", b"\r\n"),
    lambda data, chance: data.replace(b"\n", b"\r"),
    lambda data, chance: chance.randbytes(500),
    lambda data, chance: gzip.compress(data, mtime=0),
]  # fmt: skip


def special_files(folder: Path) -> list[str]:
    """Names below `folder` that lead to something other than a regular file, or to none."""
    (folder / "folder.parquet").mkdir()
    os.mkfifo(folder / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as plug:
        plug.bind(str(folder / "plug.jsonl"))
    for name, target in {
        "zero.jsonl": "/dev/zero",
        "gone.jsonl": "nowhere",
        "loop.json": "loop.json",
    }.items():
        (folder / name).symlink_to(target)
    return ["folder.parquet", "pipe.jsonl", "plug.jsonl", "zero.jsonl", "gone.jsonl", "loop.json"]


def _filled(text: bytes, size: int, start: bytes = b"", end: bytes = b"") -> bytes:
    return start + text * (size // len(text)) + end


def bombs(folder: Path) -> list[str]:
    """Small files that grow: names of those written into `folder`."""
    good = json.dumps(row()).encode()
    wide = good[:-1] + b', "x": ['
    makers: dict[str, Callable[[], bytes]] = {
        "spaces.jsonl.zst": lambda: zstd(_filled(b" ", 400 * MIB)),
        "newlines.jsonl": lambda: _filled(b"\n", 8 * MIB) + good,
        "zeros.parquet.zst": lambda: zstd(b"PAR1" + b"\0" * 400 * MIB),
        "lists.jsonl": lambda: _filled(b"[],", 100 * MIB, wide, b"1]}"),
        "objects.json": lambda: _filled(b'{"a":1},', 100 * MIB, b"[" + wide, b"1]}]"),
        "text.jsonl": lambda: _filled(b"x", 130 * MIB, wide + b'"', b'"]}'),
        "text.json": lambda: _filled("😀".encode(), 130 * MIB, b"[" + wide + b'"', b'"]}]'),
        "deep.jsonl": lambda: _filled(b"[", MIB // 4, b'{"x": '),
        "deep.json": lambda: _filled(b'{"a":', 4 * MIB),
        "digits.jsonl": lambda: _filled(b"9", 20 * MIB, b'{"x": ', b"}\n") + good,
        "digits.json": lambda: _filled(b"9", 20 * MIB, b'[{"x": ', b"}]"),
        "nans.jsonl": lambda: _filled(b"NaN,", MIB, wide, b"1]}"),
        "surrogates.jsonl": lambda: _filled(b'"\\ud83d",', 4 * MIB, wide, b"1]}"),
        "keys.jsonl": lambda: json.dumps(row(x={"k" * MIB: [float("nan")] * 200})).encode(),
        "messages.jsonl": lambda: json.dumps(row(prompt=[{"role": "x", "content": 1}] * 100_000)).encode(),
        "pictures.jsonl": lambda: b"\n".join(
            json.dumps(row(prompt=[{"role": "user", "content": "<image>?"}], images=[data_uri(one)])).encode()
            for one in picture_bombs()
        ),
    }
    for name, make in makers.items():
        (folder / name).write_bytes(make())
    _long_rows(folder / "long.parquet")
    _one_value_everywhere(folder / "repeated.parquet")
    _rows_that_are_not_there(folder / "rows.parquet")
    return [*makers, "long.parquet", "repeated.parquet", "rows.parquet"]


def picture_bombs() -> list[bytes]:
    """Images whose pixels, frames, text or declared size exceed what anyone should decode."""
    from PIL import Image, PngImagePlugin

    def saved(image: "Image.Image", kind: str, **options: object) -> bytes:
        sink = io.BytesIO()
        image.save(sink, kind, **options)
        return sink.getvalue()

    note = PngImagePlugin.PngInfo()
    note.add_text("note", "x" * (40 * MIB), zip=True)
    flat = Image.new("L", (9000, 9000))
    frames = [Image.new("P", (600, 600), color) for color in range(60)]
    lying = bytearray(png(8, 8))
    lying[16:24] = b"\0\0\xff\xff\0\0\x04\xff"
    return [
        saved(Image.new("1", (20000, 20000)), "PNG"),
        saved(Image.new("L", (1, 60000)), "PNG"),
        saved(flat, "PNG"),
        saved(flat, "TIFF", compression="tiff_deflate"),
        saved(Image.new("RGB", (16000, 5000)), "WEBP", quality=1),
        saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        saved(Image.new("RGB", (8, 8)), "PNG", pnginfo=note),
        bytes(lying),
    ]


def _long_rows(path: Path) -> None:
    """Rows of two megabytes of text each, more of them in a batch than memory should hold."""
    rows = [row(extra_info={"index": n}, note=chr(97 + n % 26) * (2 * MIB)) for n in range(300)]
    schema = pa.Table.from_pylist(rows[:1]).schema
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for one in rows:
            writer.write_batch(pa.RecordBatch.from_pylist([one], schema=schema), row_group_size=300)


def _one_value_everywhere(path: Path) -> None:
    """A dictionary of one long text, to which every row points: a gigabyte of rows in a small file."""
    count = 1000
    table = pa.Table.from_pylist([row(extra_info={"index": n}) for n in range(count)])
    note = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * MIB]))
    pq.write_table(table.append_column("note", note), path, compression="zstd")


def _rows_that_are_not_there(path: Path) -> None:
    """A footer that claims more rows than could ever be listed."""
    table = pa.table({"a": pa.nulls(1 << 20, pa.int8())})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none")
    count = _varint(2 << 20)
    data = sink.getvalue()
    assert count in data
    path.write_bytes(data.replace(count, _varint(2 << 26)))


def _varint(number: int) -> bytes:
    """`number` as Thrift's compact protocol writes it."""
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])
