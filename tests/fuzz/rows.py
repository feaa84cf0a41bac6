"""Mutated rows: lines of JSON, and tables whose columns have types that nobody expects; all by seed."""

import base64
import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from tests.conftest import ROOT
from tests.contract.rows import data_uri, png, row

Random = random.Random
PICTURE = png(4, 4)

_STRANGE: list[Any] = [
    None, True, False, 0, -1, 2**53 + 1, -(2**63), 2**64, 10**400, 1e308, 5e-324, float("nan"), float("inf"),
    "", " ", "\0", "a\0b", "\r\n", "\ufeff", "\ud83d", "\udc00x", "é中😀", "\u202e", "\x1b[2J", "_", "NaN",
    "<image>", "<image >", "<|image_pad|>", "<|im_end|>", "</s>", "{{ 7 * 7 }}", "{% for x %}", "null",
    "../../etc/passwd", "http://[",
    "file:///etc/passwd", "data:image/png;base64,!!!", "user", "system", "A" * 5000, "9" * 5000,
    [], {}, [[]], [None], [{}], {"": ""}, {"\ud83d": 1}, {"role": "user"}, {"$ref": "#"}, [[[[[[[[1]]]]]]]],
    {"bytes": None, "path": None}, {"type": "image"}, {"type": "text", "text": None}, [1, "1", 1.0, True],
]  # fmt: skip
_HEADERS = [
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xff\xff\xff\xff\xff\xff\xff\x10\x06\0\0\0",
    b"GIF89a\xff\xff\xff\xff\xf7\0\0",
    b"\xff\xd8\xff\xc0\0\x11\x08\xff\xff\xff\xff\x03",
    b"BM" + b"\xff" * 60,
    b"II*\0\x08\0\0\0\xff\xff" + b"\x01" * 80,
    b"RIFF\xff\xff\xff\xffWEBPVP8X\n\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff",
    b"P6 99999 99999 255 ",
    b"\0\0\0\x20ftypavif" + b"\0" * 60,
]


def seeds() -> list[dict[str, Any]]:
    """Rows that the mutations start from: those of the samples, and one of every shape that they lack."""
    samples = [ROOT / "data/gsm_symbolic/test.jsonl", ROOT / "data/needs_care/train.jsonl"]
    lines = (line for file in samples for line in file.read_text(errors="replace").splitlines()[:40])
    found = [value for line in lines if isinstance(value := _lenient(line), dict)]
    call = {"type": "function", "function": {"name": "sum", "arguments": {"a": 1, "b": None}}}
    pair = [{"type": "text", "text": "Hm?"}, {"type": "image"}]
    tools_kwargs = {"sum": {"create_kwargs": {"x": 1}}}
    return [
        *found,
        row(prompt=[{"role": "user", "content": "<image> What?"}], images=[{"bytes": data_uri(PICTURE)}]),
        row(prompt=[{"role": "user", "content": "<image><image>?"}], images=[data_uri(PICTURE)] * 2),
        row(prompt=[{"role": "user", "content": pair}], images=[]),
        row(
            prompt=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "1 + 2?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "3"},
            ],
            tools=[{"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}],
        ),
        row(extra_info={"index": 3, "tools_kwargs": tools_kwargs, "need_tools_kwargs": True}),
        row(uid="0123456789abcdef0123456789abcdef", agent_name="tool_agent", level=[1, {"a": 2.5}]),
    ]  # fmt: skip


def _lenient(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def mutated_lines(seed: int, count: int) -> Iterator[bytes]:
    """`count` lines, each one row for the reader: no line is blank and none holds a line break."""
    chance, good = Random(seed), seeds()
    made = 0
    while made < count:
        value: Any = copy.deepcopy(chance.choice(good))
        for _ in range(chance.choice((0, 1, 1, 2, 4))):
            value = _change_value(value, chance)
        line = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
        if chance.random() < 0.3:
            line = chance.choice(_TEXT_CHANGES)(line, chance)
        line = line.replace(b"\n", b" ")
        if line.strip(b" \t\r\x0b\x0c") and not line.startswith(b"\xef\xbb\xbf"):
            made += 1
            yield line


def _change_value(value: Any, chance: Random) -> Any:
    """`value` with one place deleted, replaced, wrapped, doubled, renamed, or given bytes of an image."""
    if not isinstance(value, (dict, list)) or not value:
        return copy.deepcopy(chance.choice(_STRANGE))
    holder = value
    while True:
        key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        inner = holder[key]
        if not isinstance(inner, (dict, list)) or not inner or chance.random() < 0.3:
            break
        holder = inner
    action = chance.randrange(8)
    if action == 0:
        del holder[key]
    elif action == 1:
        holder[key] = [holder[key]] * chance.choice((1, 2, 50))
    elif action == 2:
        holder[key] = {chance.choice(["role", "content", "bytes", "path", ""]): holder[key]}
    elif action == 3 and isinstance(holder, dict):
        new = chance.choice(["Prompt", "raw_prompt", "uid", "images", "videos", "a b", "\0", "é", "x" * 3000])
        holder[new] = holder.pop(key)
    elif action == 4:
        holder[key] = json.dumps(holder[key])
    elif action == 5:
        deep: Any = 1
        for _ in range(chance.choice((10, 62, 64, 66, 500))):
            deep = [deep] if chance.random() < 0.5 else {"a": deep}
        holder[key] = deep
    elif action == 6:
        data = chance.choice([*_HEADERS, _flip(PICTURE, chance), PICTURE[: chance.randrange(len(PICTURE))]])
        holder[key] = "data:image/png;base64," + base64.b64encode(data).decode()
    else:
        holder[key] = copy.deepcopy(chance.choice(_STRANGE))
    return value


def _flip(data: bytes, chance: Random) -> bytes:
    if not data:
        return data
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 3, 20))):
        made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
    return bytes(made)


