"""The shard store on a real S3 server (moto, on loopback): meta.json, uploaded last, commits a shard."""

from collections.abc import Iterator

import pytest
import s3fs
from moto.server import ThreadedMotoServer
from upath import UPath

from rl_assets.errors import InputError
from rl_assets.media.store import MediaStore
from rl_assets.protocol.shards import META, find_shard, read_shard, write_shard
from tests.protocol.batches import rollout_batch
from tests.protocol.test_shards import same


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def root(endpoint: str, request: pytest.FixtureRequest) -> UPath:
    bucket = request.node.name.replace("_", "-")[:60]
    options = {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": endpoint}}
    s3fs.S3FileSystem(**options).mkdir(bucket)
    return UPath(f"s3://{bucket}/store", **options)


def test_a_batch_comes_back(root: UPath) -> None:
    data = rollout_batch(5)
    assert find_shard(root, "train") is None
    ref = write_shard(root, "train", data)
    assert sorted(path.name for path in (root / ref.path).iterdir()) == [
        "meta.json",
        "rows.parquet",
        "tensors.safetensors",
    ]
    assert same(read_shard(root, ref), data)
    assert same(
        read_shard(root, ref, columns=["responses", "uid"], rows=[3]),
        data.select(["responses"], ["uid"])[3:4],
    )
    assert find_shard(root, "train") == ref == write_shard(root, "train", data)


def test_meta_json_is_the_last_upload_and_commits(root: UPath, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    uploaded = []
    original = type(root).write_bytes

    def write(path: UPath, content: bytes) -> int:
        if path.name == META:
            raise Killed
        uploaded.append(path.name)
        return original(path, content)

    monkeypatch.setattr(type(root), "write_bytes", write)
    with pytest.raises(Killed):
        write_shard(root, "train", rollout_batch(5))
    assert uploaded == ["tensors.safetensors", "rows.parquet"]
    assert find_shard(root, "train") is None
    monkeypatch.undo()
    ref = write_shard(root, "train", rollout_batch(5))
    assert same(read_shard(root, ref), rollout_batch(5))


def test_damage_is_named(root: UPath) -> None:
    ref = write_shard(root, "train", rollout_batch(5))
    path = root / ref.path / "rows.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=ref.path):
        read_shard(root, ref)
    path.unlink()
    with pytest.raises(InputError, match=r"found no rows\.parquet"):
        read_shard(root, ref)


def test_media(root: UPath) -> None:
    media = MediaStore(root / "media")
    digest = media.put(b"a picture")
    assert digest in media
    assert media.get(digest) == b"a picture"
