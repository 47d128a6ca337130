"""Pictures to another size are Pillow's, bit for bit; middles have their share."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrl.policies.resizing import center_crop, resize

FILTERS = {name: Image.Resampling[name.upper()] for name in ("bicubic", "bilinear", "lanczos")}
SIDES = st.integers(1, 100)


def picture(height: int, width: int, seed: int) -> torch.Tensor:
    """Noise, or black and white, whose sums leave 0 to 255 with a cubic."""
    found = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return found if seed % 2 else (found > 127).to(torch.uint8) * 255


def ours(shown: torch.Tensor, height: int, width: int, mode: str) -> torch.Tensor:
    return resize(shown.permute(2, 0, 1)[None], height, width, mode)[0].permute(1, 2, 0)


@pytest.mark.parametrize("mode", FILTERS)
@given(sides=st.tuples(SIDES, SIDES, SIDES, SIDES), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_they_are_pillows_with_the_width_first(mode, sides, seed):
    """In two calls, as Pillow 13 takes the height first where that is less work."""
    height, width, high, wide = sides
    shown = picture(height, width, seed)
    across = Image.fromarray(shown.numpy()).resize((wide, height), FILTERS[mode])
    assert np.array_equal(ours(shown, high, wide, mode).numpy(), across.resize((wide, high), FILTERS[mode]))


@pytest.mark.parametrize("mode", FILTERS)
@pytest.mark.parametrize("sizes", [(256, 224), (64, 224), (64, 56), (480, 224), (58, 56), (224, 224)])
def test_squares_are_pillows_in_one_call(mode, sizes):
    before, after = sizes
    shown = picture(before, before, 1)
    assert np.array_equal(
        ours(shown, after, after, mode).numpy(), Image.fromarray(shown.numpy()).resize((after,) * 2, FILTERS[mode])
    )


@given(SIDES, SIDES, st.floats(0.1, 1.0))
def test_a_middle_has_its_share_of_the_area_and_lies_in_the_middle(height, width, share):
    rows = torch.arange(height)[:, None].expand(height, width)
    places = torch.stack([rows, torch.arange(width).expand(height, width), rows])[None]
    found = center_crop(places, share)[0]
    for axis, side in ((0, height), (1, width)):
        size = found.shape[1 + axis]
        assert 1 <= size <= side and abs(size - side * math.sqrt(share)) <= 1
        before, behind = int(found[axis].min()), side - 1 - int(found[axis].max())
        assert 0 <= behind - before <= 1 and before + size + behind == side
    assert torch.equal(center_crop(places, 1.0), places)