def _cut(data: bytes, chance: Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _drop(data: bytes, chance: Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at + chance.randrange(1, 30) :]


def _insert(data: bytes, chance: Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    what = [
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\r",
        b'"',
        b",",
        b"}",
        b"[" * 400,
        b"9" * 400,
        b"NaN",
        b"\\u00",
    ]
    return data[:at] + chance.choice(what) + data[at:]  # fmt: skip


def _repeat(data: bytes, chance: Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at : at + 60] * 2 + data[at:]


def _same_key_twice(data: bytes, chance: Random) -> bytes:
    return data[:-1] + b', "data_source": ' + chance.choice([b'"x"', b"null", b'"openai/gsm8k"']) + data[-1:]


def _other_encoding(data: bytes, chance: Random) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(
        chance.choice(["utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "utf-7"]), "replace"
    )


_TEXT_CHANGES: list[Callable[[bytes, Random], bytes]] = [
    _flip, _cut, _drop, _insert, _repeat, _same_key_twice, _other_encoding,
    lambda data, chance: data + b"\r",
    lambda data, chance: data + data,
    lambda data, chance: b"[" + data + b"]",
    lambda data, chance: data.replace(b'"', b"'"),
    lambda data, chance: data.replace(b": ", b":" + b"\xc2\xa0"),
]  # fmt: skip


def strange_table(seed: int, count: int) -> pa.Table:
    """`count` good rows of parquet in which one or two columns hold values of another Arrow type."""
    chance = Random(seed)
    good = [row(extra_info={"index": index}, images=None) for index in range(count)]
    table = pa.Table.from_pylist(good)
    for _ in range(chance.choice((1, 1, 2))):
        name = chance.choice([*table.column_names, "uid", "videos", "level", "prompt_ids"])
        column = _strange_column(chance, count)
        at = table.schema.get_field_index(name)
        table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    return table


def _strange_column(chance: Random, count: int) -> pa.Array:
    makers: list[Callable[[], pa.Array]] = [
        lambda: pa.nulls(count),
        lambda: pa.array([chance.randbytes(9) for _ in range(count)]),
        lambda: _not_utf8(chance, count),
        lambda: pa.array([chance.choice([None, float("nan"), float("inf"), 1.5]) for _ in range(count)]),
        lambda: pa.array([chance.randrange(2**64) for _ in range(count)], pa.uint64()),
        lambda: pa.array([chance.randrange(-(2**62), 2**62) for _ in range(count)], pa.timestamp("ns")),
        lambda: pa.array([chance.randrange(-(2**45), 2**45) for _ in range(count)], pa.timestamp("s", "UTC")),
        lambda: pa.array([chance.randrange(-(2**31), 2**31) for _ in range(count)], pa.date32()),
        lambda: pa.array([chance.randrange(10**9) for _ in range(count)], pa.duration("us")),
        lambda: pa.array([[("a", 1), ("a", 2)]] * count, pa.map_(pa.string(), pa.int64())),
        lambda: pa.array([[("k", chance.random())]] * count, pa.map_(pa.string(), pa.float32())),
        lambda: pa.array([{"role": "user", "content": None}] * count),
        lambda: pa.array([[{"bytes": _flip(PICTURE, chance), "path": None}] for _ in range(count)]),
        lambda: pa.array([[[[None, [1]]]]] * count, pa.list_(pa.list_(pa.list_(pa.list_(pa.int8()))))),
        lambda: pa.array(["x" * 10_000] * count).dictionary_encode(),
        lambda: pa.array([chance.choice(["{}", "[", "null", '{"a":1}']) for _ in range(count)], pa.json_()),
        lambda: pa.array([1] * count, pa.decimal128(38, 10)),
        lambda: pa.array([0.5] * count, pa.float16()),
        lambda: pa.array([b"0123456789abcdef"] * count, pa.uuid()),
    ]
    return chance.choice(makers)()


def _not_utf8(chance: Random, count: int) -> pa.Array:
    raw = pa.array([chance.choice([b"fine", b"\xff\xfe", b"\xed\xa0\x80", b"a\0b"]) for _ in range(count)])
    return pa.Array.from_buffers(pa.string(), count, raw.buffers())
