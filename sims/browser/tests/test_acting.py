"""Which actions make sense, before any browser: keys and places."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmrl_browser.acting import Refused, key_of, on_screen

PAGE = SimpleNamespace(size=(160, 210))


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("Enter", "Enter"),
        ("enter", "Enter"),
        ("return", "Enter"),
        ("Control+A", "Control+A"),
        ("ctrl-a", "Control+a"),
        ("cmd+shift+z", "Meta+Shift+z"),
        ("x", "x"),
        ("+", "+"),
        ("-", "-"),
        (" ", " "),
        ("arrowdown", "ArrowDown"),
        ("page_up", "PageUp"),
        ("f5", "F5"),
    ],
)
def test_keys_by_the_names_that_people_use(said, key):
    assert key_of(said) == key


@pytest.mark.parametrize("said", ["Entr", "Control+Q+Foo", "Enter+a", "hello", "ctrl+", "x" * 1000, "Control++A+", "Ä"])
def test_what_is_no_key_is_refused(said):
    with pytest.raises(Refused, match="is no key"):
        key_of(said)


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(allow_nan=True, allow_infinity=True))
def test_a_place_is_on_the_screen_or_refused(x, y):
    if 0 <= x <= 160 and 0 <= y <= 210:
        at = on_screen(PAGE, (x, y))
        assert 0 <= at[0] <= 159 and 0 <= at[1] <= 209 and abs(at[0] - x) <= 1 and abs(at[1] - y) <= 1
    else:
        with pytest.raises(Refused, match="off the screen"):
            on_screen(PAGE, (x, y))


def test_a_place_that_is_not_given():
    with pytest.raises(Refused, match="needs a place"):
        on_screen(PAGE, None)
