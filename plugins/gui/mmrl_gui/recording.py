"""Episodes on screens, recorded into a folder: `episodes.jsonl` and PNG files, as the guide describes them.

Everything is written aside and renamed once it is done, so that a folder with a recording's name is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl import EnvironmentFailed, UserError
from mmrl.api.simulators.gui import Element, Screens
from mmrl.api.tasks.image_sources import chance
from mmrl_gui.actions import as_data
from mmrl_gui.exploring import WALKS, chooser
from mmrl_gui.stopping import Stop
from mmrl_gui.tables import EPISODES

if TYPE_CHECKING:
    from PIL.Image import Image

LOST_IN_A_ROW = 5
"""Episodes that may be lost one after the other; then the browser itself is at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be recorded."""

    pages: Sequence[tuple[str, Callable[[int], str]]]
    """(what a page is called in the recording, what the screens are to start for a seed); they are played in turn."""
    episodes: int
    policy: str = "random"
    """random, a walk over what can be clicked, or expert."""
    steps: int = 10
    """Actions of an episode at most."""
    seed: int = 0
    """Of the first episode; each further one has the next."""
    elements: bool = False
    """Keep what there was on each screen, too."""
    actions: Sequence[str] = ()
    """What a walk may do, of `exploring.WALKS`; all of it when empty."""
    won: bool = False
    """Keep only episodes that did what was to be done."""


@dataclass(slots=True)
class Tally:
    """What came of a recording."""

    episodes: int = 0
    """That were written."""
    won: int = 0
    """Of these, those that did what was to be done."""
    steps: int = 0
    lost: int = 0
    """That were lost with their browser."""
    why: str = ""
    """What was said of the last of these."""
    idle: int = 0
    """In which nobody knew anything to do."""
    failed: int = 0
    """That were left out because they didn't do what was to be done."""
    stopped: bool = False
    """The person stopped it; what was finished is there."""


@dataclass
class Episode:
    """One episode while it is played: its pictures are held until it is over."""

    row: dict[str, Any]
    pictures: list[tuple[str, Image]] = field(default_factory=list)


def record(
    screens: Screens,
    plan: Plan,
    folder: Path,
    overwrite: bool = False,
    told: Callable[[Tally], None] | None = None,
    stop: Stop | None = None,
) -> Tally:
    """Plays episodes and writes them into a new folder. told: is called after each episode. stop: who asks for an early end.

    Then, and after a KeyboardInterrupt, what was finished is kept, and is a whole recording. Raises UserError for a folder that
    is taken, where the expert knows none of the pages, or where the browser is lost again and again.
    """
    tally, stop = Tally(), stop or Stop()
    with stop.bearing(sys.maxsize), folder_aside(folder, overwrite) as aside:
        with contextlib.suppress(KeyboardInterrupt):
            tally.stopped = True
            _play_all(screens, plan, aside, tally, told, stop)
            tally.stopped = False
        if not tally.episodes:
            raise UserError(_nothing(plan, tally))
    return tally


def _play_all(screens: Screens, plan: Plan, aside: Path, tally: Tally, told: Callable[[Tally], None] | None, stop: Stop) -> None:
    in_a_row = 0
    for number in range(plan.episodes):
        name, address = plan.pages[number % len(plan.pages)]
        seed = plan.seed + number
        try:
            with stop.bearing(1):
                episode = play(screens, name, address(seed), seed, plan, stop)
            in_a_row = 0
        except EnvironmentFailed as why:
            tally.lost, tally.why = tally.lost + 1, str(why)
            in_a_row += 1
            if in_a_row >= LOST_IN_A_ROW:
                raise UserError(f"{in_a_row} episodes in a row were lost, the last on page {name!r:.60}: {why}") from None
            continue
        if not episode.row["steps"]:
            tally.idle += 1
        elif plan.won and not episode.row["success"]:
            tally.failed += 1
        else:
            _write(aside, episode)
            tally.episodes += 1
            tally.steps += len(episode.row["steps"])
            tally.won += episode.row["success"]
        if told:
            told(tally)


