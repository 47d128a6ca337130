"""Folders of pictures, made on the spot."""

import random
from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture
def folder(tmp_path):
    """Write `count` noisy pictures; no two are alike."""

    def write(count: int, size: tuple[int, int] = (60, 44), root: str = "pictures") -> Path:
        (tmp_path / root / "inner").mkdir(parents=True)
        for i in range(count):
            noise = random.Random(f"{root}/{i}").randbytes(size[0] * size[1] * 3)
            Image.frombytes("RGB", size, noise).save(tmp_path / root / ("inner" if i % 2 else "") / f"{i:02d}.png")
        return tmp_path / root

    return write
