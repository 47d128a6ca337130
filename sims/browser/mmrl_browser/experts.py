"""Experts for some of MiniWoB++'s pages: the next action by the instruction and the visible elements, not the page's source.

Used for demonstrations. A page's expert is a function of the instruction, the elements and the actions so far.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from mmrl.api.simulators.gui import Action, Element

Expert = Callable[[str, Sequence[Element], Sequence[Action]], Action | None]
_QUOTED = re.compile(r'"([^"]*)"')


def click(element: Element) -> Action:
    """A click on the element's centre, or on a place where it isn't covered."""
    return Action(kind="click", at=element.click_point)


def named(elements: Sequence[Element], text: str, *roles: str) -> Element | None:
    """The element with this text, among those with one of the roles."""
    wanted = text.strip().lower()
    return next((e for e in elements if e.text.strip().lower() == wanted and (not roles or e.role in roles)), None)


def of_role(elements: Sequence[Element], *roles: str) -> list[Element]:
    return [e for e in elements if e.role in roles]


def _press(element: Element | None) -> Action | None:
    return None if element is None else click(element)


def _only_button(says: str, elements: Sequence[Element], done: Sequence[Action]) -> Action | None:
    return _press(next(iter(of_role(elements, "button")), None))


def _button_named(says: str, elements: Sequence[Element], done: Sequence[Action]) -> Action | None:
    """`Click button ONE.`, `Click on the "Ok" button.`"""
    quoted = _QUOTED.search(says)
    wanted = quoted[1] if quoted else says.rstrip(".").split()[-1]
    return _press(named(elements, wanted, "button"))


def _in_turn(says: str, elements: Sequence[Element], done: Sequence[Action]) -> Action | None:
    """`Click button ONE, then click button TWO.`"""
    wanted = re.findall(r"button (\w+)", says)
    return _press(named(elements, wanted[len(done)], "button")) if len(done) < len(wanted) else None


def _close(says: str, elements: Sequence[Element], done: Sequence[Action]) -> Action | None:
    """`Close the dialog box by clicking the "x".`, or a named button."""
    quoted = _QUOTED.search(says)
    if quoted and (found := named(elements, quoted[1], "button")):
        return click(found)
    buttons = of_role(elements, "button")
    return _press(next((b for b in buttons if b.text.strip().lower() in ("x", "close")), None))


def _field(says: str, elements: Sequence[Element], done: Sequence[Action]) -> Action | None:
    """`Focus into the textbox.`, `Focus into the 2nd input textbox.`"""
    fields = of_role(elements, "textbox")
    ordinal = re.search(r"(\d)(?:st|nd|rd|th)", says)
    place = int(ordinal[1]) - 1 if ordinal else 0
    return click(fields[place]) if place < len(fields) else None


def _tab(says: str, elements: Sequence[Element], done: Sequence[Action]) -> Action | None:
    number = re.search(r"#(\d)", says)
    return _press(next((e for e in elements if number and e.text.endswith(f"#{number[1]}") and e.interactive), None))


def _link(says: str, elements: Sequence[Element], done: Sequence[Action]) -> Action | None:
    quoted = _QUOTED.search(says)
    return _press(next((e for e in elements if quoted and e.text.strip() == quoted[1] and e.interactive), None))


def _typed(says: str, elements: Sequence[Element], done: Sequence[Action]) -> Action | None:
    """`Enter "Ada" into the text field and press Submit.`"""
    quoted = _QUOTED.search(says)
    fields = of_role(elements, "textbox")
    if not quoted or not fields:
        return None
    steps = [click(fields[0]), Action(kind="type", text=quoted[1]), _press(named(elements, "Submit", "button"))]
    return steps[len(done)] if len(done) < len(steps) else None


def _chosen(says: str, elements: Sequence[Element], done: Sequence[Action]) -> Action | None:
    """`Select Ab, Cd and click Submit.`: every box or button with these labels, then Submit."""
    listed = re.match(r"Select (.*?) and click", says)
    wanted = [] if not listed or listed[1] == "nothing" else [name.strip() for name in listed[1].split(",")]
    for name in wanted:
        box = next((e for e in elements if e.text.strip() == name and e.role in ("checkbox", "radio", "label")), None)
        if box is not None and not box.value:
            return click(box)
    return _press(named(elements, "Submit", "button"))


def _point(says: str, elements: Sequence[Element], done: Sequence[Action]) -> Action | None:
    """`Click on the grid coordinate (-2,1).`, on the only picture: 5 by 5 points, 30 pixels apart."""
    place = re.search(r"\((-?\d),(-?\d)\)", says)
    pictures = of_role(elements, "image")
    if place is None or not pictures:
        return None
    left, top, _, _ = pictures[0].box
    return Action(kind="click", at=(left + 75 + 30 * int(place[1]), top + 75 - 30 * int(place[2])))


def _unfolded(says: str, elements: Sequence[Element], done: Sequence[Action]) -> Action | None:
    """`Expand the section below and click submit.`"""
    return _press(named(elements, "Submit", "button") if done else next((e for e in elements if e.interactive), None))


EXPERTS: Mapping[str, Expert] = {
    "click-test": _only_button,
    "click-test-2": _button_named,
    "click-test-transfer": _button_named,
    "click-button": _button_named,
    "click-button-sequence": _in_turn,
    "click-dialog": _close,
    "click-dialog-2": _close,
    "focus-text": _field,
    "focus-text-2": _field,
    "click-tab": _tab,
    "click-link": _link,
    "enter-text": _typed,
    "click-checkboxes": _chosen,
    "click-option": _chosen,
    "grid-coordinate": _point,
    "click-collapsible-nodelay": _unfolded,
}
"""MiniWoB++'s page name -> its expert."""
