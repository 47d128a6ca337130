"""Images that break trainers, and coordinates that must come back."""

import random
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrl import CoordinateFormat, UserError
from mmrl.api.coordinates import convert_coordinates
from mmrl.api.media.images import MAX_PIXELS, load_image

RED, WHITE = (255, 0, 0), (255, 255, 255)


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and has no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))


def test_rgb_passes_through_unchanged():
    image = Image.new("RGB", (3, 2), RED)
    assert load_image(image) is not None
    assert load_image(image).getpixel((2, 1)) == RED
    assert load_image(load_image(image)).tobytes() == image.tobytes()


def test_path_str_bytes_and_image_give_the_same(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (5, 4), (1, 2, 3)).save(path)
    for ref in (path, str(path), path.read_bytes(), Image.open(path)):
        image = load_image(ref)
        assert (image.mode, image.size, image.getpixel((4, 3))) == ("RGB", (5, 4), (1, 2, 3))


@pytest.mark.parametrize("orientation, expected", [(1, (0, 0)), (3, (3, 1)), (6, (1, 0)), (8, (0, 3))])
def test_exif_orientation_is_applied(tmp_path, orientation, expected):
    image = Image.new("RGB", (4, 2), "black")
    image.putpixel((0, 0), WHITE)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "a.png", exif=exif)
    upright = load_image(tmp_path / "a.png")
    assert upright.size == ((4, 2) if orientation < 5 else (2, 4))
    assert upright.getpixel(expected) == WHITE
    # a task may hand on what it loaded, or a part of it, and the policy loads that
    again = load_image(upright.crop((0, 0, *upright.size)))
    assert again.size == upright.size and again.tobytes() == upright.tobytes()


def test_orientation_in_xmp_is_applied_once(tmp_path):
    image = Image.new("RGB", (4, 2), "black")
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6"/></x:xmpmeta>'
    image.save(tmp_path / "a.webp", xmp=xmp, lossless=True)
    upright = load_image(tmp_path / "a.webp")
    assert upright.size == (2, 4) and load_image(upright).size == (2, 4)


def test_transparency_is_laid_on_white(tmp_path):
    clear, half = Image.new("RGBA", (1, 1), (255, 0, 0, 0)), Image.new("RGBA", (1, 1), (255, 0, 0, 128))
    assert load_image(clear).getpixel((0, 0)) == WHITE
    assert load_image(half).getpixel((0, 0)) == (255, 127, 127)
    assert load_image(Image.new("LA", (1, 1), (0, 0))).getpixel((0, 0)) == WHITE
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "p.png", transparency=0)
    assert [load_image(tmp_path / "p.png").getpixel((x, 0)) for x in (0, 1)] == [WHITE, (0, 255, 0)]
    Image.new("RGB", (1, 1), RED).save(tmp_path / "key.png", transparency=RED)
    assert load_image(tmp_path / "key.png").getpixel((0, 0)) == WHITE


def test_cmyk_is_converted(tmp_path):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    r, g, b = load_image(tmp_path / "a.jpg").getpixel((4, 4))
    assert r > 245 and g < 10 and b < 10


@pytest.mark.parametrize("kind", ["png", "tiff", "pgm"])
def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path, kind):
    values = np.array([[0, 128, 257, 32768, 65535]], dtype=np.uint16)
    path = tmp_path / f"a.{kind}"
    if kind == "pgm":
        path.write_bytes(b"P5 5 1 65535\n" + values.astype(">u2").tobytes())
    else:
        Image.fromarray(values).save(path)
    image = load_image(path)
    assert [image.getpixel((x, 0)) for x in range(5)] == [(v, v, v) for v in (0, 0, 1, 128, 255)]


def test_numbers_without_a_known_range_are_refused(tmp_path):
    with pytest.raises(UserError, match="floating-point"):
        load_image(Image.new("F", (2, 2), 0.5))
    with pytest.raises(UserError, match="32-bit"):
        load_image(Image.fromarray(np.array([[70000]], dtype=np.int32)))


@pytest.mark.parametrize("kind", ["gif", "png", "webp"])
def test_of_an_animation_the_first_frame_is_used(tmp_path, kind):
    frames = [Image.new("RGB", (4, 4), c) for c in ("red", "blue")]
    exact = {"lossless": True} if kind == "webp" else {}
    frames[0].save(tmp_path / f"a.{kind}", save_all=True, append_images=frames[1:], duration=50, **exact)
    with Image.open(tmp_path / f"a.{kind}") as opened:
        assert opened.n_frames == 2
    assert load_image(tmp_path / f"a.{kind}").getpixel((1, 1)) == RED


@pytest.mark.parametrize("kind", ["png", "jpg", "gif", "webp", "bmp", "tiff"])
def test_a_truncated_file_names_itself(tmp_path, kind):
    path = tmp_path / f"cut.{kind}"
    noise = random.Random(0).randbytes(64 * 64 * 3)
    Image.frombytes("RGB", (64, 64), noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=rf"image .*cut\.{kind} is broken or"):
        load_image(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no image at all",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"\xff\xd8\xff\xe0",
        b"BM" + b"\0" * 60,
        b"RIFF\x10\0\0\0WEBPVP8 ",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    ],
)
def test_a_broken_file_names_itself(tmp_path, content):
    (tmp_path / "bad.jpg").write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.jpg is broken or"):
        load_image(tmp_path / "bad.jpg")
    with pytest.raises(UserError, match="row 7 of cats is broken or"):
        load_image(content, name="row 7 of cats")


