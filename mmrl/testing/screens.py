"""The rules for simulators with screens: observations depend on page and seed alone, and no action breaks a screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.simulators.gui import ACTION_KINDS, DIRECTIONS, Action, Element, Screen, ScreenObservation, Screens
from mmrl.api.specs import SimulatorSpec
from mmrl.testing.checks import CheckFailed, Report, run_checks
from mmrl.testing.sample import other_random_states, random_states

PAGES = 3
"""Number of pages that are checked, spread evenly over all pages."""
SEEDS = (11, 12, 13)
UNKNOWN = "no such page"


@dataclass
class ScreensSubject:
    """Screens under test, and the pages that are checked."""

    spec: SimulatorSpec
    screens: Screens

    @property
    def pages(self) -> list[str]:
        known = self.screens.pages
        return [known[i * (len(known) - 1) // max(min(PAGES, len(known)) - 1, 1)] for i in range(min(PAGES, len(known)))]

    @contextmanager
    def screen(self, elements: bool = True) -> Iterator[Screen]:
        """An open screen that is closed at the end."""
        screen = self.screens.open(elements=elements)
        try:
            yield screen
        finally:
            screen.close()


def check_screens(
    spec: SimulatorSpec, make: Callable[..., Any] | None = None, options: Mapping[str, Any] | None = None
) -> Report:
    """Check screens. make: makes screens that are not installed; by default the registry makes them."""
    from mmrl.registry import plugins

    screens = make(**(options or {})) if make else plugins.registry().make_screens(spec.id, options)
    return Report(spec.id, "simulator", run_checks(ScreensSubject(spec, screens), GATES, CHECKS))


def screens_are_as_declared(subject: ScreensSubject) -> str | None:
    """The screens have a size, page names, and kinds of actions."""
    screens = subject.screens
    lacks = [name for name in ("size", "pages", "actions", "open") if not hasattr(screens, name)]
    if lacks:
        raise CheckFailed(f"`{type(screens).__name__}` has no {', '.join(lacks)}: see mmrl.api.simulators.gui.Screens")
    size = screens.size
    if not (isinstance(size, tuple) and len(size) == 2 and all(isinstance(v, int) and v > 0 for v in size)):
        raise CheckFailed(f"size is {size!r:.60}: make it (width, height), two whole numbers of pixels")
    if isinstance(screens.pages, str) or not all(isinstance(page, str) for page in screens.pages):
        raise CheckFailed(f"pages is {screens.pages!r:.60}: make it a sequence of names")
    if not screens.actions or not set(screens.actions) <= set(ACTION_KINDS):
        raise CheckFailed(f"actions are {sorted(map(str, screens.actions))}: name some of {', '.join(ACTION_KINDS)}")
    return None if screens.pages else "it names no pages, so the other checks are skipped"


def a_start_shows_a_page(subject: ScreensSubject) -> str | None:
    """A start gives an RGB screenshot of the declared size, an instruction and, with `elements=True`, elements on the screen."""
    for page in subject.pages:
        for elements in (False, True):
            with subject.screen(elements) as screen:
                shown = screen.start(page, SEEDS[0])
                _check(subject, shown, f"start({page!r}, {SEEDS[0]})")
                if shown.terminated:
                    raise CheckFailed(f"page {page!r} is over before the first action: set terminated only after an action")
                if shown.elements and not elements:
                    raise CheckFailed(f"page {page!r} lists elements with open(elements=False): list them only when asked to")
    return _looked(subject)


def an_unknown_page_is_refused(subject: ScreensSubject) -> str | None:
    """An unknown page raises UserError."""
    if not subject.pages:
        return _looked(subject)
    with subject.screen() as screen:
        try:
            screen.start(UNKNOWN, SEEDS[0])
        except UserError:
            return None
        except Exception as error:
            raise CheckFailed(f"an unknown page raised {type(error).__name__}: raise mmrl.UserError with one line") from error
    raise CheckFailed("an unknown page was shown: raise mmrl.UserError, or a run trains on the wrong page")


def same_seed_gives_same_page(subject: ScreensSubject) -> str | None:
    """The same page and seed give the same observations, to the pixel: on the same screen after an action, on another screen,
    after another page, after a start without a screenshot, and for any state of the global random generators."""
    for page in subject.pages:
        with subject.screen() as screen:
            first = _played(screen, page, SEEDS[0])
            with other_random_states(1):
                _compare(page, first, _played(screen, page, SEEDS[0]), "on the same screen, started again")
        with other_random_states(2), subject.screen() as screen:
            screen.start(subject.pages[-1], SEEDS[1])
            screen.act(Action(kind="wait"))
            _compare(page, first, _played(screen, page, SEEDS[0]), "on another screen, after another page")
            again = _played(screen, page, SEEDS[0], picture=False)
            _compare(page, first[1:], again[1:], "after a start without a screenshot")
    return _looked(subject)


def seeds_make_a_difference(subject: ScreensSubject) -> str | None:
    """Different seeds should give different starts; if they don't, a note says that all episodes of the page begin alike."""
    alike = []
    for page in subject.pages:
        with subject.screen() as screen:
            if len({_seen(screen.start(page, seed)) for seed in SEEDS}) == 1:
                alike.append(page)
    if alike:
        return f"{len(SEEDS)} seeds show the same on {', '.join(map(repr, alike))}: its episodes begin alike, in every split"
    return _looked(subject)


