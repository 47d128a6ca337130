"""Screens that are looked at and acted on, a web page's or a phone's: what they show, and what can be done to them.

A plugin that drives some says so with `SimulatorSpec(screens=True)`; tasks reach them by id, with `screens_of`, and know no
plugin. Places are pixels of the screen's picture, x to the right and y down from its top left corner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args, runtime_checkable

if TYPE_CHECKING:
    from PIL.Image import Image

ActionKind = Literal[
    "click", "double-click", "long-press", "drag", "scroll", "type", "key", "wait", "back", "home", "open", "answer"
]
ACTION_KINDS: tuple[str, ...] = get_args(ActionKind)
Direction = Literal["up", "down", "left", "right"]
DIRECTIONS: tuple[str, ...] = get_args(Direction)
Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""x1, y1, x2, y2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing done to a screen."""

    kind: ActionKind
    at: Point | None = None
    """Where: of a click, a press, the start of a drag, and of a scroll where it isn't the middle of the screen."""
    to: Point | None = None
    """Where a drag ends."""
    text: str = ""
    """What is typed; the key, such as Enter or Control+A; the app or the page that is opened; the answer."""
    direction: Direction | None = None
    """Of a scroll: `down` shows what is further down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A thing on a screen that can be seen, as the page or the app itself says."""

    box: Box
    role: str
    """What it is: button, link, textbox, checkbox, text, ..."""
    text: str = ""
    """What is written on it, or what it is called where nothing is."""
    value: str = ""
    """What it holds: a field's text, `checked`, an option that is chosen."""
    icon: bool = False
    """It shows a picture and no text."""
    interactive: bool = False
    """It can be clicked or typed into."""
    click_point: Point | None = None
    """A place on it that nothing covers: its middle where that is free. None where nobody looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenObservation:
    """A screen at one moment, and what the page made of the last action."""

    screenshot: Image | None = None
    """None once the episode is over, where nobody looks."""
    instruction: str = ""
    """What is to be done."""
    elements: tuple[Element, ...] = ()
    """From top to bottom; only where they were asked for."""
    reward: float = 0.0
    """What the page pays for this action by its own rule, time included, -1 to 1."""
    raw_reward: float = 0.0
    """The same without the time that it took."""
    terminated: bool = False
    """The episode is over."""
    success: bool = False
    """What was to be done is done."""
    notes: tuple[str, ...] = ()
    """What was refused or happened aside, for people and for the policy: a dialog, another host, a place off the screen."""


@runtime_checkable
class Screen(Protocol):
    """One screen, in the hands of one episode. Its methods are called from any thread, one at a time, and raise
    `mmrl.EnvironmentFailed` where it crashed or hung."""

    def start(self, page: str, seed: int, picture: bool = True) -> ScreenObservation:
        """The page anew, drawn from the seed alone, whatever was shown before. picture: False where nobody will look at it."""
        ...

    def act(self, action: Action) -> ScreenObservation:
        """What follows. An action that makes no sense here does nothing and leaves a note."""
        ...

    def expert_action(self) -> Action | None:
        """What someone who knows the page would do now; None where nobody does."""
        ...

    def close(self) -> None:
        """Gives the screen back."""
        ...


@runtime_checkable
class Screens(Protocol):
    """What a spec with `screens=True` makes, as `target(**options)`."""

    size: tuple[int, int]
    """(width, height) of pictures, in pixels."""
    pages: Sequence[str]
    """What `Screen.start` knows."""
    actions: frozenset[str]
    """Of `ACTION_KINDS`."""

    def open(self, elements: bool = False) -> Screen:
        """A screen that nobody else has. elements: its `ScreenObservation` should list them."""
        ...
