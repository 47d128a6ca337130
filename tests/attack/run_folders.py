"""Damaged and hostile run folders, shown by reports and by the pages of a board.

An attempt is a run folder: its report and its pages are made, none has its script, the sound run beside is listed, each page
takes at most `bounds.SECONDS`, and the processes at most `bounds.MEMORY_MB`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil

import bounds
from boards import board
from bombs import BOMBS
from damage import HARM, damages, whole
from mmrl.api.errors import shorten
from mmrl.testing.attack import Attempt
from mmrl.ui.report.report import write_report

ALWAYS = ("/", "/curves", "/rollouts", "/episodes", "/alarms", "/settings?with=sound", "/compare?with=sound", "/api/runs")
"""Pages that are there whatever a file of the run has in it; others may lack what they show."""
NAMES = (
    *(
        '"><img src=x onerror=alert(1)>',
        "<script>alert(2)<",
        "' onmouseover='alert(1)",
        "a\nb",
        "\u202eabc",
        "%2e%2e",
        "a b",
        "-x",
    ),
    *("?run=sound", "#a", "a&run=sound", "{{7*7}}", "a" * 250, "\U0001f600" * 60, "a\\b", "a;b", "~root", "$(id)", "a\x1b[2Jb"),
)
Shown = Callable[[Path, bool], str]
"""(run, whether it is folders or whole files that are odd) -> what is wrong."""


def run_folders(every: int = 9, size: float = 0.05, bombs: int = 1) -> Iterator[Attempt]:
    """every, bombs: one in so many of the damages and bombs is tried. size: of the bombs."""
    with tempfile.TemporaryDirectory() as temporary:
        runs, template = Path(temporary) / "runs", whole(Path(temporary) / "template")
        whole(runs / "sound")
        with _shown(runs) as fault:
            for name in NAMES[::bombs]:
                run = shutil.copytree(template, runs / name)
                yield Attempt(f"a run called {name!r}"[:80], fault(run, "\\" in name))
                shutil.rmtree(run)
            for n, (what, damage) in enumerate(damages(template)):
                damage()
                if n % every == 0 and not what.endswith("restored"):
                    run = shutil.copytree(template, runs / f"odd-{n}")
                    yield Attempt(what, fault(run, False))
                    shutil.rmtree(run)
            for n, name in list(enumerate(BOMBS))[bombs - 1 :: bombs]:
                run = whole(runs / f"bomb-{n}")
                BOMBS[name](run, size)
                yield Attempt(f"bomb: {name}", fault(run, True))
                shutil.rmtree(run)


@contextlib.contextmanager
def _shown(runs: Path) -> Iterator[Shown]:
    """What shows a run: a process for all reports, and a board."""
    spawned = multiprocessing.get_context("spawn")
    with board(runs, runs.parent / "caches") as served, ProcessPoolExecutor(1, spawned) as reports:

        def fault(run: Path, bomb: bool) -> str:
            began = time.monotonic()
            problem, peak = reports.submit(_report_fault, run).result(4 * bounds.SECONDS)
            faults = [problem or _over("report", time.monotonic() - began, peak)]
            for page in bounds.PAGES:
                began = time.monotonic()
                text = bounds.answer(served.port, page, run.name)
                faults.append(_page_fault(page, text, bomb) or _over(page, time.monotonic() - began))
            faults.append(_over("the board", 0.0, bounds.board_mb(served)))
            return "; ".join(filter(None, faults))[:500]

        yield fault


def _report_fault(run: Path) -> tuple[str, float]:
    """(what is wrong with the report of a run, peak MB of this process)."""
    try:
        html = write_report(run).read_text()
        problem = "the report has a script of the folder" if any(harm in html for harm in HARM) else ""
    except Exception as error:
        problem = f"no report: {type(error).__name__}: {shorten(error, 200)}"
    return problem, bounds.peak_mb(psutil.Process())


def _page_fault(page: str, text: str, bomb: bool) -> str:
    wanted = ("200",) if page == "/" or (page in ALWAYS and not bomb) else ("2", "4")
    if not text.startswith(wanted):
        return f"{page}: {text[:200]}"
    if not page.startswith(("/api/", "/text")) and any(harm in text for harm in HARM):  # those are no HTML
        return f"{page} has a script of the folder"
    if page == "/" and 'data-run="sound"' not in text:
        return "the sound run isn't listed"
    return ""


def _over(what: str, seconds: float, peak_mb: float = 0.0) -> str:
    over = seconds > bounds.SECONDS or peak_mb > bounds.MEMORY_MB
    return f"{what} took {seconds:.1f} s and up to {peak_mb:.0f} MB" if over else ""
