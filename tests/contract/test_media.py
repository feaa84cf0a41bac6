"""Media: where they may lie, what they may be, and how they are counted."""

import itertools
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_assets.base.digests import digest_bytes
from tests.contract.rows import accepted, codes, data_uri, errors, judge, png, row, run, said, write_jsonl

ONE = "<image> What is this?"


def header_only(width: int, height: int) -> bytes:
    """A PNG that says it is of this size and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


def test_paths_are_relative_to_the_folder_of_the_data_file(tmp_path: Path) -> None:
    (tmp_path / "set/pictures").mkdir(parents=True)
    (tmp_path / "set/pictures/a b.png").write_bytes(png())
    images = [
        "pictures/a b.png",
        f"file://{tmp_path}/set/pictures/a%20b.png",
        str(tmp_path / "set/pictures/a b.png"),
    ]
    rows = [said(ONE, images=[image], extra_info={"index": n}) for n, image in enumerate(images)]
    write_jsonl(tmp_path / "set/train.jsonl", rows)
    result = run(tmp_path, "set/train.jsonl")
    assert accepted(result) == rows
    assert {medium["digest"] for one in result.accepted.rows() for medium in one["images"]} == {
        digest_bytes(png())
    }


def test_media_root_moves_the_folder(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "media/a.png").write_bytes(png())
    assert errors(judge(tmp_path, said(ONE, images=["a.png"]))) == [("media.file_missing", "images[0]")]
    assert judge(tmp_path, said(ONE, images=["a.png"]), media_root="media").accepted_rows == 1


@pytest.mark.parametrize(
    "way", ["../secret.png", "/etc/passwd", "link.png", "linked/secret.png", "file:///etc/passwd"]
)
def test_no_way_leads_out_of_the_folder(tmp_path: Path, way: str) -> None:
    (tmp_path / "secret.png").write_bytes(png())
    folder = tmp_path / "set"
    folder.mkdir()
    os.symlink(tmp_path / "secret.png", folder / "link.png")
    os.symlink(tmp_path, folder / "linked")
    assert errors(judge(folder, said(ONE, images=[way]))) == [("media.outside_folder", "images[0]")]


def test_a_link_inside_the_folder_is_fine(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    os.symlink(tmp_path / "a.png", tmp_path / "b.png")
    assert judge(tmp_path, said(ONE, images=["b.png"])).accepted_rows == 1


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ("gone.png", "media.file_missing"),
        (".", "media.file_missing"),
        ("", "media.bad_item"),
        (None, "media.bad_item"),
        (3, "media.bad_item"),
        ({"height": 3}, "media.bad_item"),
        ("a\nb", "media.bad_item"),
        ("a\0b", "media.bad_item"),
        ("iVBORw0KGgo" * 1000, "media.bad_item"),
        ("http://[::1/a.png", "media.bad_item"),
        ("x" * 300, "media.unreadable"),
        ("data:image/png,abc", "media.bad_item"),
        ("data:image/png;base64,é", "media.unreadable"),
        ("data:image/png;base64,AAAA", "media.unreadable"),
        ("https://example.org/a.png", "media.remote"),
        ("s3://bucket/a.png", "media.remote"),
    ],
)
def test_items_that_cannot_be_opened(tmp_path: Path, item: object, code: str) -> None:
    assert errors(judge(tmp_path, said(ONE, images=[item]))) == [(code, "images[0]")]


def test_bytes_and_data_uris_are_decoded_and_digested(tmp_path: Path) -> None:
    rows = [said(ONE, images=[{"bytes": png(), "path": "was/here.png"}], extra_info={"index": 1})]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    result = run(tmp_path, "train.parquet")
    assert accepted(result) == rows
    assert result.accepted.head(1)[0]["images"] == [
        {"item": '{"bytes":null,"path":"was/here.png"}', "bytes": png(), "digest": digest_bytes(png())}
    ]
    (medium,) = judge(tmp_path, said(ONE, images=[data_uri(png())])).accepted.head(1)[0]["images"]
    assert (medium["bytes"], medium["digest"]) == (None, digest_bytes(png()))


def test_hosts_that_are_allowed_are_left_for_later(tmp_path: Path) -> None:
    good = said(ONE, images=["https://example.org/a.png"])
    result = judge(tmp_path, good, allowed_hosts=("example.org",))
    assert accepted(result) == [good]
    assert result.accepted.head(1)[0]["images"][0]["digest"] is None


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (png(300, 300)[:-2000], "media.truncated"),
        (b"", "media.unreadable"),
        (b"GIF89a", "media.unreadable"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "media.unreadable"),
        (header_only(0, 10), "media.unreadable"),
        (header_only(100_000, 100_000), "media.image_size"),
        (header_only(12_000, 12_000), "media.image_size"),
        (png(500, 2), "media.image_size"),
    ],
)
def test_images_that_are_damaged_or_absurd(tmp_path: Path, data: bytes, code: str) -> None:
    (tmp_path / "a.png").write_bytes(data)
    assert errors(judge(tmp_path, said(ONE, images=["a.png"]))) == [(code, "images[0]")]


def test_the_largest_image_is_an_option(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(40, 40))
    one = said(ONE, images=["a.png"])
    assert judge(tmp_path, one, max_image_pixels=1600).accepted_rows == 1
    assert errors(judge(tmp_path, one, max_image_pixels=1599)) == [("media.image_size", "images[0]")]


def test_videos_and_audio_must_exist_and_hold_something(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"frames")
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "1.png").write_bytes(png())
    good = said(
        "<video><audio><video> What?",
        videos=[{"video": "a.mp4", "fps": 2}, ["1.png", "1.png"]],
        audios=["a.mp4"],
    )
    result = judge(
        tmp_path,
        good,
        said("<video> ?", videos=["empty.mp4"]),
        said("<audio> ?", audios=[{"audio": "gone.wav"}]),
        said("<video> ?", videos=[["1.png", "gone.png"]]),
    )
    assert accepted(result) == [good]
    assert errors(result) == [
        ("media.unreadable", "videos[0]"),
        ("media.file_missing", "audios[0]"),
        ("media.file_missing", "videos[0]"),
    ]


@pytest.mark.parametrize(
    ("text", "images", "code"),
    [
        ("<image><image>", 1, "media.count_mismatch"),
        ("<image>", 2, "media.count_mismatch"),
        ("no placeholder", 1, "media.orphan_media"),
        ("<image>", 0, "media.orphan_placeholder"),
    ],
)
def test_placeholders_and_media_are_counted(tmp_path: Path, text: str, images: int, code: str) -> None:
    (tmp_path / "a.png").write_bytes(png())
    result = judge(tmp_path, said(f"{text} ?", images=["a.png"] * images))
    assert errors(result) == [(code, "images")]


def test_placeholders_are_counted_over_all_messages(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    turns = [
        {"role": "user", "content": "<image> What?"},
        {"role": "assistant", "content": "A disc."},
        {"role": "user", "content": "And <image>?"},
    ]
    assert judge(tmp_path, row(prompt=turns, images=["a.png", "a.png"])).accepted_rows == 1


def test_a_modality_is_switched_off_by_an_empty_key(tmp_path: Path) -> None:
    result = judge(tmp_path, said("What?", images=["gone.png"]), image_key="")
    assert errors(result) == [("row.reserved_column", "images")]


def test_renamed_media_columns_come_out_under_the_standard_name(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    result = judge(tmp_path, said(ONE, pictures=["a.png"]), image_key="pictures")
    assert accepted(result) == [said(ONE, images=["a.png"])]


def test_tokens_of_the_users_tokenizer_are_refused_in_text(tmp_path: Path) -> None:
    tokens = ("«img»",)
    assert codes(judge(tmp_path, said("a «img» b"), special_tokens=tokens)) == {"media.vision_token"}
    assert codes(judge(tmp_path, said("a «img b"), special_tokens=tokens)) == set()


def test_a_verdict_does_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    """A file that is named as an image is still a video to the row that names it as one."""
    (tmp_path / "v.mp4").write_bytes(b"frames")
    (tmp_path / "empty.png").write_bytes(b"")
    rows = [
        said(ONE, images=["v.mp4"]),
        said("<video> What?", videos=["v.mp4"]),
        said("<audio> What?", audios=["v.mp4"]),
    ]
    for order in itertools.permutations(rows):
        result = judge(tmp_path, *order)
        assert errors(result) == [("media.unreadable", "images[0]")]
        assert result.accepted_rows == 2


SETTINGS = {"max_pixels": 9000}


@pytest.mark.parametrize(
    ("item", "plain"),
    [
        ({"path": "a.png"}, {"image": "a.png"}),
        ({"path": "a.png", **SETTINGS}, {"image": "a.png", **SETTINGS}),
        ({"bytes": None, "path": "a.png"}, {"image": "a.png"}),
        ({"url": "a.png"}, {"image": "a.png"}),
        ({"image_url": "a.png"}, {"image": "a.png"}),
        ({"image_url": {"url": "a.png", **SETTINGS}}, {"image": "a.png", **SETTINGS}),
        ({"image": {"path": "a.png"}, **SETTINGS}, {"image": "a.png", **SETTINGS}),
        ({"path": "a.png", "url": "https://example.org"}, {"image": "a.png", "url": "https://example.org"}),
        ({"image": "a.png", **SETTINGS}, {"image": "a.png", **SETTINGS}),
        ("a.png", "a.png"),
        ("file://a.png", "file://a.png"),
    ],
)
def test_an_item_comes_out_in_the_form_that_verl_opens(tmp_path: Path, item: Any, plain: Any) -> None:
    (tmp_path / "a.png").write_bytes(png())
    result = judge(tmp_path, said(ONE, images=[item]))
    assert accepted(result) == [said(ONE, images=[plain])]
    assert result.repaired["media_renamed"] == (item != plain)


def test_parts_clips_and_frames_come_out_in_that_form_too(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "v.mp4").write_bytes(b"frames")
    given = said("<video><video> What?", videos=[{"path": "v.mp4", "fps": 2}, [{"path": "a.png"}, "a.png"]])
    plain = said("<video><video> What?", videos=[{"video": "v.mp4", "fps": 2}, ["a.png", "a.png"]])
    text = {"type": "text", "text": "What?"}
    part = said([{"type": "image", "path": "a.png", **SETTINGS}, text])
    result = judge(tmp_path, given, part)
    assert accepted(result) == [plain, said([{"type": "image", "image": "a.png", **SETTINGS}, text])]
    assert (result.repaired["media_renamed"], result.repaired["parts_renamed"]) == (1, 1)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'<?xml version="1.0"?><svg width="9"></svg>', "found an SVG drawing, expected PNG"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "found a HEIC image"),
        (b"\0\0\0\x20ftypisom\0\0\2\0", "found an MP4 video"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "found a JPEG 2000 image"),
        (b"\0\0\1\0\1\0\x10\x10", "found an icon (ICO)"),
        (b"%PDF-1.7", "found a PDF file"),
        (b"<!DOCTYPE html><title>404</title>", "found a page of HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "found a Git LFS pointer"),
        (b"anything else", "found 13 bytes that are no image"),
    ],
)
def test_what_is_no_image_that_is_read_is_named(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "a.png").write_bytes(data)
    result = judge(tmp_path, said(ONE, images=["a.png"]))
    assert errors(result) == [("media.unreadable", "images[0]")]
    assert words in next(iter(result.rejected.rows()))["message"]


def test_a_part_whose_medium_is_under_another_key_is_named_with_that_key(tmp_path: Path) -> None:
    def asked(*parts: dict[str, Any], **columns: Any) -> dict[str, Any]:
        return row(prompt=[{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}], **columns)

    for number, (kind, part) in enumerate(
        [
            ("image", {"type": "image", "file": "a.png"}),
            ("image", {"type": "image_url", "source": {"data": "AAAA"}, "detail": "low"}),
            ("video", {"type": "video", "frames": ["a.png"]}),
            ("audio", {"type": "input_audio", "data": "AAAA", "max": 3}),
        ]
    ):
        (folder := tmp_path / str(number)).mkdir()
        result = judge(folder, asked(part))
        assert errors(result) == [("media.bad_item", "prompt[0].content[0]")]
        keys = ", ".join(f'"{key}"' for key in part if key != "type")
        expected = f"found an object with {keys}, expected `{kind}` with"
        assert expected in next(iter(result.rejected.rows()))["message"]
    (tmp_path / "a.png").write_bytes(png())
    known = asked({"type": "image", "id": "first"}, images=["a.png"])
    assert errors(judge(tmp_path, known)) == []
    counted = asked({"type": "image", "max_pixels": 3136})
    (folder := tmp_path / "counted").mkdir()
    assert errors(judge(folder, counted)) == [("media.count_mismatch", "images")]


def test_an_object_without_a_medium_says_what_it_has(tmp_path: Path) -> None:
    result = judge(tmp_path, said(ONE, images=[{"file": "a.png"}]))
    assert errors(result) == [("media.bad_item", "images[0]")]
    assert 'found an object with "file"' in next(iter(result.rejected.rows()))["message"]
