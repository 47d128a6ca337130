"""Drawn pages as a browser shows them: a picture, and the true box of each thing, within a bound of memory."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrl import UserError, WorldLost
from mmrl.screens import Box, Element, Screens, screens_of
from mmrl_gui.phrases import fold
from mmrl_gui.sheet import Page

if TYPE_CHECKING:
    from PIL.Image import Image

KEPT_BYTES = 64 * 2**20
"""Of pictures as PNG, by one renderer: some two thousand screens of a telephone."""
TRIES = 3
"""Browsers that may be lost over one page."""
LEAST = 6.0
"""Pixels of a side that a thing must have to be asked for."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page as it is seen."""

    png: bytes
    boxes: Mapping[int, Box]
    """Number of a thing -> its box in pixels of the picture; only of what is seen whole and can be clicked."""

    @property
    def picture(self) -> Image:
        from PIL import Image

        opened = Image.open(io.BytesIO(self.png))
        opened.load()
        return opened


class Renderer:
    """Shows pages on screens that take HTML. Pages that were shown lately are kept."""

    def __init__(self, screens: str, size: tuple[int, int]) -> None:
        """screens: the id of a simulator whose pages are HTML. size: (width, height) in pixels. Nothing is started yet."""
        self.id, self.size = screens, size
        self._screens: Screens | None = None
        self._kept: OrderedDict[str, Rendered] = OrderedDict()
        self._lock = threading.Lock()

    def show(self, page: Page) -> Rendered:
        """A page as it is seen at first. Raises UserError where there is no such browser, or it was lost again and again."""
        with self._lock:
            if found := self._kept.get(page.html):
                self._kept.move_to_end(page.html)
                return found
            self._screens = self._screens or screens_of(self.id, {"size": list(self.size)})
            rendered = self._rendered(page, self._screens)
            self._kept[page.html] = rendered
            while sum(len(r.png) for r in self._kept.values()) > KEPT_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)
            return rendered

    def _rendered(self, page: Page, screens: Screens) -> Rendered:
        lost = ""
        for _ in range(TRIES):
            screen = screens.open(elements=True)
            try:
                shown = screen.start(page.html, 0)
            except WorldLost as why:
                lost = str(why)
                continue
            finally:
                screen.close()
            if shown.picture is None:
                raise UserError(f"screens {self.id!r} show no picture of a page: take browser/html")
            held = io.BytesIO()
            shown.picture.convert("RGB").save(held, "PNG")
            return Rendered(held.getvalue(), boxes_of(page, shown.elements, self.size))
        raise UserError(f"the browser was lost {TRIES} times over a page ({lost}): see mmrl doctor")


def boxes_of(page: Page, elements: Sequence[Element], size: tuple[int, int]) -> dict[int, Box]:
    """Number of a thing -> its box, from a list of what can be clicked on a page.

    Things are found by what they are and by their names; those of equal names (a button on every card) come in the page's order,
    from the top and from the left, and what is missing in the list is missing at its end, being cut off there.
    """
    named: defaultdict[tuple[str, str], list[Element]] = defaultdict(list)
    for element in elements:
        if element.active:
            named[_family(element.role), fold(element.text)].append(element)
    taken: defaultdict[tuple[str, str], int] = defaultdict(int)
    found: dict[int, Box] = {}
    for thing in page.things:
        if thing.covered:
            continue
        key = (_family(thing.role), fold(thing.name))
        listed, at = named[key], taken[key]
        taken[key] += 1
        if at < len(listed) and is_whole(box := listed[at].box, size):
            found[thing.number] = box
    if any(len(named[key]) > count for key, count in taken.items()):
        return {}  # the list has something of a thing's name that is none
    return {number: box for number, box in found.items() if not any(_cross(box, other) for other in found.values())}


def is_whole(box: Box, size: tuple[int, int]) -> bool:
    """Whether a box lies on the screen, away from its edges, where it may be cut off, and can be hit."""
    x1, y1, x2, y2 = box
    return min(x1, y1) > 0 and x2 < size[0] and y2 < size[1] and min(x2 - x1, y2 - y1) >= LEAST


_FAMILIES = {
    "textbox": "field",
    "searchbox": "field",
    "checkbox": "check",
    "radio": "check",
    "switch": "check",
    "slider": "slider",
    "combobox": "choice",
}


def _family(role: str) -> str:
    """Roles that one list tells apart and another doesn't."""
    return _FAMILIES.get(role, "press")


def _cross(a: Box, b: Box) -> bool:
    """Whether two boxes overlap and neither is in the other: one of the things lies over an edge of the other."""
    apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    return not (apart or _in(a, b) or _in(b, a))


def _in(a: Box, b: Box) -> bool:
    return b[0] <= a[0] and b[1] <= a[1] and a[2] <= b[2] and a[3] <= b[3]
