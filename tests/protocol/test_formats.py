"""What earlier releases stored is read or refused by name, and no layout changes without its version."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rl_assets import formats
from rl_assets.errors import InputError
from rl_assets.protocol import DataProto, find_shard, read_shard
from rl_assets.protocol.manifest import ShardManifest
from rl_assets.store import Table, digest_bytes, read_manifest
from tests.protocol.fixtures.make import HERE, PRESENT, ROWS, SCHEMA, batch, make

SPECIMENS = sorted(path for path in HERE.glob("shard-*") if path.is_dir())
EVERY = pytest.mark.parametrize("specimen", SPECIMENS, ids=[path.name for path in SPECIMENS])


def manifest(root: Path) -> ShardManifest:
    return read_manifest(ShardManifest, root / "manifest.json")


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


@EVERY
def test_a_shard_of_every_version_that_is_read_is_what_it_was(specimen: Path) -> None:
    (ref,) = manifest(specimen).shards
    assert_equal(read_shard(specimen / "shards", ref), batch())
    assert find_shard(specimen / "shards", ref.name) == ref


@EVERY
def test_a_table_of_every_version_is_what_it_was(specimen: Path) -> None:
    assert list(Table(specimen / "table.parquet").rows()) == ROWS


@EVERY
def test_specimens_are_small(specimen: Path) -> None:
    assert sum(path.stat().st_size for path in specimen.rglob("*") if path.is_file()) < 16_384


# --- no change without a version ------------------------------------------------------------------------


def layout(root: Path) -> dict[str, Any]:
    """All that a reader relies on, without digests and sizes, which a new pyarrow may change."""
    (shard,) = (root / "shards").iterdir()
    meta = json.loads((shard / "meta.json").read_bytes())
    listed = json.loads((root / "manifest.json").read_bytes())
    length = int.from_bytes((shard / "tensors.safetensors").read_bytes()[:8], "little")
    return {
        "files of a shard": sorted(path.name for path in shard.iterdir()),
        "name of a shard": re.sub(r"-[0-9a-f]{12}$", "-<digest>", shard.name),
        "meta.json": {**meta, "files": {name: sorted(record) for name, record in meta["files"].items()}},
        "tensors.safetensors": json.loads((shard / "tensors.safetensors").read_bytes()[8 : 8 + length]),
        "rows.parquet": pq.read_table(shard / "rows.parquet").schema.to_string(),
        "values of rows.parquet": pq.read_table(shard / "rows.parquet").to_pydict(),
        "manifest": {**listed, "shards": [sorted(ref) for ref in listed["shards"]]},
        "table": pq.read_schema(root / "table.parquet").to_string(),
    }


def test_the_present_layout_is_the_specimens(tmp_path: Path) -> None:
    """Where this fails: raise the version in rl_assets/formats.py, teach the readers the old one or refuse
    it, and run `python -m tests.protocol.fixtures.make`."""
    assert PRESENT.is_dir(), "run `python -m tests.protocol.fixtures.make` and commit the folder"
    make(tmp_path)
    assert layout(tmp_path) == layout(PRESENT)


# --- versions that are not read -------------------------------------------------------------------------


def of_version(tmp_path: Path, version: int) -> tuple[Path, str]:
    """The present shard, its meta.json saying another version, under the name that it then has."""
    shutil.copytree(PRESENT / "shards", tmp_path / "shards")
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


def test_a_newer_manifest_is_refused(tmp_path: Path) -> None:
    content = json.loads((PRESENT / "manifest.json").read_bytes())
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**content, "format": formats.MANIFEST + 1}))
    with pytest.raises(InputError, match=r"manifest\.json: field `format`: .*update this one"):
        read_manifest(ShardManifest, path)


def test_a_newer_table_is_refused(tmp_path: Path) -> None:
    table = pq.read_table(PRESENT / "table.parquet")
    newer = table.replace_schema_metadata({formats.TABLE_KEY: str(formats.TABLE + 1).encode()})
    pq.write_table(newer, tmp_path / "table.parquet")
    with pytest.raises(InputError, match=r"table\.parquet: field `format`: .*update this one"):
        Table(tmp_path / "table.parquet").read()


def test_manifests_and_tables_of_before_versions_are_read(tmp_path: Path) -> None:
    content = json.loads((PRESENT / "manifest.json").read_bytes())
    del content["format"]
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    assert manifest(tmp_path) == manifest(PRESENT)
    pq.write_table(pq.read_table(PRESENT / "table.parquet").cast(SCHEMA), tmp_path / "table.parquet")
    assert pq.read_schema(tmp_path / "table.parquet").metadata is None
    assert list(Table(tmp_path / "table.parquet").rows()) == ROWS
