"""Files of images that are broken, lie about themselves, or are small and cost much."""

from __future__ import annotations

import gzip
import io
import os
import random
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# -- makers -----------------------------------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth=8, colour=2, extra=b"", pixels=b""):
    """A PNG of a size. pixels: compressed, none by default."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IDAT", pixels or zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + body


def encoded(image, kind, **options):
    image.save(out := io.BytesIO(), kind, **options)
    return out.getvalue()


def noise(width, height, bands=3):
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, bands), dtype=np.uint8))


def zeros(count: int) -> bytes:
    """Compressed zeros, a thousandth of their size."""
    packer, block = zlib.compressobj(9), bytes(2**20)
    return b"".join([packer.compress(block) for _ in range(count >> 20)]) + packer.flush()


def webp(width, height, rest=b""):
    """A WebP with a canvas of a size."""
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + sides + rest
    return b"RIFF" + struct.pack("<I", len(body)) + body


def animation(width, height, count):
    """An animated WebP of kilobytes: the same frame many times."""
    still = encoded(Image.new("RGB", (width, height)), "WEBP", lossless=True, quality=0, method=0)
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    frame = bytes(6) + sides + (40).to_bytes(3, "little") + b"\0" + still[12:]
    frames = (b"ANMF" + struct.pack("<I", len(frame)) + frame + bytes(len(frame) % 2)) * count
    return webp(width, height, b"ANIM" + struct.pack("<I", 6) + bytes(6) + frames)


def scans(data, count):
    """A JPEG whose last scan comes `count` times more."""
    last = data.rfind(b"\xff\xda")
    return data[:-2] + data[last:-2] * count + data[-2:]


def tiff(tags, data=b"", following=0):
    """A TIFF of (tag, type, count, value). following: position of the next page."""
    entries = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + struct.pack("<I", following) + data


def bmp(width, height, bits, compression=0, data=b""):
    head = b"BM" + struct.pack("<IHHI", 10**6, 0, 0, 1078 if bits <= 8 else 54)
    return head + struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, 0, 0, 0, 256 * (bits <= 8), 0) + data


def largest(width, height, depth, colour):
    """A PNG whose rows all have the slowest filter."""
    row = b"\4" + bytes(width * {2: 3, 6: 4, 0: 1}[colour] * depth // 8)
    return png(width, height, depth, colour, pixels=zlib.compress(row * height, 1))


# -- what costs much --------------------------------------------------------------------------------------------------------

SMALL = noise(64, 48)
PROGRESSIVE = encoded(SMALL, "JPEG", progressive=True)
BASELINE = encoded(SMALL, "JPEG", subsampling=0)
GREY = [(256, 4, 1, 64), (257, 4, 1, 64), (258, 3, 1, 8), (262, 3, 1, 1), (277, 3, 1, 1)]
TILED = [*GREY, (259, 3, 1, 8), (322, 4, 1, 2**16), (323, 4, 1, 2**16), (324, 4, 1, 200), (325, 4, 1, 10)]
COSTLY = {
    "a progressive JPEG of many scans": (scans(PROGRESSIVE, 200), r"has 2\d\d scans of 64 x 48 pixels"),
    "a baseline JPEG of many scans": (scans(BASELINE, 200), "has 201 scans"),
    "scans after a text that looks like the end": (
        scans(PROGRESSIVE[:-2] + b"\xff\xfe\0\x04\xff\xd9\xff\xd9", 200),
        r"has 2\d\d scans",
    ),
    "many scans and a cut marker": (scans(PROGRESSIVE, 200)[:-2] + b"\xff\xe1", r"has 2\d\d scans"),
    "a lossless JPEG": (BASELINE.replace(b"\xff\xc0", b"\xff\xc3"), "lossless or arithmetic"),
    "a PNG with 16 bits": (png(8100, 8100, 16, 6), r"too large, 8100 x 8100 with 16 bits: its pixels are 501 MiB"),
    "a transparent PNG": (png(8100, 8100, 8, 6), r"too large, 8100 x 8100: decoding it takes 751 MiB"),
    "a PNG of many texts": (png(8, 8, extra=chunk(b"tEXt", b"a\0b") * 600), "PNG of too many chunks"),
    "a PNG of many profiles": (png(8, 8, extra=chunk(b"iCCP", b"a\0\0") * 600), "PNG of too many chunks"),
    "a WebP with a large canvas": (webp(8100, 8100), r"too large, 8100 x 8100: decoding it takes"),
    "a WebP that is too large": (webp(16000, 16000), r"at most 67,108,864 pixels"),
    "a TIFF of many strips": (
        tiff([*GREY, (259, 3, 1, 1), (273, 4, 2**24, 200), (279, 4, 2**24, 200)]),
        "TIFF of 16,777,216 strips",
    ),
    "a TIFF with huge tiles": (tiff(TILED, bytes(99)), "too large, 65536 x 65536"),
    "a TIFF with JPEG inside": (
        tiff([*GREY, (259, 3, 1, 7), (273, 4, 1, 200), (279, 4, 1, 10)], bytes(99)),
        "compression 'jpeg'",
    ),
    "a GIF with a large screen": (
        b"GIF89a" + struct.pack("<HH", 30000, 30000) + encoded(Image.new("P", (8, 8)), "GIF")[10:],
        "is too large",
    ),
}
"""What -> (file, the message that refuses it before it is decoded)."""
COSTLIEST: dict[str, Callable[[], bytes]] = {
    "RGB": lambda: largest(7900, 7900, 8, 2),
    "RGBA": lambda: largest(6400, 6400, 8, 6),
    "16 bits": lambda: largest(5790, 5790, 16, 6),
    "grey of 16 bits": lambda: largest(7500, 7500, 16, 0),
    "JPEG": lambda: encoded(Image.new("RGB", (7900, 7900)), "JPEG"),
    "scans": lambda: scans(encoded(noise(2300, 2300).reduce(4).resize((2300, 2300)), "JPEG", progressive=True), 85),
    "WebP": lambda: encoded(Image.new("RGB", (4990, 4990)), "WEBP", lossless=True, quality=0, method=0),
    "transparent WebP": lambda: encoded(noise(50, 50, 4).resize((4500, 4500)), "WEBP", method=0),
}
"""What -> a file just within the limits: the most memory and time that an image may take."""
_COST = """
import sys, time
from mmrl import UserError
from mmrl.api.media.images import load_image
from PIL import Image
import numpy
Image.init()
status = lambda key: int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1])
before, start = status("VmRSS"), time.process_time()
try:
    load_image(sys.argv[1])
