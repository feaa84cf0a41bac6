"""Media are found where the row says, and nowhere else, and decoded as a processor takes them."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rl_assets.media.decode import image_size, looks_other_elsewhere, read_audio, read_image, read_video
from rl_assets.media.files import IMAGE_FORMATS, image_faults
from rl_assets.media.source import MediaSource, has_media, media_digest
from rl_assets.media.store import MediaStore
from tests.prompts import media


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data/img").mkdir(parents=True)
    media.picture().save(tmp_path / "data/img/a b.png")
    media.picture(9, 9).save(tmp_path / "outside.png")
    return tmp_path


def opened(root: Path, part: dict[str, Any], **options: Any) -> Any:
    return MediaSource(root, **options).open({"type": "image", **part}, "data/train.jsonl")


def test_a_medium_is_found_in_each_of_its_forms(folder: Path) -> None:
    data = media.png()
    store = MediaStore(folder / "store")
    forms = [
        {"image": "img/a b.png"},
        {"path": "img/a b.png"},
        {"image": f"file://{folder}/data/img/a%20b.png"},
        {"bytes": data, "path": None},
        {"image": {"bytes": data}},
        {"image_url": {"url": "data:image/png;base64," + base64.b64encode(data).decode()}},
        {"bytes": {"digest": store.put(data)}, "path": None},
    ]
    for form in forms:
        found = read_image(opened(folder, form, store=store))
        assert np.array_equal(np.asarray(found), np.asarray(media.picture())), form
    by_root = opened(folder, {"image": "a b.png"}, media_root="data/img")
    assert media_digest(by_root) == media_digest(io.BytesIO(by_root.read_bytes()))


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"image": "../outside.png"}, "leads out of the media folder"),
        ({"image": "/etc/hostname"}, "leads out of the media folder"),
        ({"image": "img/none.png"}, "no file img/none.png"),
        ({"image": "https://example.org/a.png"}, "under https, and none is fetched"),
        ({}, "nothing that can be opened"),
        ({"image": 7}, "nothing that can be opened"),
    ],
)
def test_nothing_else_is_opened(folder: Path, part: dict[str, Any], reason: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=reason):
        opened(folder, part)


def test_a_link_out_of_the_folder_is_not_followed(folder: Path) -> None:
    (folder / "data/link.png").symlink_to(folder / "outside.png")
    with pytest.raises(ValueError, match="leads out"):
        opened(folder, {"image": "link.png"})


def test_media_are_seen_in_columns_and_in_parts() -> None:
    part = {"type": "image", "image": "a.png"}
    assert has_media(media.row("<image>", images=["a.png"]))
    assert has_media(media.row([part]))
    assert not has_media(media.row([{"type": "text", "text": "image"}], images=[]))


def test_alpha_lies_over_white_and_other_modes_become_rgb() -> None:
    clear = io.BytesIO()
    Image.new("RGBA", (4, 4), (10, 20, 30, 0)).save(clear, "PNG")
    assert read_image(clear).getpixel((0, 0)) == (255, 255, 255)
    for mode in ("L", "P", "1"):
        sink = io.BytesIO()
        media.picture(mode=mode).save(sink, "TIFF")
        assert read_image(sink).mode == "RGB"


@pytest.mark.parametrize("form", IMAGE_FORMATS)
def test_every_format_that_the_contract_takes_is_read(form: str) -> None:
    sink = io.BytesIO()
    media.picture().save(sink, form)
    assert image_faults(sink.getvalue(), 10_000) == (
        [] if form != "GIF" else [("media.image_mode", "found mode P")]
    )
    assert (image_size(sink), read_image(sink).size) == ((50, 30), (30, 50))


def test_a_jpeg_of_several_pictures_is_its_first() -> None:
    sink = io.BytesIO()
    media.picture().save(sink, "MPO", save_all=True, append_images=[media.picture(8, 8)])
    assert read_image(sink).size == (30, 50)


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF", "AVIF"])
def test_an_image_is_turned_as_its_exif_orientation_says(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    plain, turned = io.BytesIO(), io.BytesIO()
    options = {"lossless": True} if form == "WEBP" else {}
    media.picture(56, 112).save(plain, form, **options)
    media.picture(56, 112).save(turned, form, exif=exif, **options)
    seen = read_image(turned)
    assert image_size(turned) == (seen.height, seen.width)
    assert seen.size == ((56, 112) if 5 <= orientation <= 8 else (112, 56))
    stored = read_image(plain)
    moves = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # FLIP_LEFT_RIGHT, ROTATE_180, …
    expected = stored.transpose(Image.Transpose(moves[orientation])) if orientation in moves else stored
    if form in ("PNG", "WEBP", "TIFF"):
        assert np.array_equal(np.asarray(seen), np.asarray(expected))
    assert looks_other_elsewhere(turned) == (form != "TIFF" and orientation in moves)


def test_damaged_exif_says_nothing() -> None:
    data = io.BytesIO(media.png(exif=b"Exif\0\0II*\0\xff\xff\xff\xff"))
    assert (image_size(data), read_image(data).size) == ((50, 30), (30, 50))


def deep(pixels: list[Any], dtype: str, form: str = "TIFF") -> list[int]:
    """What is seen of a row of grey pixels of more than 8 bits."""
    sink = io.BytesIO()
    Image.fromarray(np.array([pixels], dtype=dtype)).save(sink, form)
    seen = np.asarray(read_image(sink))[0]
    assert looks_other_elsewhere(sink)
    assert (seen[:, :1] == seen).all()
    return seen[:, 0].tolist()


def test_grey_of_more_than_8_bits_keeps_its_contrast() -> None:
    for form in ("TIFF", "PNG"):
        assert deep([0, 32_896, 65_535], "<u2", form) == [0, 128, 255]
    assert deep([0, 30_000], "<u2") == [0, 117]
    assert deep([0, 4095], "<u2") == [0, 255]
    assert deep([7, 200], "<u2") == [7, 200]
    assert deep([0, 1_000_000, 2_000_000], "<i4") == [0, 128, 255]
    assert deep([-10, 0, 10], "<i4") == [0, 128, 255]
    assert deep([0, 0.5, 1], "<f4") == [0, 128, 255]
    assert deep([0, 127.6, 255], "<f4") == [0, 128, 255]
    assert deep([np.nan, np.inf, 1], "<f4") == [0, 0, 255]
    assert deep([3e38, -3e38], "<f4") == [255, 0]
    assert deep([-5, -5], "<f4") == [0, 0]


def test_the_chosen_frames_of_a_video_are_decoded(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def choose(about: dict[str, Any]) -> list[int]:
        seen.update(about)
        return [0, 10, 20]

    frames, about = read_video(media.video(tmp_path / "v.mp4"), choose)
    assert frames.shape == (3, 3, 32, 48)
    assert frames.dtype == np.uint8
    assert np.abs(frames.mean((1, 2, 3)) - [0, 100, 200]).max() < 5
    assert seen == {"total_num_frames": 24, "fps": 8.0, "height": 32, "width": 48, "duration": 3.0}
    assert about == {**seen, "frames_indices": [0, 10, 20]}


def test_a_video_of_which_no_frame_is_chosen_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a video of 24 frames of which none is chosen"):
        read_video(media.video(tmp_path / "v.mp4"), lambda _: [])


def test_a_container_that_does_not_say_how_many_frames_it_holds_is_counted(tmp_path: Path) -> None:
    frames, about = read_video(media.video(tmp_path / "v.mkv"), lambda about: [about["total_num_frames"] - 1])
    assert about["total_num_frames"] == 24
    assert abs(frames.mean() - 230) < 5


def test_a_list_of_frames_is_a_video_of_two_frames_a_second() -> None:
    frames, about = read_video([io.BytesIO(media.png()) for _ in range(3)], lambda _: [])
    assert frames.shape == (3, 3, 50, 30)
    assert (about["fps"], about["frames_indices"]) == (2.0, [0, 1, 2])
    with pytest.raises(ValueError, match="different sizes"):
        read_video([io.BytesIO(media.png()), io.BytesIO(media.png(20, 20))], lambda _: [])


def test_a_video_that_breaks_off_is_refused(tmp_path: Path) -> None:
    whole = media.video(tmp_path / "v.mkv").read_bytes()
    with pytest.raises(ValueError, match="breaks off"):
        read_video(io.BytesIO(whole[: len(whole) * 2 // 3]), lambda _: [23])


def test_sound_is_resampled_and_its_channels_averaged(tmp_path: Path) -> None:
    clip = read_audio(media.sound(tmp_path / "s.wav"), 16_000)
    assert clip.dtype == np.float32
    assert abs(len(clip) - 8_000) < 40
    # A tone at half scale in one channel of two: a quarter, at 440 Hz.
    assert abs(np.abs(clip[1000:7000]).max() - 0.25) < 0.01
    spectrum = np.abs(np.fft.rfft(clip[:8000]))
    assert spectrum.argmax() == pytest.approx(440 / 2, abs=1)


def test_a_file_without_sound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without sound"):
        read_audio(media.video(tmp_path / "v.mp4"), 16_000)
