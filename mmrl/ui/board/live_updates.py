"""Passes messages between the indexer process (`watching`) and open pages: orders the runs that pages show, sends them news."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterable
from typing import IO, Any

from mmrl.ui.board.run_paths import RunPaths

KEPT = 120.0
"""Seconds that a run is still indexed after its last request."""
ALIVE = 15.0
"""Seconds between two keep-alive messages to a page."""
PAGES = 200
"""Maximal number of open pages that receive news, since each message goes to all of them."""
AGAIN, LATEST = 0.5, 30.0
"""Seconds before an indexer that died is started again: at first, and at most, since the pause doubles each time."""
SOUND = 60.0
"""Seconds after which an indexer that still lives counts as sound: the pause is short again."""
STRIKES, FORGIVEN = 2, 600.0
"""Times that the indexer may die of a run before the run is skipped, and seconds after which it is tried again."""
INDEXER = (sys.executable, "-m", "mmrl.ui.board.indexer")
"""Command of the indexer, without its arguments."""
SECRET = "MMRL_BOARD_TOKEN"
"""Environment variable that is not handed on to the indexer."""
MOST = 1000
"""Maximal messages that wait for a slow page; more are replaced by one that makes it reload."""


class UpdateHub:
    """The hub of a server. All methods except `_read` run in the event loop or are thread-safe."""

    def __init__(self, places: RunPaths) -> None:
        self.places = places
        self.asked: dict[str, float] = {}
        """Run -> time of its last request."""
        self.pages: dict[asyncio.Queue[dict[str, Any]], frozenset[str]] = {}
        """Queue of an open page -> the runs that it shows; empty for the list of runs."""
        self.lock = threading.Lock()
        self.ready: dict[str, threading.Event] = {}
        """Run -> event that is set when its index can be read."""
        self.gone: dict[str, str] = {}
        """Run -> error of its index."""
        self.strikes: dict[str, list[float]] = {}
        """Run -> times at which the indexer died of it."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.deaths = 0
        """Times that the indexer died in a row."""
        self.ordered = b""
        self.ending = threading.Event()

    def start(self) -> None:
        """Start the indexer. Call it in the event loop."""
        self.loop = asyncio.get_running_loop()
        self._watch()

    def _watch(self) -> None:
        marker = tempfile.TemporaryFile()  # noqa: SIM115  the thread closes it
        command = [*INDEXER, str(self.places.folder), str(marker.fileno())]
        env = {name: value for name, value in os.environ.items() if name != SECRET}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, pass_fds=[marker.fileno()]
        )
        threading.Thread(target=self._read, args=(self.process, marker), daemon=True).start()
        self.ordered = b""
        self._order()

    def end(self) -> None:
        """End the streams of all pages. It may be called from any thread or a signal handler."""
        if self.loop:
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for queue in self.pages:
            queue.put_nowait(END)

    def stop(self) -> None:
        """Stop the indexer and wait for its exit."""
        self.ending.set()
        if process := self.process:
            assert process.stdin
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def ask(self, run: str, seconds: float = 0.0) -> None:
        """Have a run indexed. Waits up to `seconds` until its index can be read; not for one that is skipped."""
        if self.skipped(run):
            return
        with self.lock:
            self.asked[run] = time.monotonic()
            event = self.ready.setdefault(run, threading.Event())
        self._order()
        event.wait(seconds)

    def skipped(self, run: str) -> str:
        """Why a run is not indexed for now: the indexer died of it again and again. Empty for other runs."""
        now = time.monotonic()
        deaths = [when for when in self.strikes.get(run, ()) if now - when < FORGIVEN]
        if len(deaths) < STRIKES:
            return ""
        return f"not indexed: the process that does it died of this run {len(deaths)} times; it is tried again after some minutes"

    @property
    def is_full(self) -> bool:
        """Whether the maximal number of pages receives news."""
        return len(self.pages) >= PAGES

    async def news(self, runs: Iterable[str]) -> AsyncIterator[dict[str, Any] | None]:
        """Yields messages about these runs, or about the list of runs if `runs` is empty; None as a keep-alive."""
        mine, queue = frozenset(runs), asyncio.Queue[dict[str, Any]]()
        with self.lock:
            self.pages[queue] = mine
        await asyncio.to_thread(self._order)
        try:
            while True:
                try:
                    message = await asyncio.wait_for(queue.get(), ALIVE)
                    if message is END:
                        return
                    yield message
                except TimeoutError:
                    yield None
                    await asyncio.to_thread(self._order)
        finally:
            with self.lock:
                del self.pages[queue]

    def _order(self) -> None:
        """Send the indexer the runs to index, if they have changed."""
        with self.lock:
            now = time.monotonic()
            self.asked = {run: when for run, when in self.asked.items() if now - when < KEPT}
            asked = {*self.asked, *(run for shown in self.pages.values() for run in shown)}
            skip = sorted(run for run in self.strikes if self.skipped(run))
            runs = sorted(asked - set(skip))
            listed = any(not shown for shown in self.pages.values())
            order = json.dumps({"runs": runs, "all": listed, "skip": skip}).encode() + b"\n"
            if order == self.ordered or not self.process or not self.process.stdin:
                return
            self.ordered = order
            for run in self.ready.keys() - set(runs):
                del self.ready[run]
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(order)
                self.process.stdin.flush()

    def _read(self, process: subprocess.Popen[bytes], marker: IO[bytes]) -> None:
        """Pass on the indexer's messages until it exits, and start another one. Runs in a thread. marker: the file with the name
        of the run that the indexer works on."""
        assert process.stdin and process.stdout
        began = time.monotonic()
        with marker, process.stdout:
            for line in process.stdout:
                try:
                    message = json.loads(line)
                except ValueError:  # it was killed while it wrote this line
                    break
                self._heard(message)
            process.wait()
            run = json.loads(os.pread(marker.fileno(), 1 << 16, 0).partition(b"\n")[0] or b'""')
        with self.lock, contextlib.suppress(BrokenPipeError):
            self.process = None
            process.stdin.close()
        self.deaths = 0 if time.monotonic() - began > SOUND else self.deaths + 1
        if run and not self.ending.is_set():
            self._blame(run)
        pause = min(AGAIN * 2 ** (self.deaths - 1), LATEST) if self.deaths else AGAIN
        while not self.ending.wait(pause):  # without an indexer pages would get no news
            try:
                return self._watch()
            except OSError as error:  # the system has no room for a process
                print(f"mmrl board: the indexing process can't be started: {error.strerror}", file=sys.stderr)
                pause = LATEST

    def _heard(self, message: dict[str, Any]) -> None:
        """Take a message of the indexer and pass it on to the pages."""
        assert self.loop
        run = message["run"]
        with self.lock:
            if message["kind"] == "ready":
                self.gone.pop(run, None)
                self.ready.setdefault(run, threading.Event()).set()
            if message["kind"] == "gone":
                self.gone[run] = message["why"]
                self.asked.pop(run, None)
                if event := self.ready.pop(run, None):
                    event.set()
                self.ordered = b""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._tell, message)

    def _blame(self, run: str) -> None:
        """Note that the indexer died while it worked on a run."""
        with self.lock:
            self.strikes[run] = [*self.strikes.get(run, []), time.monotonic()][-STRIKES:]
            if why := self.skipped(run):
                self.gone[run] = why
                if event := self.ready.pop(run, None):
                    event.set()

    def _tell(self, message: dict[str, Any]) -> None:
        with self.lock:
            to = [queue for queue, runs in self.pages.items() if (message["run"] in runs if runs else message["kind"] in LISTED)]
        for queue in to:
            told = message
            if queue.qsize() >= MOST:
                while not queue.empty():
                    queue.get_nowait()
                told = {"kind": "steps", "run": message["run"], "reload": True}
            queue.put_nowait(told)


LISTED = ("state", "removed")
"""Kinds of messages that the list of runs receives."""
END: dict[str, Any] = {}
"""Message that ends a page's stream."""
