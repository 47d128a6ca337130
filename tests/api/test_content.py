"""What pictures and arrays hold, as values that are equal if the contents are."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from mmrl.api.media.content import canonical_form


def paletted(colour: tuple[int, int, int]) -> Image.Image:
    image = Image.new("P", (2, 2), 0)
    image.putpalette([*colour, 9, 9, 9])
    return image


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (paletted((255, 0, 0)), paletted((0, 0, 255))),
        (np.zeros((2, 3, 3), np.uint8), np.zeros((3, 2, 3), np.uint8)),
        (np.zeros(2, np.float32), np.zeros(2, np.int32)),
        (Image.new("RGB", (2, 3)), Image.new("RGB", (3, 2))),
        (np.float32(1), np.float64(1)),
    ],
    ids=["palette", "shape", "dtype", "size", "scalar"],
)
def test_equal_bytes_are_not_equal_contents(one, other):
    assert canonical_form(one) != canonical_form(other)


def test_equal_contents_are_equal_whatever_holds_them():
    saved = io.BytesIO()
    paletted((255, 0, 0)).save(saved, "PNG")
    assert canonical_form(Image.open(saved)) == canonical_form(paletted((255, 0, 0)))
    array = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert canonical_form(array) == canonical_form(np.asfortranarray(array))
    assert canonical_form(Image.fromarray(array)) == canonical_form(Image.fromarray(array.copy()))