def play(screens: Screens, name: str, address: str, seed: int, plan: Plan, stop: Stop) -> Episode:
    """One episode. name: of its page. address: what the screens start. Raises EnvironmentFailed, and KeyboardInterrupt where it is asked
    to stop before the episode is over."""
    may = screens.actions & set(plan.actions or WALKS)
    chooses = chooser(plan.policy, chance(plan.seed, "walk", name, str(seed)), may)
    stop.check()
    screen = screens.open(elements=True)
    try:
        shown = screen.start(address, seed)
        row: dict[str, Any] = {
            "page": name,
            "seed": seed,
            "instruction": shown.instruction,
            "size": list(screens.size),
            "steps": [],
        }
        episode = Episode({**row, "success": False, "raw_reward": 0.0, "final": None})
        steps = episode.row["steps"]
        while not shown.terminated and len(steps) < plan.steps and shown.screenshot is not None:
            step = chooses(screen, shown)
            if step is None:
                break
            own = {
                "picture": _held(episode, shown.screenshot),
                "action": as_data(step.action),
                "box": list(step.box) if step.box else None,
            }
            steps.append(own | ({"elements": [_plain(e) for e in shown.elements]} if plan.elements else {}))
            shown = screen.act(step.action)
            if not shown.terminated:
                stop.check()
        episode.row |= {"success": shown.success, "raw_reward": float(shown.raw_reward)}
        if shown.screenshot is not None and steps:
            episode.row["final"] = _held(episode, shown.screenshot)
        return episode
    finally:
        screen.close()


def _held(episode: Episode, picture: Image) -> str:
    """The name under which a picture will be written."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in episode.row["page"])[:60]
    name = f"{safe}-{episode.row['seed']}-{len(episode.pictures)}.png"
    episode.pictures.append((name, picture))
    return name


def _plain(element: Element) -> dict[str, Any]:
    return {**asdict(element), "box": list(element.box)} | ({"click_point": list(element.click_point)} if element.click_point else {})


def _write(aside: Path, episode: Episode) -> None:
    """An episode with its pictures; its row comes last, so that a row has all of them."""
    for name, picture in episode.pictures:
        picture.convert("RGB").save(aside / name, "PNG")
    with open(aside / EPISODES, "a", encoding="utf-8") as file:
        file.write(json.dumps(episode.row, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def folder_aside(folder: Path, overwrite: bool = False) -> Iterator[Path]:
    """A folder to write into, beside the one that is meant, which it becomes at the end; after an error it is removed.

    Raises UserError where there is something already that isn't to be overwritten, or is no recording.
    """
    _free(folder, overwrite)
    aside, old = (folder.with_name(f".{folder.name}.{what}-{os.getpid()}") for what in ("part", "old"))
    try:
        aside.mkdir(parents=True)
        yield aside
        if folder.exists():
            os.rename(folder, old)
        os.rename(aside, folder)
    except OSError as error:
        raise UserError(f"can't write {folder}: {error.strerror or error}") from None
    finally:
        for one in (aside, old):
            shutil.rmtree(one, ignore_errors=True)


def _free(folder: Path, overwrite: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file: name a new folder")
    if not any(folder.iterdir()):
        return
    if not (folder / EPISODES).is_file():
        raise UserError(f"{folder} is no recording, and is never overwritten: name a new folder")
    if not overwrite:
        raise UserError(f"{folder} is there already: name a new folder, or give --overwrite")


def _nothing(plan: Plan, tally: Tally) -> str:
    names = ", ".join(name for name, _ in plan.pages[:3])
    if tally.stopped:
        return "stopped before the first episode was over: nothing was written"
    if tally.failed:
        return f"none of {tally.failed} episodes did what was to be done: leave out --won, or take an expert"
    if plan.policy == "expert":
        return f"nobody knows what to do on {names}: take --policy random, or pages that have an expert"
    return f"there is nothing to click on {names}: take other pages"
