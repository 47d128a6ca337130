"""Memory and seconds that pages of a run folder take, each measured in processes of their own."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import psutil

import boards

MEMORY_MB, SECONDS = 1000, 20.0
"""What a page may take."""
PAGES = (
    *("/", "/curves", "/rollouts", "/rollouts?q=red", "/rollouts?sort=best", "/rollout?id=10.0", "/episodes", "/alarms"),
    *("/settings?with=sound", "/compare?with=sound", "/compare?with=sound&step=best", "/text?id=10.0", "/part/row"),
    *("/api/runs", "/api/curves", "/api/series?key=reward/mean", "/api/steps"),
    "/media/frame?path=episodes/step-000010/f0.webp",
)
"""Pages of the board; `run` is added."""


@dataclass
class Cost:
    """What pages took."""

    peak_mb: float = 0.0
    seconds: float = 0.0
    """Of the slowest page."""
    slowest: str = ""
    texts: dict[str, str] = field(default_factory=dict)
    """Page -> what was answered, with the code before it."""

    def add(self, page: str, seconds: float, text: str) -> None:
        self.texts[page] = text
        if seconds > self.seconds:
            self.seconds, self.slowest = seconds, page


def report(run: Path) -> Cost:
    """`mmrl report` of a run, to its end or until it took three times what it may. Its seconds are the processor's: other tests
    run beside it."""
    began, spent, cost = time.monotonic(), 0.0, Cost()
    with open(run.parent.parent / "report.log", "w+") as log:
        process = subprocess.Popen([sys.executable, "-m", "mmrl", "report", str(run)], stdout=log, stderr=log)
        while process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
                cost.peak_mb = max(cost.peak_mb, peak_mb(psutil.Process(process.pid)))
                spent = sum(psutil.Process(process.pid).cpu_times()[:4])
            if time.monotonic() - began > 3 * SECONDS:
                process.kill()
            time.sleep(0.02)
        log.seek(0)
        written = run / "report.html"
        page = written.read_text() if written.is_file() else ""
        cost.add("report", spent, f"{process.returncode} {log.read()}{page}")
    return cost


def board(runs: Path, *names: str, wait: float = 5.0) -> Cost:
    """All pages of one board for these runs, before and while they are indexed. wait: seconds between the two rounds."""
    cost = Cost()
    with boards.board(runs, runs.parent / "caches") as served:
        for number in range(2):
            for name in names:
                for page in PAGES:
                    began = time.monotonic()
                    text = answer(served.port, page, name)
                    cost.add(f"{page} {name} {number}", time.monotonic() - began, text)
            if not number:
                time.sleep(wait)
        cost.peak_mb = board_mb(served)
    return cost


def answer(port: int, page: str, run: str) -> str:
    """The code and the text of an answer; the error if there is none in time."""
    path = page + ("&" if "?" in page else "?") + urlencode({"run": run})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2 * SECONDS)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return f"{answer.status} {answer.read().decode(errors='replace')}"
        except OSError as error:
            return f"0 {error}"


def board_mb(served: boards.Running) -> float:
    """The peaks of a board and of its indexer together."""
    server = psutil.Process(served.process.pid)
    return sum(map(peak_mb, (server, *server.children(recursive=True))))


def peak_mb(process: psutil.Process) -> float:
    """The largest resident memory that a process ever had."""
    with open(f"/proc/{process.pid}/status") as file:
        return next((int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM")), 0.0)
