"""Files of images that are small and cost much: each is refused by name before it is decoded."""

import io
import os
import random
import struct
import time

import numpy as np
import pytest
from PIL import Image

from bad_images import BASELINE, COSTLIEST, COSTLY, PROGRESSIVE, SMALL, animation, cost, encoded, noise, png, scans
from mmrl import UserError
from mmrl.api.media import image_limits, images
from mmrl.api.media.images import load_frames, load_image


@pytest.mark.parametrize("what", COSTLY)
def test_a_costly_file_is_refused_by_name(tmp_path, what):
    data, message = COSTLY[what]
    (tmp_path / "a.png").write_bytes(data)
    start = time.thread_time()
    with pytest.raises(UserError, match=message) as told:
        load_image(tmp_path / "a.png")
    assert time.thread_time() - start < 0.5
    assert "a.png" in str(told.value) and "\n" not in str(told.value)


def test_what_only_looks_like_scans_is_no_scan():
    marks = b"\xff\xda" * 200
    for data in (PROGRESSIVE + marks, PROGRESSIVE[:-2] + b"\xff\xfe" + struct.pack(">H", len(marks) + 2) + marks + b"\xff\xd9"):
        assert load_image(data).size == (64, 48)
    assert load_image(scans(PROGRESSIVE, 20)).size == (64, 48)


def test_scans_count_by_the_pixels_that_they_cover(monkeypatch):
    monkeypatch.setattr(image_limits, "MAX_SCANNED", 64 * 48 * 5)
    assert load_image(BASELINE).size == (64, 48)
    with pytest.raises(UserError, match=r"has \d+ scans of 64 x 48"):
        load_image(PROGRESSIVE)


@pytest.mark.parametrize("kind", ["TGA", "ICO", "JPEG2000", "EPS", "PCX"])
def test_formats_that_nobody_needs_are_not_opened(kind):
    with pytest.raises(UserError, match=r"unknown kind: replace it by a JPEG, PNG"):
        load_image(encoded(SMALL, kind))


def test_large_files_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MAX_FILE", 1000)
    monkeypatch.setattr(image_limits, "MAX_FILE", 1000)
    SMALL.save(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png has more than"):
        load_image(tmp_path / "a.png")


def test_time_is_up_while_a_file_is_read_byte_by_byte(monkeypatch):
    monkeypatch.setattr(image_limits, "MAX_SECONDS", 0.05)
    side = 2000  # Pillow reads runs of one pixel in Python, which takes seconds
    head = b"BM" + struct.pack("<IHHI", 10**6, 0, 0, 1078) + struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, 0, 0, 0, 256, 0)
    start = time.thread_time()
    with pytest.raises(UserError, match=r"takes more than 0\.05 s to decode"):
        load_image(head + bytes(1024) + b"\1\1" * side * side)
    assert time.thread_time() - start < 0.5


def test_an_animation_of_many_large_frames_is_refused_and_its_first_frame_is_an_image():
    data = animation(2048, 2048, 20)
    assert len(data) < 30_000
    with pytest.raises(UserError, match=r"has 20 frames of 2048 x 2048: at most 256 frames"):
        load_frames(data, 256, "film")
    with pytest.raises(UserError, match=r"has 20 frames .*: at most 8 frames"):
        load_frames(data, 8, "film")
    found = load_frames(animation(16, 8, 3), 256)
    assert [(frame.size, frame.mode, ms) for frame, ms in found] == [((16, 8), "RGB", 40)] * 3


@pytest.mark.parametrize("mode", ["RGBA", "LA", "I;16", "P"])
def test_a_large_image_is_converted_by_strips_as_at_once(monkeypatch, mode):
    if mode == "I;16":
        image = Image.fromarray(np.random.default_rng(0).integers(0, 65535, (31, 50), dtype=np.uint16))
    else:
        image = noise(50, 31, 4).convert(mode)
    if mode == "P":
        image.info["transparency"] = 7
    whole = load_image(image)
    monkeypatch.setattr(images, "STRIP", 200)
    assert load_image(image).tobytes() == whole.tobytes()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_as_pillows(orientation):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(SMALL, "PNG", exif=exif)
    with Image.open(io.BytesIO(data)) as opened:
        assert load_image(data).tobytes() == ImageOps.exif_transpose(opened).tobytes()


def test_an_image_is_the_callers_own():
    image = Image.new("RGB", (4, 4))
    load_image(image).putpixel((0, 0), (9, 9, 9))
    assert image.getpixel((0, 0)) == (0, 0, 0)
    opened = load_image(encoded(SMALL, "PNG"))
    opened.thumbnail((8, 8))
    assert type(opened) is Image.Image and opened.size == (8, 6)


def test_random_bytes_after_a_header_are_told_in_one_line():
    draw = random.Random(0)
    starts = (b"\xff\xd8\xff\xc2", png(8, 8)[:40], b"RIFF\0\0\0\0WEBPVP8X", b"GIF89a", b"BM", b"P6 ", b"\0\0\0\x20ftypavif")
    for start in starts:
        for _ in range(20):
            try:
                load_image(start + draw.randbytes(200))
            except UserError as error:
                assert "\n" not in str(error)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs Linux")
@pytest.mark.parametrize("what", COSTLIEST)
def test_the_costliest_images_that_are_opened_stay_in_bounds(tmp_path, what):
    (tmp_path / "a").write_bytes(COSTLIEST[what]())
    memory, seconds = cost(tmp_path / "a")
    assert memory < 512e6 and seconds < 2 * image_limits.MAX_SECONDS
