"""Names of actions and of keys: ours, and those of other systems.

The published sets of actions are those of AndroidControl and AndroidWorld (`action_type`), UI-TARS's action_parser.py, OSWorld's
computer_13 and pyautogui, Qwen's computer_use and mobile_use, the computer-use tools of Anthropic and OpenAI, and GUI-Odyssey's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.api.simulators.gui import DIRECTIONS

SAME: Mapping[str, Sequence[str]] = {
    "click": ("click", "tap", "left_click", "leftclick", "left_single", "touch", "mouse_click", "click_element"),
    "double-click": ("double_click", "doubleclick", "dblclick", "double_tap", "left_double"),
    "triple-click": ("triple_click", "tripleclick", "left_triple"),
    "right-click": ("right_click", "rightclick", "right_single", "context_click"),
    "middle-click": ("middle_click", "middleclick"),
    "long-press": ("long_press", "longpress", "long_click", "long_tap", "press_and_hold"),
    "hover": ("hover", "mouse_move", "move_to", "moveto", "move_mouse", "move"),
    "drag": ("drag", "swipe", "left_click_drag", "drag_and_drop", "drag_to", "dragto", "select_text"),
    "scroll": ("scroll", "hscroll", "vscroll"),
    "type": ("type", "input_text", "input", "type_text", "enter_text", "write", "typewrite", "typing", "set_text", "fill"),
    "key": ("key", "press_key", "keypress", "hotkey", "press", "keyboard_enter", "enter", "system_button", "press_recent"),
    "wait": ("wait", "sleep", "noop", "no_op", "screenshot"),
    "back": ("back", "navigate_back", "press_back", "go_back"),
    "home": ("home", "navigate_home", "press_home", "go_home"),
    "open": ("open", "open_app", "launch", "launch_app", "goto", "navigate"),
    "answer": (
        *("answer", "terminate", "finish", "finished", "complete", "done", "status"),
        *("fail", "impossible", "incomplete", "call_user"),
    ),
}
"""Our kind -> its names in other systems."""
KINDS: Mapping[str, str] = {name: kind for kind, names in SAME.items() for name in names}
SELECT = "select"
"""A kind that only recorded steps have, and only a task whose `kinds` name it offers: an option of a list is chosen."""
WITH_SELECT: Mapping[str, str] = {**KINDS, **dict.fromkeys(("select", "select_option", "choose"), SELECT)}
"""`KINDS` where it is offered, with its names in Mind2Web, BrowserGym and Playwright."""
DONE = ("done", "success", "successful", "complete", "completed", "finished", "")
IMPOSSIBLE = ("infeasible", "fail", "failure", "impossible", "incomplete", "call_user")
"""Answers that end an episode and are no answer to a question: in the words of OSWorld, of Qwen's `terminate`, of AndroidWorld's
`status`, of GUI-Odyssey and of UI-TARS, whose `call_user` is for a task that can't be done."""
_MODIFIERS = {
    **{"ctrl": "Control", "control": "Control", "alt": "Alt", "option": "Alt", "shift": "Shift"},
    **dict.fromkeys(("cmd", "command", "meta", "super", "win"), "Meta"),
}
_NAMED = ("Enter", "Escape", "Tab", "Backspace", "Delete", "Home", "End", "PageUp", "PageDown", "Space")
_KEYS = {
    **{key.lower(): key for key in _NAMED},
    **{f"{before}{d}": f"Arrow{d.title()}" for before in ("", "arrow") for d in DIRECTIONS},
    **{"return": "Enter", "esc": "Escape", "del": "Delete", "pgup": "PageUp", "pgdn": "PageDown"},
}


class NoAction(ValueError):
    """A completion is not an action. The message says why, in one line."""


def kind_of(name: str, names: Mapping[str, str] = KINDS) -> str:
    """The kind of an action by any of its names. Raises NoAction."""
    if plain(name) not in names:
        raise NoAction(f"there is no action called {name!r:.40}")
    return names[plain(name)]


def offered(meta: Mapping[str, Any]) -> Mapping[str, str]:
    """The names of the actions that a prompt offers, each with its kind. meta: the prompt's; its `selects` offers `select`."""
    return WITH_SELECT if meta.get("selects") else KINDS


def plain(text: str) -> str:
    """A name in small letters, with `_` between its words."""
    return "_".join(text.strip().lower().replace("-", " ").replace("_", " ").split())[:60]


def status(text: str) -> str:
    """`done` or `infeasible` for an answer that ends an episode, in any of its names; another answer as it is."""
    said = plain(text)
    return "done" if said in DONE else "infeasible" if said in IMPOSSIBLE else text


def key_of(text: str) -> str:
    """A key, or several joined by +, or by blanks as UI-TARS writes them, with browsers' names: `ctrl+a` is `Control+a`; empty if
    it is not a key."""
    if text[:100].partition(" ")[0].strip().lower() in _MODIFIERS and "+" not in text:
        text = "+".join(text[:100].split())
    parts = [part.strip() for part in text.strip()[:100].split("+")] if text.strip() != "+" else ["+"]
    if not all(parts):
        return ""
    return "+".join(_MODIFIERS.get(p.lower()) or _KEYS.get(p.lower().replace(" ", "").replace("_", "")) or p for p in parts)


def is_held(key: str) -> bool:
    """Whether a key, by browsers' names, is one that is held while another is pressed, or several such."""
    return bool(key) and set(key.split("+")) <= set(_MODIFIERS.values())
