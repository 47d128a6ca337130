"""GUI environments, such as web pages and phones: observations of a screen, and actions on it.

A plugin with such environments declares them with `SimulatorSpec(screens=True)`. Tasks get them by id with `screens_of`, without
importing the plugin. Coordinates are pixels of the screenshot: x to the right and y down from the top left corner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args, runtime_checkable

if TYPE_CHECKING:
    from PIL.Image import Image

ActionKind = Literal[
    "click",
    "double-click",
    "triple-click",
    "right-click",
    "middle-click",
    "long-press",
    "hover",
    "drag",
    "scroll",
    "type",
    "key",
    "wait",
    "back",
    "home",
    "open",
    "answer",
]
ACTION_KINDS: tuple[str, ...] = get_args(ActionKind)
Direction = Literal["up", "down", "left", "right"]
DIRECTIONS: tuple[str, ...] = get_args(Direction)
Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""x1, y1, x2, y2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action on a screen."""

    kind: ActionKind | Literal["select"]
    """`select`, which chooses an option of a list, is in recorded steps alone: no screen can do it."""
    at: Point | None = None
    """The point of a click, a press or a hover, the start of a drag (by default where the pointer is), the point of a scroll (by
    default the middle of the screen), or of the field that is clicked before a text is typed (by default none);
    of the list of a select."""
    to: Point | None = None
    """The end of a drag."""
    text: str = ""
    """The text to type; the key, such as Enter or Control+A; the app or page to open; the answer; the option to select."""
    direction: Direction | None = None
    """The direction of a scroll: `down` shows what is further down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A visible element of a screen, from the page's or app's accessibility data."""

    box: Box
    role: str
    """The kind of element: button, link, textbox, checkbox, text, ..."""
    text: str = ""
    """Its visible text, or else its accessible name."""
    value: str = ""
    """Its state: a field's text, `checked`, a selected option."""
    icon: bool = False
    """It shows an image and no text."""
    interactive: bool = False
    """It can be clicked or typed into."""
    click_point: Point | None = None
    """A point on it that no other element covers, if possible its middle. None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenObservation:
    """The observation of a screen at one moment, and the result of the last action."""

    screenshot: Image | None = None
    """May be None after the end of the episode, or for `start(picture=False)`."""
    instruction: str = ""
    """The goal of the episode."""
    elements: tuple[Element, ...] = ()
    """Visible elements from top to bottom; only with `open(elements=True)`."""
    reward: float = 0.0
    """The page's own reward for this action, time penalty included, -1 to 1."""
    raw_reward: float = 0.0
    """The reward without the time penalty."""
    terminated: bool = False
    """The episode is over."""
    success: bool = False
    """The goal is reached."""
    notes: tuple[str, ...] = ()
    """Refused actions and side events, for people and the policy: a dialog, another host, a point off the screen."""


@runtime_checkable
class Screen(Protocol):
    """One screen, used by one episode. Its methods are called from any thread, one at a time, and raise
    `mmrl.EnvironmentFailed` if the screen crashed or hung."""

    def start(self, page: str, seed: int, picture: bool = True) -> ScreenObservation:
        """Start an episode on a page. The observation depends on the page and the seed alone. picture: False if no screenshot is
        needed. Raises UserError for an unknown page."""
        ...

    def act(self, action: Action) -> ScreenObservation:
        """Carry out an action and return the next observation. An impossible action does nothing and leaves a note."""
        ...

    def expert_action(self) -> Action | None:
        """The expert's next action; None if the page has no expert."""
        ...

    def close(self) -> None:
        """Release the screen."""
        ...


@runtime_checkable
class Screens(Protocol):
    """A pool of screens: the target of a spec with `screens=True` makes it, as `target(**options)`."""

    size: tuple[int, int]
    """(width, height) of screenshots, in pixels."""
    pages: Sequence[str]
    """The pages that `Screen.start` knows."""
    actions: frozenset[str]
    """The kinds of actions that are possible, a subset of `ACTION_KINDS`."""

    def open(self, elements: bool = False) -> Screen:
        """Get an unused screen. elements: whether its observations list the visible elements."""
        ...
