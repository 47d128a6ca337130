"""Recording episodes on screens, by exploring or by an expert: the implementation of `mmrl record screens`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.services import screens_of
from mmrl.api.simulators.gui import Screens
from mmrl.api.tasks.image_sources import chance
from mmrl.api.tasks.option_checks import check_choice, did_you_mean
from mmrl_gui import pages as drawn
from mmrl_gui.exploring import WALKS
from mmrl_gui.recording import Plan, Tally, record
from mmrl_gui.stopping import Stop

DRAWN = "browser/html"
"""The screens with generated pages; their page names are kinds of pages."""


def walked(
    id: str,
    folder: Path,
    *,
    options: Mapping[str, Any],
    pages: Sequence[str],
    actions: list[str],
    level: str,
    overwrite: bool,
    stop: Stop,
    **plan: Any,
) -> Tally:
    """Record episodes into a new folder. id, options: of the screens. pages: their names; all if empty. actions: of a random
    walk; all if empty. level: of generated pages. plan: the other fields of `Plan`.

    Raises UserError in one line for errors that the user can correct."""
    _check_actions(actions, plan["policy"])
    screens = screens_of(id, dict(options))
    known = drawn.KINDS if id == DRAWN else screens.pages
    if unknown := [name for name in pages if name not in known]:
        raise UserError(f"{id} has no page {unknown[0]!r:.60}.{did_you_mean(unknown[0], known)}")
    if not (pages or known):
        raise UserError(f"{id} lists no pages: name some with --pages")
    played = [(name, _address(id, screens, name, level)) for name in pages or known]
    told = _tell if sys.stderr.isatty() else None
    return record(screens, Plan(pages=played, actions=actions, **plan), folder, overwrite, told, stop)


def _check_actions(actions: Sequence[str], policy: str) -> None:
    text = ",".join(actions)
    for name in actions:
        check_choice("--actions", name, WALKS)
    if actions and policy != "random":
        raise UserError(f"--actions {text!r:.60} is only for --policy random: leave it out")
    if actions and "click" not in actions:  # typing needs a click first
        raise UserError(f"--actions {text!r:.60} must include click, such as --actions click,type")


def _address(id: str, screens: Screens, name: str, level: str) -> Callable[[int], str]:
    """The address that the screens open for a page and a seed: its name, or the HTML of a generated page."""
    if id != DRAWN:
        return lambda seed: name
    return lambda seed: drawn.draw_page(chance(seed, "recorded", name), name, screens.size, level).html


def _tell(tally: Tally) -> None:
    print(f"\r{tally.episodes} episodes, {tally.steps} steps", end="\x1b[K", file=sys.stderr, flush=True)


def summary(folder: Path, tally: Tally) -> str:
    """The summary of a recording, in one line."""
    aside = [
        (tally.lost, f"lost with the browser (the last: {tally.why})"),
        (tally.idle, "in which nothing was done"),
        (tally.failed, "that failed, left out"),
    ]
    more = "".join(f"; {count} {what}" for count, what in aside if count)
    stopped = "stopped; " if tally.stopped else ""
    return (
        f"{folder}: {stopped}{tally.episodes} episodes, {tally.steps} steps in all; {tally.won} episodes did what was to be "
        f"done{more}"
    )
