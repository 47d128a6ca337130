"""Generated pages rendered by a browser: a picture, and the true box of each element, cached in bounded memory."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrl import EnvironmentFailed, UserError
from mmrl.api.services import screens_of
from mmrl.api.simulators.gui import Box, Element, Screen, ScreenObservation, Screens
from mmrl_gui.exploring import Step
from mmrl_gui.phrases import fold
from mmrl_gui.sheet import Page

if TYPE_CHECKING:
    from PIL.Image import Image

KEPT_BYTES = 64 * 2**20
"""Maximal bytes of PNG pictures in one renderer's cache: about two thousand screens of a telephone."""
TRIES = 3
"""Number of attempts at one page, each with a new browser."""
LEAST = 6.0
"""Minimal side in pixels of an element in a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A rendered page, and, if there was an action, its rendering after that."""

    pngs: tuple[bytes, ...]
    """Its pictures in order."""
    boxes: Mapping[int, Box]
    """Number of an element -> its box in pixels of the first picture; only of fully visible clickable ones."""
    step: Step | None = None
    """The action that led from the first picture to the second."""

    @property
    def pictures(self) -> list[Image]:
        from PIL import Image

        opened: list[Image.Image] = [Image.open(io.BytesIO(png)) for png in self.pngs]
        for one in opened:
            one.load()
        return opened


Does = Callable[[Screen, ScreenObservation], "Rendered | None"]
"""Makes a rendering from a page that is shown on a screen; None if the page is unsuitable."""


class Renderer:
    """Renders pages on screens that take HTML. Recent renderings are cached."""

    def __init__(self, screens: str, size: tuple[int, int]) -> None:
        """screens: the id of a simulator whose pages are HTML. size: (width, height) in pixels. Nothing is started yet."""
        self.id, self.size = screens, size
        self._screens: Screens | None = None
        self._kept: OrderedDict[str, Rendered | None] = OrderedDict()
        self._lock = threading.Lock()

    def show(self, page: Page, does: Does | None = None, key: str = "") -> Rendered | None:
        """The rendering of a page, or the result of `does`. key: distinguishes several results for the same page.

        Raises UserError if there is no such browser, or it failed repeatedly.
        """
        key = f"{key}\n{hashlib.sha256(page.html.encode()).hexdigest()}"  # pages are as large as their pictures
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            self._screens = self._screens or screens_of(self.id, {"size": list(self.size)})
            self._kept[key] = rendered = self._made(page, self._screens, does or self._at_first(page))
            while sum(map(_bytes, self._kept.values())) > KEPT_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)
            return rendered

    def _at_first(self, page: Page) -> Does:
        return lambda screen, shown: Rendered(pngs=(png(shown),), boxes=boxes_of(page, shown.elements, self.size))

    def _made(self, page: Page, screens: Screens, does: Does) -> Rendered | None:
        lost = ""
        for _ in range(TRIES):
            screen = screens.open(elements=True)
            try:
                return does(screen, screen.start(page.html, 0))
            except EnvironmentFailed as why:
                lost = str(why)
            finally:
                screen.close()
        raise UserError(f"the browser failed {TRIES} times on a page ({lost}): run mmrl doctor")


def png(shown: ScreenObservation) -> bytes:
    """The screenshot of an observation as PNG. Raises UserError if there is none."""
    if shown.screenshot is None:
        raise UserError("the screens show no picture of a page: use browser/html")
    held = io.BytesIO()
    shown.screenshot.convert("RGB").save(held, "PNG")
    return held.getvalue()


def _bytes(rendered: Rendered | None) -> int:
    return 100 if rendered is None else 100 + sum(map(len, rendered.pngs))


def boxes_of(page: Page, elements: Sequence[Element], size: tuple[int, int]) -> dict[int, Box]:
    """Number of an element of the page -> its box, from the browser's list of clickable elements.

    Elements are matched by role and name; those with equal names (a button on every card) are in the page's order, from the top
    and from the left, and missing ones are missing at the end of the list, where the page is cut off.
    """
    named: defaultdict[tuple[str, str], list[Element]] = defaultdict(list)
    for element in elements:
        if element.interactive:
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
        return {}  # the list has another element with the same name
    return {number: box for number, box in found.items() if not any(_cross(box, other) for other in found.values())}


def is_whole(box: Box, size: tuple[int, int]) -> bool:
    """Whether a box can be hit and lies on the screen, away from its edges, where it may be cut off."""
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
    """A common name for roles that only one of the lists distinguishes."""
    return _FAMILIES.get(role, "press")


def _cross(a: Box, b: Box) -> bool:
    """Whether two boxes overlap and neither is in the other: one lies over an edge of the other."""
    apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    return not (apart or _in(a, b) or _in(b, a))


def _in(a: Box, b: Box) -> bool:
    return b[0] <= a[0] and b[1] <= a[1] and a[2] <= b[2] and a[3] <= b[3]
