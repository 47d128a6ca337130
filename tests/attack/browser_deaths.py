"""Pages and whole browsers that are killed while episodes are played."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import psutil

from browsers import no_browser
from mmrl import EnvironmentFailed
from mmrl.api.simulators.gui import Action
from mmrl.testing.attack import Attempt
from processes import gone

KINDS = ("renderer", "gpu-process", "utility", "browser")
"""Processes of a browser; `browser` is the one that starts the others."""


def browser_deaths(count: int = 24) -> Iterator[Attempt]:
    """It held if the episode is played or lost, the next one is played, and no process is left. Without a browser there is
    nothing to try."""
    if no_browser():
        return
    from mmrl_browser.driver import close
    from mmrl_browser.miniwob import MiniWoB

    rng, me = random.Random(0), psutil.Process()
    others = {process.pid for process in me.children(recursive=True)}
    miniwob = MiniWoB()
    _play(miniwob, 0)
    for number in range(count):
        kind, when = KINDS[number % len(KINDS)], rng.choice(("before it starts", "before an action", "after an action"))
        yield Attempt(f"a {kind} killed {when}", _fault(miniwob, number, kind, when))
    started = {process.pid for process in me.children(recursive=True)} - others
    close()
    left = [pid for pid in started if not gone(pid, 10)]
    yield Attempt("processes after the browser was closed", f"{len(left)} are left" if left else "")


def _fault(miniwob, seed: int, kind: str, when: str) -> str:
    try:
        _play(miniwob, seed, kind, when)
    except EnvironmentFailed:
        pass  # the episode is lost
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for _ in range(2):  # the first may find the browser gone
        try:
            _play(miniwob, seed + 1)
            return ""
        except EnvironmentFailed as error:
            why = str(error)
    return f"the next episodes are lost too: {why}"


def _play(miniwob, seed: int, kind: str = "", when: str = "") -> None:
    screen = miniwob.open()
    try:
        for moment in ("before it starts", "before an action", "after an action"):
            if moment == when and not _kill(kind):
                raise RuntimeError(f"there is no {kind} to be killed")
            if moment == "before it starts":
                screen.start("click-test-2", seed)
            elif moment == "before an action":
                screen.act(Action(kind="click", at=(80.0, 120.0)))
    finally:
        screen.close()


def _kill(kind: str) -> bool:
    """Kill a browser's process of this kind; whether there is one."""
    for process in psutil.Process().children(recursive=True):
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        own = next((word.removeprefix("--type=") for word in line if word.startswith("--type=")), "browser")
        if own == kind and any("chrom" in word or "headless" in word for word in line[:1]):
            os.kill(process.pid, signal.SIGKILL)
            return True
    return False