def screens_stand_apart(subject: ScreensSubject) -> str | None:
    """Actions on one screen don't change another open screen."""
    for page in subject.pages:
        with subject.screen() as alone:
            first = _played(alone, page, SEEDS[0])
        with subject.screen() as one, subject.screen() as other:
            shown = [one.start(page, SEEDS[0])]
            other.start(page, SEEDS[1])
            for action in _actions(subject)[:4]:
                if other.act(action).terminated:
                    other.start(page, SEEDS[1])
            shown.append(one.act(Action(kind="wait")))
            _compare(page, first, shown, "while another screen was used")
    return _looked(subject)


def every_action_leaves_it_usable(subject: ScreensSubject) -> str | None:
    """Each kind of action gives a well-formed `ScreenObservation`. Impossible actions (unsupported kinds, points off the screen,
    unknown keys) leave a note and don't raise."""
    for page in subject.pages:
        with subject.screen() as screen:
            over, nonsense = True, _nonsense(subject)
            for number, action in enumerate([*nonsense, *_actions(subject)]):
                if over:
                    screen.start(page, SEEDS[0])
                shown = screen.act(action)
                who = f"{action.kind} on page {page!r}"
                _check(subject, shown, who)
                over = shown.terminated
                if number < len(nonsense) and not shown.notes:
                    raise CheckFailed(f"{who}, {_details(action)}, is impossible and leaves no note: give the reason in `notes`")
    return _looked(subject)


def advice_is_an_action(subject: ScreensSubject) -> str | None:
    """`expert_action` gives a possible action or None, and changes nothing."""
    none = []
    for page in subject.pages:
        with subject.screen() as screen:
            first = _played(screen, page, SEEDS[0])
            shown = screen.start(page, SEEDS[0])
            found = screen.expert_action()
            if found is None:
                none.append(page)
                continue
            if not isinstance(found, Action) or found.kind not in subject.screens.actions:
                raise CheckFailed(f"the expert action on page {page!r} is {found!r:.80}: give an Action of a kind in `actions`")
            _check_places(subject, found, f"the expert action on page {page!r}")
            _compare(page, first, [shown, screen.act(Action(kind="wait"))], "after expert_action() was called")
    return f"no expert on {', '.join(map(repr, none))}" if none else _looked(subject)


def global_random_state_is_untouched(subject: ScreensSubject) -> str | None:
    """The screens neither draw from nor seed the global random generators."""
    before = random_states()
    for page in subject.pages:
        with subject.screen() as screen:
            _played(screen, page, SEEDS[0])
    for library, state in random_states().items():
        if library in before and before[library] != state:
            raise CheckFailed(f"showing a page changed the global generator of {library}: draw from random.Random(seed)")
    return _looked(subject)


GATES = (screens_are_as_declared, a_start_shows_a_page)
CHECKS = (
    an_unknown_page_is_refused,
    same_seed_gives_same_page,
    seeds_make_a_difference,
    screens_stand_apart,
    every_action_leaves_it_usable,
    advice_is_an_action,
    global_random_state_is_untouched,
)


def _looked(subject: ScreensSubject) -> str | None:
    return None if subject.pages else "skipped: it names no pages"


def _played(screen: Screen, page: str, seed: int, picture: bool = True) -> list[ScreenObservation]:
    """The observations of a start and of a wait action."""
    return [screen.start(page, seed, picture=picture), screen.act(Action(kind="wait"))]


def _seen(shown: ScreenObservation) -> tuple[Any, ...]:
    screenshot = None if shown.screenshot is None else (shown.screenshot.size, shown.screenshot.tobytes())
    return (shown.instruction, shown.elements, shown.reward, shown.raw_reward, shown.terminated, shown.success, screenshot)


