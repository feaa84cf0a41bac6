"""A video that breaks off is known at the contract, wherever it is cut."""

import base64
import io
from pathlib import Path

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_assets.media.boxes import cut_short
from tests.contract.rows import accepted, errors, judge, said
from tests.prompts import media


def fragmented(path: Path) -> Path:
    """The video of `media.video` in fragments, as cameras that stream write them."""
    options = {"movflags": "frag_keyframe+empty_moov"}
    with (
        av.open(str(media.video(path.with_name("whole.mp4")))) as given,
        av.open(str(path), "w", options=options) as made,
    ):
        stream = made.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                made.mux(packet)
    return path


def said_of(data: bytes) -> str | None:
    return cut_short(io.BytesIO(data), len(data))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return media.video(tmp_path_factory.mktemp("whole") / "v.mp4").read_bytes()


@given(data=st.data())
def test_a_cut_is_seen_wherever_it_is(whole: bytes, data: st.DataObject) -> None:
    assert said_of(whole) is None
    assert said_of(whole[: data.draw(st.integers(8, len(whole) - 1))]) is not None


@given(st.binary(max_size=64), st.booleans())
def test_bytes_of_any_kind_end(data: bytes, starts_right: bool) -> None:
    said_of(b"\0\0\0\x10ftypisom\0\0\0\0" * starts_right + data)


def test_what_follows_the_last_box_is_nobodys_business(whole: bytes) -> None:
    assert said_of(whole + b"\0" * 100) is None
    assert said_of(whole + b"\xff\xff\xff\xffTAG!" + b"x" * 9) is None


def test_videos_in_fragments_and_of_other_formats_are_whole(tmp_path: Path) -> None:
    data = fragmented(tmp_path / "v.mp4").read_bytes()
    assert said_of(data) is None
    assert said_of(data[: data.rindex(b"mdat") + 20]) is not None
    assert said_of(media.video(tmp_path / "v.avi").read_bytes()) is None


def test_the_row_of_a_cut_video_is_set_aside_by_name(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "cut.mp4").write_bytes(whole[:-40])
    (tmp_path / "whole.mp4").write_bytes(whole)
    good = said("<video> What?", videos=["whole.mp4"])
    inside = "data:video/mp4;base64," + base64.b64encode(whole[:-40]).decode()
    cut = [said("<video> What is it?", videos=[video]) for video in ("cut.mp4", inside)]
    result = judge(tmp_path, good, *cut)
    assert accepted(result) == [good]
    assert errors(result) == [("media.truncated", "videos[0]")] * 2
    for row in result.rejected.rows():
        assert "box ends at byte" in row["message"]
        assert str(tmp_path) not in row["message"]