def test_missing_folder_url_and_nonsense_each_say_what_to_do(tmp_path):
    for ref, message in (
        (tmp_path / "no.png", "does not exist: check the path"),
        (tmp_path, "is a folder"),
        ("https://x.org/a.png", "is a URL"),
        (7, "is no image"),
        (None, "is no image"),
    ):
        with pytest.raises(UserError, match=message):
            load_image(ref)


def test_one_pixel_is_accepted_as_it_is():
    assert load_image(Image.new("RGB", (1, 1))).size == (1, 1)


def test_thirty_thousand_pixels_wide(tmp_path):
    path = tmp_path / "wide.png"
    Image.new("L", (30_000, 150)).save(path)
    assert load_image(path).size == (30_000, 150)
    Image.new("L", (30_000, 149)).save(path)
    with pytest.raises(UserError, match=r"wide\.png is too narrow, 30000 x 149: .* crop or pad"):
        load_image(path)


def test_an_image_without_pixels_is_refused():
    for size in ((0, 0), (0, 8), (8, 0)):
        with pytest.raises(UserError, match=r"^image given as a Image has no pixels, \d x \d: leave it out$"):
            load_image(Image.new("L", size))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_refused_by_its_header():
    for width, height in ((8193, 8192), (12_000, 12_000), (100_000, 100_000)):
        with pytest.raises(UserError, match=r"image of .* bytes is too large.*67,108,864 pixels"):
            load_image(png_header(width, height))
    assert MAX_PIXELS == 8192 * 8192
    assert load_image(Image.new("RGB", (4, 4)), max_pixels=16).size == (4, 4)
    with pytest.raises(UserError, match="4 x 4: shrink it to at most 15 pixels"):
        load_image(Image.new("RGB", (4, 4)), max_pixels=15)


def test_frames_by_hand():
    size, model = (200, 100), (400, 50)
    box = (20, 10, 100, 50)
    assert convert_coordinates(box, CoordinateFormat.PIXELS, CoordinateFormat.UNIT, size) == (0.1, 0.1, 0.5, 0.5)
    assert convert_coordinates(box, CoordinateFormat.PIXELS, CoordinateFormat.THOUSANDTHS, size) == (100, 100, 500, 500)
    assert convert_coordinates(box, CoordinateFormat.PIXELS, CoordinateFormat.MODEL_PIXELS, size, model) == (40, 5, 200, 25)
    assert convert_coordinates((500, 1000), CoordinateFormat.THOUSANDTHS, CoordinateFormat.MODEL_PIXELS, size, model) == (200, 50)
    assert convert_coordinates([(0.25, 1), (1, 0)], "unit", "pixels", size) == [(50, 100), (200, 0)]
    assert convert_coordinates((100, 50, 20, 10), CoordinateFormat.PIXELS, CoordinateFormat.UNIT, size) == (
        0.5,
        0.5,
        0.1,
        0.1,
    )  # reversed corners stay reversed
    assert convert_coordinates((-20, 300), CoordinateFormat.PIXELS, CoordinateFormat.UNIT, size) == (
        -0.1,
        3.0,
    )  # nothing is clipped
    assert convert_coordinates([], CoordinateFormat.PIXELS, CoordinateFormat.UNIT, size) == ()


def test_frames_refuse_what_has_no_meaning():
    with pytest.raises(ValueError, match="pairs"):
        convert_coordinates((1, 2, 3), CoordinateFormat.PIXELS, CoordinateFormat.UNIT, (10, 10))
    with pytest.raises(ValueError, match="model_size is needed"):
        convert_coordinates((1, 2), CoordinateFormat.PIXELS, CoordinateFormat.MODEL_PIXELS, (10, 10))
    with pytest.raises(ValueError, match="'inches'"):
        convert_coordinates((1, 2), "inches", CoordinateFormat.PIXELS, (10, 10))


sides = st.integers(1, 100_000)


@settings(max_examples=300, deadline=None)
@given(size=st.tuples(sides, sides), model=st.tuples(sides, sides), frame=st.sampled_from(CoordinateFormat), data=st.data())
def test_a_round_trip_gives_back_the_pixel(size, model, frame, data):
    corners = [data.draw(st.integers(0, size[i % 2])) for i in range(4)]
    there = convert_coordinates(corners, CoordinateFormat.PIXELS, frame, size, model)
    back = convert_coordinates(there, frame, CoordinateFormat.PIXELS, size, model)
    assert max(abs(a - b) for a, b in zip(back, corners, strict=True)) < 1e-6
    assert [round(v) for v in back] == corners
    extent = {
        CoordinateFormat.PIXELS: size,
        CoordinateFormat.MODEL_PIXELS: model,
        CoordinateFormat.UNIT: (1, 1),
        CoordinateFormat.LOCATION_TOKENS: (1023, 1023),
    }.get(frame, (1000, 1000))
    rounded = convert_coordinates([round(v) for v in there], frame, CoordinateFormat.PIXELS, size, model)
    for i, (a, b) in enumerate(zip(rounded, corners, strict=True)):  # whole numbers in between: half a step of the coarser frame
        assert abs(a - b) <= 0.5 * size[i % 2] / extent[i % 2] * (1 + 1e-9) + 1e-9
        if extent[i % 2] >= size[i % 2]:
            assert abs(a - b) < 1


def test_importing_media_imports_no_pillow():
    code = "import sys, mmrl.api.media.images; sys.exit(any(m in sys.modules for m in ('PIL', 'numpy', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
