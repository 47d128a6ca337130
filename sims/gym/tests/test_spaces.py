"""Spaces as arrays, against Gymnasium's own flattening and membership."""

import numpy
import pytest

pytest.importorskip("gymnasium", reason='Gymnasium is not installed: pip install "multimodal-rl[gym]"')
from gymnasium import spaces
from mmrl_gym.spaces import Acted, Observed, Unknown

PICTURE = spaces.Box(0, 255, (20, 30, 3), numpy.uint8)
GREY = spaces.Box(0, 255, (20, 30, 1), numpy.uint8)
NUMBERS = {
    "box": spaces.Box(-2, 3, (2, 3), numpy.float64),
    "cells": spaces.Box(0, 9, (7, 7, 3), numpy.uint8),
    "choice": spaces.Discrete(4, start=-1),
    "choices": spaces.MultiDiscrete([[2, 3], [4, 1]]),
    "switches": spaces.MultiBinary((2, 2)),
    "pair": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,), numpy.float32)]),
    "nested": spaces.Dict({"b": spaces.Dict({"z": spaces.Discrete(2)}), "a": spaces.Box(0, 1, (1,), numpy.float32)}),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_state_is_gymnasium_s_flattening(kind):
    space = NUMBERS[kind]
    space.seed(3)
    observed = Observed(space)
    assert not observed.pictures and not observed.texts
    for _ in range(5):
        value = space.sample()
        wanted = spaces.utils.flatten(space, value).astype("float32")
        found = observed.state(value, numpy)
        assert found.dtype == numpy.float32 and found.tolist() == wanted.tolist()


def test_pictures_and_texts_are_no_state():
    space = spaces.Dict({"eye": PICTURE, "grey": GREY, "mission": spaces.Text(10), "arm": NUMBERS["box"]})
    space.seed(1)
    value, observed = space.sample(), Observed(space)
    assert list(observed.pictures) == ["eye", "grey"] and len(observed.state(value, numpy)) == 6
    assert (observed.picture(value, "eye", numpy) == value["eye"]).all() and observed.text(value) == value["mission"]
    grey = observed.picture(value, "grey", numpy)
    assert grey.shape == (20, 30, 3) and (grey == value["grey"]).all()


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (PICTURE, ["observation"]),
        (spaces.Dict({"pixels": spaces.Dict({"top": PICTURE, "left": PICTURE})}), ["left", "top"]),
        (spaces.Dict({"a": spaces.Dict({"top": PICTURE}), "b": spaces.Dict({"top": PICTURE})}), ["a-top", "b-top"]),
        (spaces.Dict({"camera": PICTURE, "wrist": spaces.Dict({"camera": PICTURE})}), ["camera", "wrist-camera"]),
        (spaces.Tuple([PICTURE, spaces.Discrete(2)]), ["0"]),
    ],
)
def test_cameras_have_the_last_key(space, names):
    assert list(Observed(space).pictures) == names


@pytest.mark.parametrize("kind", [kind for kind in NUMBERS if kind != "cells"])
def test_all_numbers_are_an_action_of_the_space(kind):
    space, generator = NUMBERS[kind], numpy.random.default_rng(0)
    acted = Acted(space, numpy)
    assert acted.dims == spaces.utils.flatdim(space)
    for numbers in (*generator.uniform(-1, 1, (20, acted.dims)), -numpy.ones(acted.dims), numpy.ones(acted.dims)):
        assert space.contains(acted.of(numbers.astype("float32")))


def test_what_the_numbers_of_an_action_mean():
    def of(space, *numbers):
        return Acted(space, numpy).of(numpy.array(numbers, "float32"))

    assert of(spaces.Box(-2, 3, (2,)), -1, 1).tolist() == [-2, 3] and of(spaces.Box(-2, 3, (2,)), 0, 0.5).tolist() == [0.5, 1.75]
    assert of(spaces.Box(0, 10, (2,), numpy.int64), 0.5, -1).tolist() == [8, 0], "whole numbers are the nearest"
    assert of(spaces.Discrete(3, start=5), 0.1, 0.3, 0.2) == 6
    assert of(spaces.MultiDiscrete([2, 3]), 0, 1, 0.5, 0, -1).tolist() == [1, 0]
    assert of(spaces.MultiDiscrete([2, 3], start=[10, 20]), 0, 1, 0.5, 0, -1).tolist() == [11, 20]
    assert of(spaces.MultiBinary(3), 0.1, 0, -1).tolist() == [1, 0, 0]
    both = spaces.Dict({"move": spaces.Box(-1, 1, (2,)), "grip": spaces.Discrete(2)})
    assert list(both.spaces) == ["grip", "move"], "Gymnasium sorts them"
    made = of(both, 0.0, 1.0, 0.25, -0.5)
    assert made["grip"] == 1 and made["move"].tolist() == [0.25, -0.5]


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Box(-numpy.inf, numpy.inf, (2,)), "which has no bounds"),
        (spaces.Text(4), "Text"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence"),
        (spaces.Dict({"a": spaces.Graph(spaces.Discrete(2), None)}), "Graph"),
    ],
)
def test_spaces_without_numbers_are_no_actions(space, said):
    with pytest.raises(Unknown, match=said):
        Acted(space, numpy)


def test_what_can_not_be_shown_is_named_with_its_place():
    with pytest.raises(Unknown, match=r"a-1: Sequence"):
        Observed(spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2))])}))
