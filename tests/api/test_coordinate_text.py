"""Coordinates as text: what is written is read back, in the order and with the tokens of each format."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.api.coordinates import CoordinateFormat, convert_coordinates

PIXELS, UNIT, TOKENS = CoordinateFormat.PIXELS, CoordinateFormat.UNIT, CoordinateFormat.LOCATION_TOKENS
sides = st.integers(8, 4096)


def read(written, text):
    """The numbers of an answer."""
    plain = written.without_tokens(text).strip()
    return json.loads(plain) if plain[:1] == "[" else [float(word) for word in plain.split()]


@settings(max_examples=300, deadline=None)
@given(size=st.tuples(sides, sides), model=st.tuples(sides, sides), written=st.sampled_from(CoordinateFormat), data=st.data())
def test_pixels_survive_their_way_through_an_answer(size, model, written, data):
    box = [data.draw(st.integers(0, size[0] - 2)), data.draw(st.integers(0, size[1] - 2))]
    box += [data.draw(st.integers(box[0] + 1, size[0])), data.draw(st.integers(box[1] + 1, size[1]))]
    exact = convert_coordinates(box, PIXELS, written, size, model)
    numbers = written.rounded(exact, lambda found: found[0] < found[2] and found[1] < found[3])
    step = [side / (1023 if written is TOKENS else 1000 if written is not PIXELS else side) for side in size]
    if written is CoordinateFormat.MODEL_PIXELS:
        step = [a / b for a, b in zip(size, model, strict=True)]
    for text in (written.text(numbers), json.dumps(written.json_value(numbers))):
        back = convert_coordinates(read(written, text), written, PIXELS, size, model)
        assert back[0] < back[2] and back[1] < back[3]
        for i, (a, b) in enumerate(zip(back, box, strict=True)):  # a box that must be enlarged moves by a whole step
            assert abs(a - b) <= step[i % 2] * (1 + 1e-9) + 1e-9


def test_y_is_written_before_x_as_the_families_do():
    """Corners of the examples in huggingface/blog, gemma4.md and paligemma.md: y_min, x_min, y_max, x_max."""
    box, size = (100, 50, 300, 200), (400, 200)
    assert convert_coordinates(box, PIXELS, "thousandths-yx", size) == (250, 250, 1000, 750)
    numbers = TOKENS.rounded(convert_coordinates(box, PIXELS, TOKENS, size))
    assert TOKENS.text(numbers) == "<loc0256><loc0256><loc1023><loc0767>"
    assert convert_coordinates((1000, 250), "thousandths-yx", "thousandths", size) == (250, 1000)
    assert convert_coordinates([(0, 1023)], TOKENS, UNIT, size) == [(1, 0)]
    for written in CoordinateFormat:
        assert written.swapped(written.swapped((1, 2, 3, 4))) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("<loc0001><loc0023>", " 1 23 "),
        ('{"box_2d": "<loc0001><loc0002><loc0003><loc1023>"}', '{"box_2d": [1, 2, 3, 1023]}'),
        ('{"x": "<loc0007>"}', '{"x": 7}'),
        ('"<loc0007> and', '" 7  and'),
        ("<loc007> <loc00007> loc0007", "<loc007> <loc00007> loc0007"),
    ],
)
def test_tokens_become_numbers(text, plain):
    assert TOKENS.without_tokens(text) == plain
    assert all(written.without_tokens(text) == text for written in CoordinateFormat if written is not TOKENS)


def test_a_box_between_two_tokens_is_enlarged_and_stays_on_the_picture():
    def sound(box):
        return box[0] < box[2] and box[1] < box[3]

    assert TOKENS.rounded((10.2, 10.2, 10.4, 10.4), sound) == (10, 10, 11, 11)
    assert TOKENS.rounded((1022.8, 0.1, 1023, 0.3), sound) == (1022, 0, 1023, 1)
    assert TOKENS.rounded((-4.0, 1030.0)) == (0, 1023)
    assert CoordinateFormat.THOUSANDTHS_YX.rounded((10.2, 10.2, 10.4, 10.4), sound) == (10.2, 10.2, 10.4, 10.4)


def test_prompts_name_the_numbers_in_their_order():
    assert [written.names("box") for written in CoordinateFormat] == [*["x1 y1 x2 y2"] * 4, "y1 x1 y2 x2", "<y1><x1><y2><x2>"]
    assert CoordinateFormat.THOUSANDTHS_YX.names("point", json=True) == "[y, x]"
    assert TOKENS.names("point", json=True) == '"<y><x>"'
