"""Lists of a screen's elements for policies, and actions that name an element by its number.

Short lists are the filtered DOM of WebWISE (Tao et al., NAACL Findings 2024): elements that can be acted on, and those that the
instruction mentions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmrl.api.simulators.gui import Action, Element, Point
from mmrl_gui.geometry import inside, middle

_WORDS = re.compile(r"[^\W_]+")


def kept(elements: Sequence[Element], instruction: str, most: int) -> tuple[Element, ...]:
    """The listed elements of a screen, in its order: those that can be clicked or typed into, or share a word with the
    instruction.

    most: maximum; if there are more, those that share most words with the instruction stay, then interactive ones, then the
    first. 0 lists everything.
    """
    if not most:
        return tuple(elements)
    wanted = words(instruction)
    shared = [len(wanted & words(f"{one.text} {one.value}")) for one in elements]
    there = [n for n, one in enumerate(elements) if one.interactive or shared[n]]
    there.sort(key=lambda n: (-shared[n], not elements[n].interactive, n))
    return tuple(elements[n] for n in sorted(there[:most]))


def words(text: str) -> set[str]:
    """The words of a text, in lower case; numbers are words."""
    return {word.casefold() for word in _WORDS.findall(text)}


def number_of(action: Action, elements: Sequence[Element]) -> int | None:
    """The number, from 1, of the element that an action is meant for; None if there is none, or for a drag."""
    if action.at is None or action.to is not None:
        return None
    found = meant(elements, action.at)
    return None if found is None else found + 1


def meant(elements: Sequence[Element], at: Point) -> int | None:
    """Index of the element that a click at a point is meant for: the one whose `click_point` it is, else the smallest around the
    point. Of several, clickable ones come first. None if there is none.

    A large element may be clicked beside its middle, where a small one lies that isn't meant: so its `click_point` tells more
    than boxes do."""

    def least(there: Sequence[int]) -> int | None:
        there = [n for n in there if elements[n].interactive] or there
        return min(there, key=lambda n: _area(elements[n]), default=None)

    clicked = least([n for n, one in enumerate(elements) if one.click_point and at in (one.click_point, spot_of(one))])
    return clicked if clicked is not None else least([n for n, one in enumerate(elements) if inside(at, one.box)])


def spot_of(element: Element) -> Point:
    """Where to click on an element: whole pixels of a point that nothing covers."""
    x, y = element.click_point or middle(element.box)
    whole = float(round(x)), float(round(y))
    return whole if inside(whole, element.box) else (x, y)


def _area(element: Element) -> float:
    x1, y1, x2, y2 = element.box
    return (x2 - x1) * (y2 - y1)
