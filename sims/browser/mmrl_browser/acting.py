"""Actions on a page, with mouse and keyboard events as from a person."""

from __future__ import annotations

import re
from typing import Any

from mmrl.api.errors import is_finite
from mmrl.api.simulators.gui import Action, Point
from mmrl_browser.page import CLOCK, Page

CLICKS = {
    "click": (1, "left"),
    "double-click": (2, "left"),
    "triple-click": (3, "left"),
    "right-click": (1, "right"),
    "middle-click": (1, "middle"),
}
"""Kind -> (how often, which button)."""
ACTIONS = frozenset((*CLICKS, "long-press", "hover", "drag", "scroll", "type", "key", "wait", "back", "open"))
TYPED, INSERTED = 200, 10_000
"""Maximum characters typed key by key, and inserted line by line; longer texts are refused."""
LONG_PRESS_MS = 700
STEPS = 4
"""Mouse moves of a drag."""
KEYS = frozenset(
    (
        *("Enter", "Tab", "Escape", "Backspace", "Delete", "Space", "Home", "End", "PageUp", "PageDown", "Insert"),
        *("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", *(f"F{n}" for n in range(1, 13))),
    )
)
MODIFIERS = {
    "ctrl": "Control",
    "control": "Control",
    "shift": "Shift",
    "alt": "Alt",
    "meta": "Meta",
    "cmd": "Meta",
    "command": "Meta",
}
OTHERS = {"return": "Enter", "esc": "Escape", "del": "Delete", "up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft"} | {
    **{"right": "ArrowRight", "page_up": "PageUp", "page_down": "PageDown", "pageup": "PageUp", "pagedown": "PageDown"}
}
AREA = """([x, y, across]) => {
  let area = null;
  try {
    const side = (e) => across ? e.clientWidth : e.clientHeight;
    let e = document.elementFromPoint(x, y);
    while (e && e.tagName === "IFRAME" && e.contentDocument) {
      const box = e.getBoundingClientRect(), root = e.contentDocument.documentElement;
      if ((across ? root.scrollWidth : root.scrollHeight) > side(e)) area = side(e);
      x -= box.left + e.clientLeft;
      y -= box.top + e.clientTop;
      e = e.contentDocument.elementFromPoint(x, y);
    }
    for (; e && e.parentNode; e = e.parentElement || e.parentNode.host) {
      const style = getComputedStyle(e), flows = ["auto", "scroll"].includes(across ? style.overflowX : style.overflowY);
      if (flows && (across ? e.scrollWidth : e.scrollHeight) > side(e) && side(e) > 0) return side(e);
    }
  } catch {}
  return area;
}"""
"""The side, in pixels, of what a wheel scrolls at a place; null for the page itself."""
WHEEL = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


class Refused(Exception):
    """An action that isn't possible here; the message says why."""


