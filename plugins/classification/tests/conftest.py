"""Folders of pictures, made on the spot."""

import random
from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture
def folder(tmp_path):
    """Write `{class: number of images}`; no two pictures are alike."""

    def write(counts: dict[str, int], root: str = "pictures") -> Path:
        for label, count in counts.items():
            where = tmp_path / root / label
            where.mkdir(parents=True)
            for i in range(count):
                noise = random.Random(f"{root}/{label}/{i}").randbytes(8 * 8 * 3)
                Image.frombytes("RGB", (8, 8), noise).save(where / f"{i}.png")
        return tmp_path / root

    return write


@pytest.fixture
def bad_folder(folder):
    """Two classes of sound pictures, and every kind of picture that breaks a loader; (folder, names of the broken ones)."""
    root = folder({"cat": 3, "dog": 3})
    odd = root / "dog"
    (odd / "broken.jpg").write_bytes(b"this is no picture")
    (odd / "empty.png").write_bytes(b"")
    noise = Image.frombytes("RGB", (64, 64), random.Random(0).randbytes(64 * 64 * 3))
    noise.save(odd / "truncated.jpg")
    (odd / "truncated.jpg").write_bytes((odd / "truncated.jpg").read_bytes()[:2000])
    Image.new("RGB", (30_000, 100), "navy").save(odd / "too-narrow.png")
    Image.new("RGB", (30_000, 200), "navy").save(odd / "wide.png")
    Image.new("RGB", (1, 1), "red").save(odd / "one-pixel.png")
    frames = [Image.new("RGB", (16, 16), c) for c in ("red", "green", "blue")]
    frames[0].save(odd / "animated.gif", save_all=True, append_images=frames[1:])
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(odd / "cmyk.jpg")
    Image.new("I;16", (16, 16), 65535).save(odd / "sixteen-bit.png")
    Image.new("LA", (16, 16), (0, 0)).save(odd / "transparent.png")
    return root, ["dog/broken.jpg", "dog/empty.png", "dog/too-narrow.png", "dog/truncated.jpg"]
