"""Records episodes on screens, by exploring or by an expert: pictures, actions and what was hit, in a folder.

python -m mmrl_gui.record --screens browser/miniwob --pages click-test-2,click-button --episodes 50 --out recorded
python -m mmrl_gui.record --screens browser/folder --options folder=site --out recorded
python -m mmrl_gui.record --screens browser/html --pages mail,shop --out recorded      (pages drawn here)
"""

from __future__ import annotations

import argparse
import signal
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.services import screens_of
from mmrl.api.simulators.screens import Screens
from mmrl.api.tasks.options import one_of, suggest, whole
from mmrl.api.tasks.pictures import chance
from mmrl_gui import pages
from mmrl_gui.exploring import WALKS
from mmrl_gui.recording import Plan, Tally, record
from mmrl_gui.stopping import Stop, deaf

DRAWN = "browser/html"
"""The screens whose pages are drawn here: `--pages` names kinds of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0, 2 for what a person can mend, 128 and the signal's number when it was stopped, 130 by Ctrl-C."""
    given, stop = _parser().parse_args(arguments), Stop()
    try:
        with stop.listening():
            tally = _recorded(given, stop)
    except UserError as error:
        print(f"mmrl_gui.record: {error}", file=sys.stderr)
        return 128 + stop.number if stop.number else 2
    except KeyboardInterrupt:
        print("mmrl_gui.record: stopped before the first episode: nothing was written", file=sys.stderr)
        return 128 + stop.number
    print(_said(given.out, tally))
    return 128 + (stop.number or signal.SIGINT) if tally.stopped else 0


def _parser() -> argparse.ArgumentParser:
    summary, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m mmrl_gui.record",
        description=summary,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--screens", default="browser/miniwob", help="the id of a simulator with screens (browser/miniwob)")
    parser.add_argument(
        "--options", action="append", default=[], metavar="KEY=VALUE", help="an option of the screens, as in TOML"
    )
    parser.add_argument("--pages", default="", help="names of pages, with commas between; all by default. Played in turn")
    parser.add_argument("--episodes", type=int, default=50, help="how many (50)")
    parser.add_argument("--steps", type=int, default=10, help="actions of one at most (10)")
    parser.add_argument("--policy", default="random", help="random, a walk over what can be clicked (the default), or expert")
    parser.add_argument(
        "--actions", default="", help=f"what a random walk may do: click, and with it any of {', '.join(WALKS[1:])} (all of it)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first episode; each further one has the next (0)")
    parser.add_argument("--elements", action="store_true", help="keep what there was on each screen, too")
    parser.add_argument("--won", action="store_true", help="keep only episodes that did what was to be done")
    parser.add_argument("--level", default="middle", help="of pages drawn here: easy, middle or hard (middle)")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--overwrite", action="store_true", help="replace a recording that is there")
    return parser


def _recorded(given: argparse.Namespace, stop: Stop) -> Tally:
    whole("--episodes", given.episodes, 1, 1_000_000)
    whole("--steps", given.steps, 1, 1000)
    whole("--seed", given.seed, 0, 2**31 - 1 - given.episodes)
    one_of("--policy", given.policy, ("random", "expert"))
    one_of("--level", given.level, pages.LEVELS)
    actions = _actions(given.actions, given.policy)
    screens = screens_of(given.screens, dict(_option(text) for text in given.options))
    names = [name for name in given.pages.split(",") if name]
    known = pages.KINDS if given.screens == DRAWN else screens.pages
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"{given.screens} has no page {unknown[0]!r:.60}.{suggest(unknown[0], known)}")
    if not (names or known):
        raise UserError(f"{given.screens} lists no pages: name some with --pages")
    plan = Plan(
        pages=[(name, _address(given.screens, screens, name, given.level)) for name in names or known],
        episodes=given.episodes,
        policy=given.policy,
        steps=given.steps,
        seed=given.seed,
        actions=actions,
        elements=given.elements,
        won=given.won,
    )
    return record(screens, plan, given.out, given.overwrite, _tell if sys.stderr.isatty() else None, stop)


def _actions(text: str, policy: str) -> list[str]:
    actions = [name for name in text.split(",") if name]
    for name in actions:
        one_of("--actions", name, WALKS)
    if actions and policy != "random":
        raise UserError(f"--actions {text!r:.60} is about --policy random: leave it out")
    if actions and "click" not in actions:  # nothing is typed into what wasn't clicked
        raise UserError(f"--actions {text!r:.60} must have click among them, such as --actions click,type")
    return actions


def _address(id: str, screens: Screens, name: str, level: str) -> Callable[[int], str]:
    """What the screens start for a page and a seed: its name, or the HTML of a page that is drawn here."""
    if id != DRAWN:
        return lambda seed: name
    return lambda seed: pages.draw_page(chance(seed, "recorded", name), name, screens.size, level).html


def _tell(tally: Tally) -> None:
    print(f"\r{tally.episodes} episodes, {tally.steps} steps", end="\x1b[K", file=sys.stderr, flush=True)


def _said(folder: Path, tally: Tally) -> str:
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


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"--options {text}: write KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


if __name__ == "__main__":
    code = main()
    deaf()
    sys.exit(code)