async def perform(page: Page, action: Action) -> None:
    """Performs an action, without waiting for its effects. Raises Refused for an impossible action, EnvironmentFailed if the page
    hangs."""
    mouse, keyboard = page.page.mouse, page.page.keyboard
    kind = action.kind
    if kind in CLICKS:
        x, y = page.pointer = on_screen(page, action.at)
        times, button = CLICKS[kind]
        await page.within("a click", mouse.click(x, y, click_count=times, button=button))
    elif kind in ("long-press", "hover"):
        x, y = page.pointer = on_screen(page, action.at)
        await page.within(
            "a press" if kind == "long-press" else "a move", _press(page, x, y) if kind == "long-press" else mouse.move(x, y)
        )
    elif kind == "drag":
        if action.at is None and page.pointer is None:
            raise Refused("the drag needs a place where it starts: the pointer was nowhere yet")
        start, end = on_screen(page, action.at or page.pointer), on_screen(page, action.to)
        page.pointer = end
        await page.within("a drag", _drag(page, start, end))
    elif kind == "scroll":
        if action.direction is None:
            raise Refused("a scroll needs a direction: up, down, left or right")
        x, y = page.pointer = on_screen(page, action.at) if action.at else (page.size[0] / 2, page.size[1] / 2)
        await page.within("scrolling", _scroll(page, x, y, action.direction))
    elif kind == "type":
        if len(action.text) > INSERTED:
            raise Refused(f"a text of {len(action.text):,} characters is too long to type: at most {INSERTED:,}")
        text = action.text.replace("\r\n", "\n")
        if (lines := text.count("\n") + 1) > TYPED:
            raise Refused(f"a text of {lines:,} lines is too long to type: at most {TYPED:,}")
        if action.at is not None:
            x, y = page.pointer = on_screen(page, action.at)
            await page.within("a click", mouse.click(x, y))
        await page.within("typing", _type(keyboard, text))
    elif kind == "key":
        await page.within("a key", keyboard.press(key_of(action.text)))
    elif kind == "back":
        history = await page.within("its history", page.session.send("Page.getNavigationHistory"))
        if history["currentIndex"] < 1:
            raise Refused("there is nothing to go back to")
        await page.within("going back", page.page.go_back(wait_until="load"))
    elif kind != "wait":
        raise Refused(f"{kind} can't be done in a browser: it knows {', '.join(sorted(ACTIONS))}")


def on_screen(page: Page, at: Point | None) -> Point:
    """The action's place. Raises Refused without a place, or for one off the screen."""
    if at is None:
        raise Refused("the action needs a place")
    x, y = at
    width, height = page.size
    if not (0 <= x <= width and 0 <= y <= height):  # also NaN
        raise Refused(f"({x:g}, {y:g}) is off the screen of {width} x {height}")
    return min(x, width - 1), min(y, height - 1)


def key_of(text: str) -> str:
    """A key by Playwright's name, such as `Control+A`. Raises Refused for an unknown key."""
    if len(text) > 40:
        raise Refused(f"{text[:20]!a}... is no key")
    *before, last = re.split(r"\s*[+-]\s*", text.strip()) if len(text.strip()) > 1 else [text.strip() or " "]
    held = [MODIFIERS.get(name.lower()) for name in before]
    if None in held:
        raise Refused(f"{text!a} is no key: before the last one stand Control, Shift, Alt or Meta")
    known = {name.lower(): name for name in KEYS}
    key = OTHERS.get(last.lower()) or known.get(last.lower()) or (last if len(last) == 1 and " " <= last <= "~" else None)
    if key is None:
        raise Refused(f"{text!a} is no key: such as Enter, Tab, ArrowDown, a, Control+A; other signs are typed")
    return "+".join([*(name for name in held if name), key])


async def _type(keyboard: Any, text: str) -> None:
    """Types a text; a line break is the key Enter."""
    if len(text) <= TYPED:
        await keyboard.type(text)
        return
    first, *others = text.split("\n")
    await keyboard.insert_text(first)
    for line in others:
        await keyboard.press("Enter")
        await keyboard.insert_text(line)


async def _press(page: Page, x: float, y: float) -> None:
    await page.page.mouse.move(x, y)
    await page.page.mouse.down()
    await page.wait(LONG_PRESS_MS)
    await page.page.mouse.up()


async def _drag(page: Page, start: Point, end: Point) -> None:
    mouse = page.page.mouse
    await mouse.move(*start)
    await mouse.down()
    await mouse.move(*end, steps=STEPS)
    await mouse.up()


async def _scroll(page: Page, x: float, y: float, direction: str) -> None:
    """Scrolls by three quarters of what scrolls at this place, a list or the whole page, so that nothing is skipped unseen."""
    right, down = WHEEL[direction]
    most = page.size[0] if right else page.size[1]
    shown = await page.script(AREA, [x, y, bool(right)])
    if not is_finite(shown) or not 1 <= shown <= most:  # the page has replaced functions that measure it, or is larger
        shown = most
    await page.page.mouse.move(x, y)
    await page.page.mouse.wheel(0.75 * shown * right, 0.75 * shown * down)
    await page.script(f"() => window.{CLOCK}.drawn()")
