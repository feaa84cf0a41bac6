"""Media are stored once, by the digest of their bytes, and what is read is what was stored."""

from pathlib import Path

import pytest
from upath import UPath

from rl_assets.errors import InputError
from rl_assets.media.store import MediaStore
from rl_assets.protocol.collate import collate_fn
from rl_assets.protocol.dataproto import DataProto
from rl_assets.protocol.item import to_item
from rl_assets.protocol.shards import write_shard


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MediaStore:
    return MediaStore(tmp_path if request.param == "local" else UPath(f"memory://media/{tmp_path.name}"))


def files(store: MediaStore) -> list:
    return [path for path in store.root.rglob("*") if path.is_file()]


def test_equal_bytes_are_stored_once(store: MediaStore) -> None:
    digests = {store.put(b"one"), store.put(b"one"), store.put(b"two")}
    assert len(digests) == len(files(store)) == 2
    assert {store.get(digest) for digest in digests} == {b"one", b"two"}
    assert all(digest in store for digest in digests)
    with store.open(store.put(b"one")) as stream:
        assert stream.read(2) == b"on"


def test_what_is_missing_or_changed_is_refused_by_name(store: MediaStore) -> None:
    digest = store.put(b"one")
    absent = "0" * 32
    assert absent not in store
    for use in (store.get, store.open):
        with pytest.raises(InputError, match=f"{absent}: found nothing, expected the medium"):
            use(absent)
    files(store)[0].write_bytes(b"six")
    with pytest.raises(InputError, match=f"{digest}: found other bytes than were stored"):
        store.get(digest)


def test_a_cut_file_is_stored_again(store: MediaStore) -> None:
    digest = store.put(b"one")
    files(store)[0].write_bytes(b"o")
    assert store.put(b"one") == digest
    assert store.get(digest) == b"one"


def test_repeating_a_prompt_repeats_no_image(tmp_path: Path) -> None:
    picture = bytes(range(256)) * 400
    row = {
        "uid": "0" * 32,
        "prompt": [{"role": "user", "content": "<image>"}],
        "images": [{"bytes": picture}],
        "reward_model": {"ground_truth": 1},
    }
    media = MediaStore(tmp_path / "media")
    data = DataProto.from_single_dict(collate_fn([to_item(row, media=media)])).repeat(16)
    ref = write_shard(tmp_path, "s", data)
    assert ref.rows == 16
    assert ref.bytes < len(picture) / 5
    assert sum(path.stat().st_size for path in files(media)) == len(picture)
