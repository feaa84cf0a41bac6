"""What earlier releases stored is read or refused by name, and no layout changes without its version."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rl_assets.base import formats
from rl_assets.base.digests import digest_bytes
from rl_assets.base.jsontext import to_json
from rl_assets.base.manifests import read_manifest, read_record
from rl_assets.base.tables import Table
from rl_assets.dataset.records import Record
from rl_assets.errors import InputError
from rl_assets.graph.checks.record import CheckRecord
from rl_assets.media.store import MediaStore
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.manifest import ShardManifest
from rl_assets.protocol.shards import find_shard, read_shard
from rl_assets.rollout.journal import Journal
from tests.build import failure, materialize
from tests.protocol.fixtures import make

KINDS = ("shard", "manifest", "table", "journal", "record", "store")


def specimens(kind: str) -> pytest.MarkDecorator:
    """The specimens of a kind, one of every version."""
    found = sorted(make.HERE.glob(f"{kind}-*"))
    return pytest.mark.parametrize("specimen", found, ids=[path.name for path in found])


def assert_equal(found: DataProto, expected: DataProto) -> None:
    assert found.meta_info == expected.meta_info
    assert set(found.batch.keys()) == set(expected.batch.keys())
    for key in expected.batch.keys():  # noqa: SIM118
        assert found.batch[key].equal(expected.batch[key])
        assert found.batch[key].dtype == expected.batch[key].dtype
    assert set(found.non_tensor_batch) == set(expected.non_tensor_batch)
    for key, values in expected.non_tensor_batch.items():
        for one, other in zip(found.non_tensor_batch[key], values, strict=True):
            assert np.array_equal(one, other) if isinstance(other, list) else one == other, key


# --- earlier versions -----------------------------------------------------------------------------------


@specimens("shard")
def test_a_shard_of_every_version_is_what_it_was(specimen: Path) -> None:
    (folder,) = (specimen / "shards").iterdir()
    assert_equal(read_shard(specimen / "shards", folder.name), make.batch())
    found = find_shard(specimen / "shards", "train-00000-of-00001")
    assert found is not None
    assert found.path == folder.name


@specimens("shard")
def test_media_lie_where_they_lay(specimen: Path) -> None:
    assert MediaStore(specimen / "media").get(digest_bytes(make.MEDIUM)) == make.MEDIUM


@specimens("manifest")
def test_a_manifest_of_every_version_is_what_it_was(specimen: Path) -> None:
    assert read_manifest(ShardManifest, specimen / "manifest.json") == make.MANIFEST


@specimens("table")
def test_a_table_of_every_version_is_what_it_was(specimen: Path) -> None:
    assert list(Table(specimen / "table.parquet").rows()) == make.ROWS


@specimens("journal")
def test_a_journal_of_every_version_is_what_it_was(specimen: Path) -> None:
    journal = Journal(specimen)
    assert len(journal) == len(make.RESPONSES)
    assert {key: journal.get(key) for key in make.RESPONSES} == make.RESPONSES


@specimens("record")
def test_a_record_is_what_it_was_or_is_not_there(specimen: Path) -> None:
    present = specimen == make.present("record")[0]
    assert read_record(Record, specimen / "build.json") == (make.RECORD if present else None)
    assert read_record(CheckRecord, specimen / "checks.json") == (make.CHECKS if present else None)


@pytest.mark.parametrize("kind", KINDS)
def test_specimens_are_small(kind: str) -> None:
    for specimen in make.HERE.glob(f"{kind}-*"):
        size = sum(path.stat().st_size for path in specimen.rglob("*") if path.is_file())
        assert size < (131_072 if kind == "store" else 16_384), specimen


# --- no change without a version ------------------------------------------------------------------------


def layout(root: Path) -> dict[str, Any]:
    """All that a reader relies on, without digests and sizes, which a new pyarrow may change."""
    return {_name(path): _content(path) for path in sorted(root.rglob("*")) if path.is_file()}


def _name(path: Path) -> str:
    return re.sub(r"-[0-9a-f]{12}/", "-<digest>/", f"{path.parent.name}/{path.name}")


def _content(path: Path) -> Any:
    if path.suffix == ".parquet":
        return pq.read_schema(path).to_string(), pq.read_table(path).to_pydict()
    if path.suffix == ".safetensors":
        length = int.from_bytes(path.read_bytes()[:8], "little")
        return json.loads(path.read_bytes()[8 : 8 + length])
    if path.name == "meta.json":
        meta = json.loads(path.read_bytes())
        return {**meta, "files": {name: sorted(record) for name, record in meta["files"].items()}}
    return path.read_bytes()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "store"])
def test_the_present_layout_is_the_specimens(kind: str, tmp_path: Path) -> None:
    """Where this fails: raise the version in rl_assets/base/formats.py, teach the reader the old one or
    refuse it, and run `python -m tests.protocol.fixtures.make`."""
    folder, write = make.present(kind)
    assert folder.is_dir(), "run `python -m tests.protocol.fixtures.make` and commit the folder"
    (tmp_path / folder.name).mkdir()
    write(tmp_path / folder.name)
    assert layout(tmp_path / folder.name) == layout(folder)


# --- versions that are not read -------------------------------------------------------------------------


def of_version(tmp_path: Path, version: int) -> tuple[Path, str]:
    """The present shard, its meta.json saying another version, under the name that it then has."""
    shutil.copytree(make.present("shard")[0] / "shards", tmp_path / "shards")
    (shard,) = (tmp_path / "shards").iterdir()
    meta = json.loads((shard / "meta.json").read_bytes())
    text = json.dumps({**meta, "format": version}).encode()
    (shard / "meta.json").write_bytes(text)
    name = f"train-00000-of-00001-{digest_bytes(text)[:12]}"
    shard.rename(tmp_path / "shards" / name)
    return tmp_path / "shards", name


def test_a_newer_shard_is_refused_and_not_made_again(tmp_path: Path) -> None:
    root, path = of_version(tmp_path, formats.SHARD + 1)
    with pytest.raises(InputError, match=rf"version {formats.SHARD + 1}, .*update this one"):
        read_shard(root, path)
    with pytest.raises(InputError, match="update this one"):
        find_shard(root, "train-00000-of-00001")


def test_an_older_shard_is_refused_with_the_remedy_and_made_again(tmp_path: Path) -> None:
    root, path = of_version(tmp_path, 0)
    with pytest.raises(InputError, match=r"layout 0, .*Materialise the asset"):
        read_shard(root, path)
    assert find_shard(root, "train-00000-of-00001") is None


def changed(path: Path, target: Path, **changes: Any) -> Path:
    """A JSON file with other values; a key whose value is None is left out."""
    content = {**json.loads(path.read_bytes()), **changes}
    target.write_text(to_json({key: value for key, value in content.items() if value is not None}))
    return target


def test_a_newer_manifest_is_refused(tmp_path: Path) -> None:
    specimen = make.present("manifest")[0] / "manifest.json"
    path = changed(specimen, tmp_path / "manifest.json", format=formats.MANIFEST + 1, shards="elsewhere")
    with pytest.raises(InputError, match=r"manifest\.json: field `format`: .*update this one"):
        read_manifest(ShardManifest, path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": "x"}', '{"format": 1}', '{"format": null}']
)
def test_what_is_no_manifest_any_more_is_refused_with_the_remedy(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(formats.UnreadableError, match=r"manifest\.json: .*Materialise the asset again"):
        read_manifest(ShardManifest, tmp_path / "manifest.json")


def test_a_newer_table_is_refused(tmp_path: Path) -> None:
    table = pq.read_table(make.present("table")[0] / "table.parquet")
    newer = table.replace_schema_metadata({formats.TABLE_KEY: str(formats.TABLE + 1).encode()})
    pq.write_table(newer, tmp_path / "table.parquet")
    with pytest.raises(InputError, match=r"table\.parquet: field `format`: .*update this one"):
        Table(tmp_path / "table.parquet").read()


def journal_of(folder: Path, **changes: Any) -> Path:
    """A journal of one line of another version."""
    entry = json.loads((make.present("journal")[0] / "responses.jsonl").read_text().splitlines()[0][9:])
    text = to_json({key: value for key, value in {**entry, **changes}.items() if value is not None})
    (folder / "responses.jsonl").write_text(f"{digest_bytes(text.encode())[:8]} {text}\n")
    return folder


def test_a_newer_journal_is_refused_and_not_generated_again(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"responses\.jsonl: field `format`: .*update this one"):
        Journal(journal_of(tmp_path, format=formats.JOURNAL + 1))


@pytest.mark.parametrize("version", [formats.RECORD - 1, formats.RECORD + 1])
def test_a_record_of_another_version_is_not_there(version: int, tmp_path: Path) -> None:
    path = changed(make.present("record")[0] / "build.json", tmp_path / "build.json", format=version)
    assert read_record(Record, path) is None


def test_what_was_written_before_there_were_versions_is_read(tmp_path: Path) -> None:
    path = changed(make.present("manifest")[0] / "manifest.json", tmp_path / "manifest.json", format=None)
    assert read_manifest(ShardManifest, path) == make.MANIFEST
    bare = pq.read_table(make.present("table")[0] / "table.parquet").cast(make.SCHEMA)
    pq.write_table(bare, tmp_path / "table.parquet")
    assert pq.read_schema(tmp_path / "table.parquet").metadata is None
    assert list(Table(tmp_path / "table.parquet").rows()) == make.ROWS
    journal = Journal(journal_of(tmp_path, format=None))
    assert journal.get("0" * 32) == make.RESPONSES["0" * 32]


# --- a whole store --------------------------------------------------------------------------------------

UP_TO_ROLLOUTS = [
    *("policy", "tokenizer", "raw_files", "field_contract", "rejected_rows"),
    *("length_filtered", "overlong_rows", "unrenderable_rows", "proto_shards", "rollouts"),
]


def as_it_was(store: Path) -> None:
    """Leave a store as it is."""


def of_unknown_layouts(store: Path) -> None:
    """Let no shard be of a layout that is read, and no manifest hold anything that is known."""
    for meta in store.rglob("meta.json"):
        changed(meta, meta, format=0)
    for manifest in store.glob("*.json"):
        manifest.write_text('{"format": 1, "all": "other"}')


@specimens("store")
@pytest.mark.parametrize("change", [as_it_was, of_unknown_layouts])
def test_a_store_of_every_version_is_built_on_and_nothing_is_generated_again(
    specimen: Path, change: Callable[[Path], None], tmp_path: Path
) -> None:
    dataset = make.dataset(tmp_path)
    shutil.copytree(specimen, Path(str(dataset.storage)).parent)
    change(Path(str(dataset.storage)))
    result = materialize(dataset, *UP_TO_ROLLOUTS)
    assert result.success
    (last,) = result.filter_events(lambda event: event.asset_key == dataset.key("rollouts"))
    metadata = last.step_materialization_data.materialization.metadata
    assert metadata["dagster/row_count"].value == 5
    assert metadata["generated_responses"].value == 0


def test_a_store_of_a_newer_release_stops_the_run_and_says_why(tmp_path: Path) -> None:
    dataset = make.dataset(tmp_path)
    shutil.copytree(make.present("store")[0], Path(str(dataset.storage)).parent)
    table = dataset.table("field_contract")
    newer = table.read().replace_schema_metadata({formats.TABLE_KEY: b"99"})
    pq.write_table(newer, str(table.path))
    result = materialize(dataset, "length_filtered", "overlong_rows", "unrenderable_rows")
    assert not result.success
    assert "version 99" in failure(result)
    assert "update this one" in failure(result)
