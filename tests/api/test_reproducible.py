"""Angles, sines and roots with the same bits in every batch; scenes of tensors."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl import UserError
from mmrl.api.simulators.reproducible import angle_of, sin_cos, wrapped
from mmrl.api.simulators.scenes import SceneRows

NUMBERS = st.floats(-1e4, 1e4, width=32, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-4)


@settings(max_examples=300, deadline=None)
@given(NUMBERS, NUMBERS)
def test_the_angle_of_a_vector(x: float, y: float) -> None:
    found = float(angle_of(torch.tensor([x]), torch.tensor([y])))
    wanted = math.atan2(y, x) if (x or y) else 0.0
    assert abs(math.remainder(found - wanted, 2 * math.pi)) < 2e-5 and abs(found) < math.pi + 2e-5


def test_special_angles() -> None:
    x, y = torch.tensor([1.0, 0.0, -1.0, 0.0, 0.0, -1.0]), torch.tensor([0.0, 1.0, 0.0, -1.0, 0.0, -1.0])
    wanted = [0, math.pi / 2, math.pi, -math.pi / 2, 0, -0.75 * math.pi]
    assert angle_of(x, y).tolist() == pytest.approx(wanted, abs=2e-5)


def test_alone_or_among_others_the_bits_are_the_same() -> None:
    angles = torch.linspace(-9, 9, 999)
    sin, cos = sin_cos(angles)
    back = angle_of(cos, sin)
    assert (back - wrapped(angles)).abs().max() < 4e-5
    for start in (0, 1, 500, 997):
        alone = sin_cos(angles[start : start + 1])
        assert torch.equal(alone[0], sin[start : start + 1]) and torch.equal(alone[1], cos[start : start + 1])
        assert torch.equal(angle_of(alone[1], alone[0]), back[start : start + 1])


@dataclass(slots=True, kw_only=True)
class Two(SceneRows):
    place: torch.Tensor
    count: torch.Tensor


def two(n: int) -> Two:
    return Two(place=torch.arange(2.0 * n).view(n, 2), count=torch.arange(n))


def test_rows_of_a_scene_are_taken_put_and_merged() -> None:
    scene = two(4)
    rows = scene.rows(torch.tensor([3, 1]))
    assert rows.count.tolist() == [3, 1] and rows.place.tolist() == [[6, 7], [2, 3]]
    later = Two(place=scene.place + 100, count=scene.count + 100)
    merged = scene.merged(torch.tensor([True, False, False, True]), later)
    assert merged.count.tolist() == [100, 1, 2, 103] and merged.place[3].tolist() == [106, 107]
    kept = scene.place
    scene.put(torch.tensor([0, 2]), rows)
    assert scene.count.tolist() == [3, 1, 1, 3] and kept[0].tolist() == [0, 1], "rows aren't changed in place"


def test_a_snapshot_of_another_scene_is_refused() -> None:
    scene, state = two(4), two(2).as_mapping()
    assert scene.restored(state, 2, "a box").count.tolist() == [0, 1]
    for wrong in ({**state, "more": state["count"]}, {"count": state["count"]}, {**state, "count": state["count"].float()}):
        with pytest.raises(UserError, match=r"^the state doesn't fit 2 environments of a box$"):
            scene.restored(wrong, 2, "a box")
    with pytest.raises(UserError, match="doesn't fit 3 environments"):
        scene.restored(state, 3, "a box")