def _compare(page: str, first: Sequence[ScreenObservation], again: Sequence[ScreenObservation], when: str) -> None:
    names = ("instruction", "elements", "reward", "raw_reward", "terminated", "success", "screenshot")
    for moment, (one, other) in enumerate(zip(first, again, strict=True)):
        for name, a, b in zip(names, _seen(one), _seen(other), strict=True):
            if a != b:
                raise CheckFailed(
                    f"the {name} of page {page!r} differs at step {moment}, {when}: draw everything from the seed, use no clock, "
                    "and keep nothing between starts"
                )


def _actions(subject: ScreensSubject) -> list[Action]:
    """One action of each possible kind, in the middle of the screen."""
    width, height = subject.screens.size
    middle, beside = (width / 2, height / 2), (width / 2, height / 4)
    texts = {"key": "Enter"}
    pressed = ("click", "double-click", "triple-click", "right-click", "middle-click", "long-press", "hover", "drag")
    return [
        Action(
            kind=kind,  # type: ignore[arg-type]  # of KINDS
            at=middle if kind in pressed else None,
            to=beside if kind == "drag" else None,
            text=texts.get(kind, "tea") if kind in ("key", "type", "open", "answer") else "",
            direction="down" if kind == "scroll" else None,
        )
        for kind in ACTION_KINDS
        if kind in subject.screens.actions
    ]


def _nonsense(subject: ScreensSubject) -> list[Action]:
    """Impossible actions: unsupported kinds, points off the screen, an unknown key."""
    width = subject.screens.size[0]
    others: Any = [kind for kind in ACTION_KINDS if kind not in subject.screens.actions]
    found = [Action(kind=kind, at=(1, 1), to=(2, 2), text="x", direction="up") for kind in others]
    if "click" in subject.screens.actions:
        found += [Action(kind="click", at=at) for at in ((width + 50, 1), (1, -50), (math.nan, 1), (10.0**9, 10.0**9))]
        found.append(Action(kind="click"))
    if "key" in subject.screens.actions:
        found.append(Action(kind="key", text="no such key"))
    return found


def _details(action: Action) -> str:
    return f"at {action.at}" if action.kind == "click" else f"with the text {action.text!r}"


def _check(subject: ScreensSubject, shown: ScreenObservation, who: str) -> None:
    """Check an observation."""
    from PIL.Image import Image

    if not isinstance(shown, ScreenObservation):
        raise CheckFailed(f"{who} gave a {type(shown).__name__}: give a mmrl.api.simulators.gui.ScreenObservation")
    picture = shown.screenshot
    if picture is None and not shown.terminated:
        raise CheckFailed(f"{who} has no screenshot, and the episode isn't over: give one")
    if picture is not None and (not isinstance(picture, Image) or picture.mode != "RGB" or picture.size != subject.screens.size):
        what = f"{picture.mode} {picture.size}" if isinstance(picture, Image) else type(picture).__name__
        raise CheckFailed(f"{who} has a screenshot of {what}: make it an RGB PIL image of {subject.screens.size}")
    for name in ("reward", "raw_reward"):
        value = getattr(shown, name)
        if isinstance(value, str) or not -1 <= float(value) <= 1:
            raise CheckFailed(f"{who} has {name} = {value!r:.40}: give a number from -1 to 1")
    if shown.success and not shown.terminated:
        raise CheckFailed(f"{who} succeeded, and the episode isn't over: set terminated too")
    if not isinstance(shown.instruction, str) or not all(isinstance(note, str) for note in shown.notes):
        raise CheckFailed(f"{who} has an instruction or a note that is no text: make it a str")
    for element in shown.elements:
        _check_element(subject, element, who)


def _check_element(subject: ScreensSubject, element: Element, who: str) -> None:
    width, height = subject.screens.size
    x1, y1, x2, y2 = element.box
    if not (0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height):
        raise CheckFailed(
            f"{who} lists {element.role} {element.text!r:.40} at {element.box}: boxes must be on the screen of {width} x {height}"
        )
    if element.click_point is not None and not (x1 <= element.click_point[0] <= x2 and y1 <= element.click_point[1] <= y2):
        raise CheckFailed(
            f"{who} lists {element.role} {element.text!r:.40} with the click point {element.click_point}: it must be in its "
            f"box {element.box}"
        )


def _check_places(subject: ScreensSubject, action: Action, who: str) -> None:
    width, height = subject.screens.size
    for x, y in (place for place in (action.at, action.to) if place is not None):
        if not (0 <= x <= width and 0 <= y <= height):
            raise CheckFailed(f"{who} is a {action.kind} at {(x, y)}: it must be on the screen of {width} x {height}")
    if action.direction is not None and action.direction not in DIRECTIONS:
        raise CheckFailed(f"{who} has the direction {action.direction!r:.40}: choose one of {', '.join(DIRECTIONS)}")