except UserError:
    pass
print(1024 * (status("VmHWM") - before), time.process_time() - start)
"""


def cost(path: Path) -> tuple[float, float]:
    """(bytes, seconds of processor time) that loading an image, or refusing it, takes a process of its own. Linux only."""
    done = subprocess.run([sys.executable, "-c", _COST, str(path)], capture_output=True, text=True, check=True, timeout=60)
    memory, seconds = map(float, done.stdout.split())
    return memory, seconds


# -- what is broken, or lies ------------------------------------------------------------------------------------------------


def whole_images() -> dict[str, bytes]:
    """Name -> a small image, one of each format and of some of their kinds."""
    few, clear = [noise(16, 12).quantize(n) for n in (9, 20, 30)], noise(20, 20, 4)
    exif = Image.Exif()
    exif[0x0112] = 6
    made = {
        "baseline.jpg": BASELINE,
        "progressive.jpg": PROGRESSIVE,
        "turned.jpg": encoded(SMALL, "JPEG", exif=exif.tobytes()),
        "cmyk.jpg": encoded(SMALL.convert("CMYK"), "JPEG"),
        "rgb.png": encoded(SMALL, "PNG"),
        "clear.png": encoded(clear, "PNG"),
        "palette.png": encoded(few[0], "PNG", transparency=3),
        "bits.png": encoded(SMALL.convert("1"), "PNG"),
        "grey16.png": encoded(Image.fromarray(np.arange(3072, dtype=np.uint16).reshape(48, 64)), "PNG"),
        "animated.png": encoded(clear, "PNG", save_all=True, append_images=[clear.rotate(90)]),
        "still.gif": encoded(few[0], "GIF"),
        "animated.gif": encoded(few[0], "GIF", save_all=True, append_images=few[1:], duration=50),
        "lossy.webp": encoded(SMALL, "WEBP"),
        "lossless.webp": encoded(clear, "WEBP", lossless=True),
        "animated.webp": encoded(clear, "WEBP", save_all=True, append_images=[clear.rotate(90)]),
        "rgb.bmp": encoded(SMALL, "BMP"),
        "palette.bmp": encoded(few[0], "BMP"),
        "raw.tif": encoded(SMALL, "TIFF"),
        "deflate.tif": encoded(SMALL, "TIFF", compression="tiff_adobe_deflate"),
        "lzw.tif": encoded(SMALL, "TIFF", compression="tiff_lzw"),
        "fax.tif": encoded(SMALL.convert("1"), "TIFF", compression="group4"),
        "pages.tif": encoded(SMALL, "TIFF", save_all=True, append_images=[SMALL] * 3),
        "rgb.ppm": encoded(SMALL, "PPM"),
        "plain.pgm": b"P2 4 4 255\n" + b"7 " * 16,
    }
    return made | ({"rgb.avif": encoded(SMALL, "AVIF")} if "AVIF" in Image.SAVE else {})


def lying_images() -> Iterator[tuple[str, bytes]]:
    """(name, file): headers that promise too much, bombs, and files of other kinds."""
    yield from ((f"{what}.png", data) for what, (data, _) in COSTLY.items())
    dot = zlib.compress(bytes(25 * 8))
    for name, extra in _chunks().items():
        yield f"{name}.png", png(8, 8, extra=extra, pixels=dot)
    for width, height in ((60000, 60000), (2**31 - 1, 2**31 - 1), (2**32 - 1, 1), (0, 0), (10, 0), (20000, 1), (1, 201)):
        yield f"{width} x {height}.png", png(width, height)
    for depth, colour in ((8, 7), (3, 2), (16, 3), (0, 0), (255, 255)):
        yield f"depth {depth} colour {colour}.png", png(8, 8, depth, colour, pixels=dot)
    yield "pixels of another size.png", png(16, 16, pixels=zeros(2**26))
    yield "pixels of 1 GB.png", png(8000, 8000, 1, 0, pixels=zeros(2**30))
    yield "a chunk of negative size.png", b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffIHDR"
    yield from _lying_jpegs()
    yield from _lying_gifs()
    yield "many frames.webp", animation(64, 64, 3000)
    yield "large frames.webp", animation(2048, 2048, 20)
    yield "a frame that is larger than its canvas.webp", webp(8, 8, animation(512, 512, 1)[30:])
    yield from _lying_tiffs()
    for width, height, bits, compression, data in (
        (2**31 - 1, 2**31 - 1, 24, 0, b""), (-10, -10, 24, 0, bytes(1000)), (8, -(2**31), 24, 0, b""),
        (8000, 8000, 8, 1, bytes(1024) + b"\xff\1" * 100), (3000, 3000, 8, 1, bytes(1024) + b"\1\1" * 9_000_000),
        (8, 8, 8, 1, bytes(1024) + b"\0\2\xff\xff" * 1000), (8, 8, 7, 9, bytes(99)), (0, 0, 24, 0, b""),
    ):  # fmt: skip
        yield f"{width} x {height}, {bits} bits, compression {compression}.bmp", bmp(width, height, bits, compression, data)
    yield from _lying_ppms()
    yield from _other_kinds()


def _chunks() -> dict[str, bytes]:
    bomb = zeros(2**28)
    sides = struct.pack(">IIIIIHHBB", 0, 2**31 - 1, 2**31 - 1, 0, 0, 1, 1, 0, 0)
    return {
        "a compressed text of 256 MiB": chunk(b"zTXt", b"a\0\0" + bomb),
        "an international text of 256 MiB": chunk(b"iTXt", b"a\0\1\0\0\0" + bomb),
        "a profile of 256 MiB": chunk(b"iCCP", b"a\0\0" + bomb),
        "60,000 texts": chunk(b"tEXt", b"a\0b") * 60_000,
        "a second header": chunk(b"IHDR", struct.pack(">IIBBBBB", 9000, 9000, 8, 2, 0, 0, 0)),
        "an animation without frames": chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)) + chunk(b"fcTL", sides),
        "an empty palette": chunk(b"PLTE", b""),
        "a palette of half a colour": chunk(b"PLTE", b"\0"),
        "transparency of one byte": chunk(b"tRNS", b"\0"),
        "EXIF that points at itself": chunk(b"eXIf", b"II*\0\x08\0\0\0\x01\0\x69\x87\x04\0\x01\0\0\0\x08\0\0\0\x08\0\0\0"),
        "EXIF of nothing": chunk(b"eXIf", b""),
        "a gamma of zero": chunk(b"gAMA", bytes(4)) + chunk(b"cHRM", bytes(32)) + chunk(b"pHYs", bytes(9)),
    }


def _lying_jpegs() -> Iterator[tuple[str, bytes]]:
    at = BASELINE.find(b"\xff\xc0")
    yield "65535 x 65535.jpg", BASELINE[: at + 5] + b"\xff" * 4 + BASELINE[at + 9 :]
    yield "0 x 0.jpg", BASELINE[: at + 5] + bytes(4) + BASELINE[at + 9 :]
    yield "many components.jpg", BASELINE[: at + 9] + b"\xff" + BASELINE[at + 10 :]
    yield "many scans, large.jpg", scans(encoded(Image.new("RGB", (6000, 6000)), "JPEG", progressive=True), 300)
    yield "many tables.jpg", BASELINE[:2] + b"\xff\xdb\0\x43\0" + bytes(64) + b"\xff\xfe\0\2" * 20_000 + BASELINE[2:]
    yield "markers alone.jpg", b"\xff\xd8" + b"\xff" * 1_000_000
    yield "two in one.jpg", BASELINE + PROGRESSIVE
    draw = random.Random(0)
    for value in (0, 9, 99, 65535):
        exif = Image.Exif()
        exif[0x0112] = value
        yield f"orientation {value}.jpg", encoded(SMALL, "JPEG", exif=exif.tobytes())
    loop = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x69\x87\x04\0\x01\0\0\0\x08\0\0\0\x08\0\0\0"
    for name, data in {"a loop": loop, "noise": b"Exif\0\0MM" + draw.randbytes(500), "a text": b"Exif\0\0" + b"a" * 9}.items():
        yield f"EXIF of {name}.jpg", encoded(SMALL, "JPEG", exif=data)


def _lying_gifs() -> Iterator[tuple[str, bytes]]:
    dot, block = encoded(Image.new("P", (8, 8)), "GIF"), b"\x02\x02\x44\x01\x00"
    at = dot.find(b",")
    yield "a frame of 65535.gif", dot[: at + 5] + b"\xff" * 4 + dot[at + 9 :]
    yield "a frame outside.gif", dot[: at + 1] + b"\xff" * 4 + dot[at + 5 :]
    head = b"GIF89a" + struct.pack("<HHBBB", 8000, 8000, 0x80, 0, 0) + bytes(6)
    yield "many frames of a large screen.gif", head + (b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + block) * 3000 + b";"
    small = b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0x80, 0, 0) + bytes(6)
    yield "50,000 frames.gif", small + (b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + block) * 50_000 + b";"
    yield "comments alone.gif", small + b"!\xfe\x01a\0" * 100_000
    yield "a comment without end.gif", small + b"!\xfe" + (b"\xff" + b"a" * 255) * 4000


def _lying_tiffs() -> Iterator[tuple[str, bytes]]:
    raw = [(259, 3, 1, 1), (273, 4, 1, 100), (278, 4, 1, 16), (279, 4, 1, 256)]
    huge = [(256, 4, 1, 2**31 - 1), (257, 4, 1, 2**31 - 1), *GREY[2:]]
    yield "a page that follows itself.tif", tiff([*GREY, *raw], bytes(400), following=8)
    yield "of 2**31.tif", tiff([*huge, *raw], bytes(400))
    samples = [(256, 4, 1, 64), (257, 4, 1, 64), (258, 3, 60000, 100), (262, 3, 1, 2), (277, 3, 1, 60000)]
    yield "60,000 samples.tif", tiff([*samples, (259, 3, 1, 5), (273, 4, 2**28, 100), (279, 4, 2**28, 100)], bytes(400))
    yield "many sizes.tif", tiff([(256, 4, 2**31, 16), (257, 4, 2**31, 16)])
    yield "no tags.tif", tiff([])
    yield "60,000 tags.tif", tiff([*GREY, *raw, *((40000, 4, 1, n) for n in range(60_000))], bytes(400))
    yield "a tag of 4 GiB.tif", tiff([*GREY, *raw, (700, 1, 2**32 - 1, 8)], bytes(400))
    for mode in ("I;16", "I", "F", "LA", "RGBA", "CMYK", "YCbCr", "LAB", "P"):
        yield f"{mode.replace(';', '')}.tif", encoded(Image.new(mode, (40, 30)), "TIFF")
    yield "large.tif", encoded(Image.new("L", (8100, 8100)), "TIFF", compression="tiff_adobe_deflate")
    yield "a big one.tif", b"II+\0\x08\0\0\0" + struct.pack("<Q", 2**63)


def _lying_ppms() -> Iterator[tuple[str, bytes]]:
    for name, data in {
        "huge": b"P6 999999 999999 255\n" + bytes(100),
        "digits": b"P6 " + b"9" * 100_000 + b" 1 255\n",
        "a comment": b"P6\n#" + b"a" * 2_000_000 + b"\n8 8 255\n" + bytes(192),
        "16 bits": b"P5 8 8 65535\n" + bytes(128),
        "written out": b"P3 8000 8000 255\n" + b"1 " * 1000,
        "written out, long": b"P3 2000 2000 255\n" + b"1 " * 12_000_000,
        "negative": b"P6 -8 -8 255\n" + bytes(192),
        "without a maximum": b"P6 8 8 0\n" + bytes(192),
        "numbers with a point": b"Pf 8 8 -1.0\n" + bytes(256),
        "NaN": b"Pf 8 8 nan\n" + bytes(256),
    }.items():
        yield f"{name}.ppm", data


def _other_kinds() -> Iterator[tuple[str, bytes]]:
    """Files of other kinds that are called images."""
    for kind in ("TGA", "ICO", "JPEG2000", "EPS", "PCX", "PDF", "SGI", "DDS"):
        yield f"{kind}.png", encoded(SMALL, kind)
    for name, data in {
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n%%EOF",
        "html": b"<html><script>alert(1)</script>",
        "text": b"hello",
        "a program": b"\x7fELF" + bytes(100),
        "nothing": b"",
        "one byte": b"\xff",
        "psd": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 30000, 30000, 8, 3) + bytes(100),
        "packed": gzip.compress(BASELINE),
        "icons": struct.pack("<HHH", 0, 1, 65535) + struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, 40, 22) * 65535,
    }.items():
        yield f"{name}.png", data


def odd_paths(folder: Path) -> Iterator[tuple[str, Any]]:
    """(what, path) of what is no image file: folders, pipes, devices, links, sockets, odd names, a sparse file of 10 GB."""
    for name, target in {
        "a link to itself": "loop.png", "a link to nothing": "gone.png", "zeros without end": "/dev/zero", "null": "/dev/null",
        "a terminal": "/dev/tty", "memory": "/proc/self/mem", "the environment": "/proc/self/environ", "a folder": "/",
        "randomness": "/dev/urandom", "standard input": "/dev/stdin",
    }.items():  # fmt: skip
        (folder / f"link {name}.png").symlink_to("link a link to itself.png" if target == "loop.png" else target)
        yield f"a link to {name}", folder / f"link {name}.png"
    os.mkfifo(folder / "pipe.png")
    yield "a pipe", folder / "pipe.png"
    with socket.socket(socket.AF_UNIX) as served:
        here = os.open(folder, os.O_RDONLY)
        served.bind(f"/proc/self/fd/{here}/socket.png")  # a socket's path may have 107 characters
        os.close(here)
    yield "a socket", folder / "socket.png"
    with open(folder / "sparse.png", "wb") as file:
        file.write(encoded(SMALL, "PNG"))
        file.truncate(10 * 2**30)
    yield "10 GB", folder / "sparse.png"
    yield "a folder", folder
    yield "below a file", folder / "sparse.png" / "a.png"
    for name in ("line\nbreak.png", "\x1b[31mred.png", "n" * 240 + ".png", "<img src=x onerror=alert(1)>.png", "\u202egnp.exe"):
        (folder / name).write_bytes(b"x")
        yield f"a name of {len(name)} characters, {name[:9]!r}", folder / name
    undecodable = os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.png")
    Path(undecodable).write_bytes(b"x")
    yield "a name that is no UTF-8", undecodable
    yield "a name that is no UTF-8, of no file", undecodable + "x"
    yield "a name that is too long", str(folder / ("n" * 300)) + ".png"
    yield "a path that is too long", str(folder) + "/a" * 5000
    yield "a path with NUL", f"{folder}/a\0.png"
    yield "half a character", f"{folder}/\ud800.png"
    for text in ("http://127.0.0.1:9/x.png", "file:///etc/passwd", "data:image/png;base64,AAAA", "~nobody/x.png", "", " ", "."):
        yield f"{text!r}", text


def odd_images() -> Iterator[tuple[str, Any]]:
    """(what, value) of what is neither a path nor an image of a file."""
    for value in (
        None,
        7,
        -1.5,
        float("nan"),
        True,
        [],
        {},
        (),
        object(),
        b"",
        bytearray(b"\x89PNG"),
        memoryview(b"a"),
        {"a"},
        1j,
    ):
        yield f"a {type(value).__name__}, {value!r:.20}", value
    yield "an array", np.zeros((8, 8, 3), np.uint8)
    yield "a type", Image.Image
    yield "a list of paths", ["a.png"]
    for mode in (
        "1",
        "L",
        "P",
        "LA",
        "PA",
        "La",
        "RGBA",
        "RGBX",
        "RGBa",
        "CMYK",
        "YCbCr",
        "LAB",
        "HSV",
        "I",
        "F",
        "I;16",
        "I;16B",
    ):
        yield f"an image of mode {mode}", Image.new(mode, (8, 6))
    for size in ((0, 0), (0, 8), (8, 0), (1, 1), (1, 201), (9000, 9000)):
        yield f"an image of {size[0]} x {size[1]}", Image.new("1", size)
    closed = Image.open(io.BytesIO(BASELINE))
    closed.close()
    yield "a closed image", closed
    yield "an opened image that is broken", Image.open(io.BytesIO(BASELINE[:-300]))
    yield "an opened animation", Image.open(io.BytesIO(animation(16, 8, 3)))
