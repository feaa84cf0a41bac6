"""Files appear whole or not at all, and tables come back as they were written."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from upath import UPath

from rl_assets.base import tables
from rl_assets.base.digests import digest_bytes, digest_file, digest_json
from rl_assets.base.files import named_errors, publish_file, staging, storage_root, write_file
from rl_assets.base.jsontext import canonical_json, to_json
from rl_assets.base.tables import Table, TableWriter

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.string())])


def rows(count: int) -> list[dict]:
    return [{"n": n, "text": None if n % 7 == 0 else f"row {n}"} for n in range(count)]


@given(JSON)
def test_json_text_decodes_to_an_equal_value(value: object) -> None:
    import json

    assert json.loads(to_json(value)) == value
    assert json.loads(canonical_json(value)) == value


def test_json_text_keeps_the_order_of_keys_and_canonical_text_does_not() -> None:
    assert to_json({"b": 1, "a": 2}) == '{"b":1,"a":2}'
    assert canonical_json({"b": 1, "a": 2}) == '{"a":2,"b":1}'
    assert digest_json({"b": 1, "a": 2}) == digest_json({"a": 2, "b": 1})


def test_a_file_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    (tmp_path / "file").write_bytes(data)
    assert digest_file(tmp_path / "file") == digest_bytes(data)
    assert len(digest_bytes(data)) == 32


@pytest.mark.parametrize("remote", [False, True])
def test_publishing_replaces_the_old_file_and_leaves_nothing_else(tmp_path: Path, remote: bool) -> None:
    root = UPath(f"memory://{uuid.uuid4()}") if remote else UPath(tmp_path / "store")
    target = root / "folder" / "file.json"
    write_file(target, b"old")
    staged = tmp_path / "staged"
    staged.write_bytes(b"new")
    publish_file(staged, target)
    assert target.read_bytes() == b"new"
    assert [path.name for path in target.parent.iterdir()] == ["file.json"]
    assert staged.read_bytes() == b"new"


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from rl_assets.base.files import staging\n"
        "with staging(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').write_bytes(b'x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    with staging(tmp_path) as mine:
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
        (left,) = set((tmp_path / ".staging").iterdir()) - {mine}
        assert (left / "half").exists()
        with staging(tmp_path) as other:
            assert set((tmp_path / ".staging").iterdir()) == {mine, other}


def test_what_was_half_copied_long_ago_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_disk(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "link", other_disk)
    old, new = tmp_path / ".file.old.tmp", tmp_path / ".file.new.tmp"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    write_file(tmp_path / "file", b"x")
    assert sorted(tmp_path.iterdir()) == [new, tmp_path / "file"]


def test_long_rows_make_small_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "GROUP_BYTES", 10_000)
    with TableWriter(tmp_path / "t.parquet", SCHEMA, group_rows=100) as writer:
        for number in range(10):
            writer.write_rows([{"n": number, "text": "x" * 4000}])
    assert [batch.num_rows for batch in writer.table.batches()] == [3, 3, 3, 1]
    assert [row["n"] for row in writer.table.head(5)] == list(range(5))
    assert writer.table.num_rows == 10


def test_an_error_while_writing_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device") as error, named_errors(tmp_path / "full"):
        Path("/dev/full").write_bytes(b"x")
    assert error.value.filename == str(tmp_path / "full")


def test_a_failed_publication_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(FileNotFoundError):
        publish_file(tmp_path / "absent", target)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_staging_folder_is_gone_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), staging(tmp_path) as folder:
        (folder / "half").write_bytes(b"x")
        raise RuntimeError
    assert not folder.exists()
    assert folder.parent.parent == tmp_path


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "t.parquet", SCHEMA) as writer:
        writer.write_rows(rows(10))
    assert list(writer.table.rows()) == rows(10)
    assert list(writer.table.rows(["n"], size=3)) == [{"n": n} for n in range(10)]
    assert (writer.table.num_rows, writer.table.schema, writer.num_rows) == (10, SCHEMA, 10)
    assert writer.table.head(2) == rows(2)


def test_an_empty_table_keeps_its_schema(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "t.parquet", SCHEMA) as writer:
        writer.write_rows([])
    assert (writer.table.num_rows, writer.table.schema, writer.table.head(3)) == (0, SCHEMA, [])


@given(pieces=st.lists(st.integers(0, 9), max_size=12))
def test_the_bytes_of_a_table_do_not_depend_on_the_pieces(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    everything = rows(sum(pieces))
    with TableWriter(folder / "whole", SCHEMA, group_rows=4) as whole:
        whole.write_rows(everything)
    with TableWriter(folder / "parts", SCHEMA, group_rows=4) as parts:
        for size in pieces:
            parts.write_rows(everything[:size])
            everything = everything[size:]
    assert parts.table.digest == whole.table.digest


def test_a_column_that_the_schema_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="extra"), TableWriter(tmp_path / "t", SCHEMA) as writer:
        writer.write_rows([{"n": 1, "extra": 2}])


def test_a_table_reads_from_any_file_system() -> None:
    remote = UPath(f"memory://{uuid.uuid4()}/t.parquet")
    with staging(remote.parent) as folder:
        with TableWriter(folder / "t.parquet", SCHEMA) as writer:
            writer.write_rows(rows(3))
        publish_file(writer.table.path, remote)
    assert list(Table(remote).rows()) == rows(3)


def test_storage_lies_in_the_project_unless_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RL_ASSETS_STORAGE", raising=False)
    assert storage_root(tmp_path) == UPath(tmp_path / "data/storage")
    monkeypatch.setenv("RL_ASSETS_STORAGE", "elsewhere")
    assert storage_root(tmp_path) == UPath(tmp_path / "elsewhere")
    monkeypatch.setenv("RL_ASSETS_STORAGE", "/mnt/store")
    assert storage_root(tmp_path) == UPath("/mnt/store")
    monkeypatch.setenv("RL_ASSETS_STORAGE", "memory://bucket/prefix")
    assert storage_root(tmp_path) == UPath("memory://bucket/prefix")
