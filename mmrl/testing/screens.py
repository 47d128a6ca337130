"""The rules for simulators with screens: what a page shows depends on its seed, and whatever is done to it leaves it usable."""

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
"""Pages that are looked at, spread over those that there are."""
SEEDS = (11, 12, 13)
UNKNOWN = "no such page"


@dataclass
class ScreensSubject:
    """Screens under test, and the pages of them that are looked at."""

    spec: SimulatorSpec
    screens: Screens

    @property
    def pages(self) -> list[str]:
        known = self.screens.pages
        return [known[i * (len(known) - 1) // max(min(PAGES, len(known)) - 1, 1)] for i in range(min(PAGES, len(known)))]

    @contextmanager
    def screen(self, elements: bool = True) -> Iterator[Screen]:
        """One that is given back."""
        screen = self.screens.open(elements=elements)
        try:
            yield screen
        finally:
            screen.close()


def check_screens(
    spec: SimulatorSpec, make: Callable[..., Any] | None = None, options: Mapping[str, Any] | None = None
) -> Report:
    """Check screens. `make` is for those that are not installed; by default the registry makes them."""
    from mmrl.registry import plugins

    screens = make(**(options or {})) if make else plugins.registry().make_screens(spec.id, options)
    return Report(spec.id, "simulator", run_checks(ScreensSubject(spec, screens), GATES, CHECKS))


def screens_are_as_declared(subject: ScreensSubject) -> str | None:
    """They say how large their pictures are, which pages there are, and what can be done to them."""
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
    return None if screens.pages else "its pages have no names, so that the other checks look at none"


def a_start_shows_a_page(subject: ScreensSubject) -> str | None:
    """A start gives a picture of the size that was said, RGB, an instruction, and, where they are asked for, elements on it."""
    for page in subject.pages:
        for elements in (False, True):
            with subject.screen(elements) as screen:
                shown = screen.start(page, SEEDS[0])
                _check(subject, shown, f"start({page!r}, {SEEDS[0]})")
                if shown.terminated:
                    raise CheckFailed(f"page {page!r} is over before anything was done: an episode must begin")
                if shown.elements and not elements:
                    raise CheckFailed(f"page {page!r} lists elements that nobody asked for, open(elements=False)")
    return _looked(subject)


def an_unknown_page_is_refused(subject: ScreensSubject) -> str | None:
    """A page that there isn't is a UserError."""
    if not subject.pages:
        return _looked(subject)
    with subject.screen() as screen:
        try:
            screen.start(UNKNOWN, SEEDS[0])
        except UserError:
            return None
        except Exception as error:
            raise CheckFailed(
                f"a page that there isn't raised {type(error).__name__}: raise mmrl.UserError with one line"
            ) from error
    raise CheckFailed("a page that there isn't was shown: raise mmrl.UserError, or a run trains on who knows what")


def same_seed_gives_same_page(subject: ScreensSubject) -> str | None:
    """The same page and seed show the same, to the pixel: on the same screen after something was done, on another, after another
    page, without a picture at the start, and whatever the global random generators are."""
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
            _compare(page, first[1:], again[1:], "started without a picture")
    return _looked(subject)


def seeds_make_a_difference(subject: ScreensSubject) -> str | None:
    """Other seeds may show other pages; where none does, that is a note: all episodes of such a page begin alike."""
    alike = []
    for page in subject.pages:
        with subject.screen() as screen:
            if len({_seen(screen.start(page, seed)) for seed in SEEDS}) == 1:
                alike.append(page)
    if alike:
        return f"{len(SEEDS)} seeds show the same on {', '.join(map(repr, alike))}: its episodes begin alike, in every split"
    return _looked(subject)


def screens_stand_apart(subject: ScreensSubject) -> str | None:
    """What is done on one screen is not seen on another that is open beside it."""
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
    """Each kind of action, also one that can't be done here, a place off the screen and an unknown key, gives a well-formed
    `ScreenObservation`; what makes no sense leaves a note, and raises nothing."""
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
                    raise CheckFailed(
                        f"{who} makes no sense, {_told(action)}, and leaves no note: say in `notes` why nothing was done"
                    )
    return _looked(subject)


def advice_is_an_action(subject: ScreensSubject) -> str | None:
    """`advice` gives an action that can be done here, or None, and asking changes nothing."""
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
                raise CheckFailed(f"the advice on page {page!r} is {found!r:.80}, and no action that can be done here")
            _check_places(subject, found, f"the advice on page {page!r}")
            _compare(page, first, [shown, screen.act(Action(kind="wait"))], "the advice was asked for")
    return f"nobody advises on {', '.join(map(repr, none))}" if none else _looked(subject)


def global_random_state_is_untouched(subject: ScreensSubject) -> str | None:
    """Showing pages neither draws from nor seeds the global random generators."""
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
    """What a start and a moment of waiting show."""
    return [screen.start(page, seed, picture=picture), screen.act(Action(kind="wait"))]


def _seen(shown: ScreenObservation) -> tuple[Any, ...]:
    picture = None if shown.screenshot is None else (shown.screenshot.size, shown.screenshot.tobytes())
    return (shown.instruction, shown.elements, shown.reward, shown.raw_reward, shown.terminated, shown.success, picture)


def _compare(page: str, first: Sequence[ScreenObservation], again: Sequence[ScreenObservation], when: str) -> None:
    names = ("instruction", "elements", "reward", "raw_reward", "terminated", "success", "picture")
    for moment, (one, other) in enumerate(zip(first, again, strict=True)):
        for name, a, b in zip(names, _seen(one), _seen(other), strict=True):
            if a != b:
                raise CheckFailed(
                    f"the {name} of page {page!r} is another one at moment {moment}, {when}: draw all of it from the seed, from "
                    "no clock, and keep nothing between starts"
                )


def _actions(subject: ScreensSubject) -> list[Action]:
    """One of each kind that can be done, in the middle of the screen."""
    width, height = subject.screens.size
    middle, beside = (width / 2, height / 2), (width / 2, height / 4)
    texts = {"key": "Enter"}
    pressed = ("click", "double-click", "long-press", "drag")
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
    """What can't be done: kinds that there aren't here, places off the screen, a key that there isn't."""
    width = subject.screens.size[0]
    others: Any = [kind for kind in ACTION_KINDS if kind not in subject.screens.actions]
    found = [Action(kind=kind, at=(1, 1), to=(2, 2), text="x", direction="up") for kind in others]
    if "click" in subject.screens.actions:
        found += [Action(kind="click", at=at) for at in ((width + 50, 1), (1, -50), (math.nan, 1), (10.0**9, 10.0**9))]
        found.append(Action(kind="click"))
    if "key" in subject.screens.actions:
        found.append(Action(kind="key", text="no such key"))
    return found


def _told(action: Action) -> str:
    return f"at {action.at}" if action.kind == "click" else f"with the text {action.text!r}"


def _check(subject: ScreensSubject, shown: ScreenObservation, who: str) -> None:
    """What is asked of everything that is shown."""
    from PIL.Image import Image

    if not isinstance(shown, ScreenObservation):
        raise CheckFailed(f"{who} gave a {type(shown).__name__}: give a mmrl.api.simulators.gui.ScreenObservation")
    picture = shown.screenshot
    if picture is None and not shown.terminated:
        raise CheckFailed(f"{who} shows no picture, and the episode isn't over")
    if picture is not None and (not isinstance(picture, Image) or picture.mode != "RGB" or picture.size != subject.screens.size):
        what = f"{picture.mode} {picture.size}" if isinstance(picture, Image) else type(picture).__name__
        raise CheckFailed(f"{who} shows a picture of {what}: make it a PIL image, RGB, of {subject.screens.size}")
    for name in ("reward", "raw_reward"):
        value = getattr(shown, name)
        if isinstance(value, str) or not -1 <= float(value) <= 1:
            raise CheckFailed(f"{who} has {name} = {value!r:.40}: pay from -1 to 1")
    if shown.success and not shown.terminated:
        raise CheckFailed(f"{who} succeeded, and the episode isn't over: set terminated too")
    if not isinstance(shown.instruction, str) or not all(isinstance(note, str) for note in shown.notes):
        raise CheckFailed(f"{who} has an instruction or a note that is no text")
    for element in shown.elements:
        _check_element(subject, element, who)


def _check_element(subject: ScreensSubject, element: Element, who: str) -> None:
    width, height = subject.screens.size
    x1, y1, x2, y2 = element.box
    if not (0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height):
        raise CheckFailed(
            f"{who} lists {element.role} {element.text!r:.40} at {element.box}: boxes lie on the screen of {width} x {height}"
        )
    if element.click_point is not None and not (x1 <= element.click_point[0] <= x2 and y1 <= element.click_point[1] <= y2):
        raise CheckFailed(
            f"{who} lists {element.role} {element.text!r:.40} with the spot {element.click_point}, which isn't in its "
            f"box {element.box}"
        )


def _check_places(subject: ScreensSubject, action: Action, who: str) -> None:
    width, height = subject.screens.size
    for x, y in (place for place in (action.at, action.to) if place is not None):
        if not (0 <= x <= width and 0 <= y <= height):
            raise CheckFailed(f"{who} is a {action.kind} at {(x, y)}, off the screen of {width} x {height}")
    if action.direction is not None and action.direction not in DIRECTIONS:
        raise CheckFailed(f"{who} has the direction {action.direction!r:.40}: of {', '.join(DIRECTIONS)}")
