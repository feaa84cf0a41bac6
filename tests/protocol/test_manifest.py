"""Where a row's shard is, how many shards there are, and what a manifest says."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_assets.base.digests import digest_bytes
from rl_assets.errors import InputError
from rl_assets.protocol.manifest import ShardManifest, ShardRef, shard_count, shard_of


def ref(name: str = "a", digest: str = "0" * 32, path: str = "a-0") -> ShardRef:
    return ShardRef(name=name, path=path, digest=digest, rows=3, bytes=10)


def uids(count: int) -> list[str]:
    return [digest_bytes(str(index).encode()) for index in range(count)]


class TestManifest:
    def test_sums(self) -> None:
        manifest = ShardManifest(shards=[ref(), ref("b")], stamps={"render": "x"})
        assert (manifest.rows, manifest.bytes) == (6, 20)
        assert ShardManifest.model_validate_json(manifest.model_dump_json()) == manifest

    def test_its_digest_is_of_content_and_stamps_not_of_places(self) -> None:
        one = ShardManifest(shards=[ref()])
        assert one.digest == ShardManifest(shards=[ref(path="elsewhere")]).digest
        others = [
            ShardManifest(shards=[]),
            ShardManifest(shards=[ref(digest="1" * 32)]),
            ShardManifest(shards=[ref(name="b")]),
            ShardManifest(shards=[ref()], stamps={"a": "b"}),
        ]
        assert len({manifest.digest for manifest in [one, *others]}) == 5

    def test_it_is_light_to_import(self) -> None:
        code = "import sys, rl_assets.protocol.manifest; sys.exit('torch' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)


class TestShardOf:
    def test_uid_modulo_count(self) -> None:
        assert [shard_of(f"{number:032x}", 7) for number in range(20)] == [number % 7 for number in range(20)]
        assert shard_of("FF", 7) == shard_of("ff", 7) == 255 % 7

    @given(st.text(), st.integers(1, 1000))
    def test_any_text_has_a_shard(self, uid: str, count: int) -> None:
        assert 0 <= shard_of(uid, count) < count
        assert shard_of(uid, count) == shard_of(uid, count)

    def test_names_of_the_users_own_spread(self) -> None:
        found = {shard_of(f"train/{number}", 8) for number in range(100)}
        assert found == set(range(8))


class TestShardCount:
    @given(
        rows=st.integers(0, 300),
        max_rows=st.integers(8, 400),
        size=st.integers(1, 9),
        budget=st.integers(50, 3000),
    )
    def test_no_shard_exceeds_its_budget(self, rows: int, max_rows: int, size: int, budget: int) -> None:
        names = uids(rows)
        count = shard_count(names, [size] * rows, max_rows=max_rows, max_bytes=budget)
        assert count & (count - 1) == 0
        loads = [0] * count
        for name in names:
            loads[shard_of(name, count)] += 1
        assert max(loads) <= max_rows
        assert max(loads) * size <= budget
        if count > 1:
            half = [loads[index] + loads[index + count // 2] for index in range(count // 2)]
            enough = -(-rows // max_rows), -(-rows * size // budget)
            assert max(half) > max_rows or max(half) * size > budget or count // 2 < max(enough)

    def test_a_uid_too_heavy_for_any_shard(self) -> None:
        with pytest.raises(InputError, match="2 rows of 20 bytes under the uid aa"):
            shard_count(["aa", "aa"], [10, 10], max_rows=1, max_bytes=100)
        with pytest.raises(InputError, match="1 rows of 200 bytes under the uid aa"):
            shard_count(["aa"], [200], max_rows=1, max_bytes=100)

    def test_uids_that_do_not_spread(self) -> None:
        names = [f"{number:x}00000000" for number in range(100)]
        with pytest.raises(InputError, match="100 uids that fill a few of"):
            shard_count(names, [1] * 100, max_rows=10, max_bytes=100)
