"""Between the process that watches run folders and the pages that are open: who looks at what, and what is told to whom."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

from mmrl.ui.board.places import Places

KEPT = 120.0
"""Seconds that a run is watched on after somebody asked for it."""
ALIVE = 15.0
"""Seconds between two signs of life to a page."""
PAGES = 200
"""Open pages that are told what is new; each costs a little of every message."""
AGAIN = 0.5
"""Seconds until a watcher that ended by itself is followed by another."""
MOST = 1000
"""Messages that wait for a slow page; it is told to read again when there are more."""


class Hub:
    """One of a server. Everything but `_read` is called by the event loop or is safe to call from threads."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.asked: dict[str, float] = {}
        """Run -> when somebody last asked for it."""
        self.pages: dict[asyncio.Queue[dict[str, Any]], frozenset[str]] = {}
        """Open page -> the runs that it shows; none where it shows the list."""
        self.lock = threading.Lock()
        self.ready: dict[str, threading.Event] = {}
        self.gone: dict[str, str] = {}
        """Run -> why it can't be read."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.ordered = b""
        self.ending = False

    def start(self) -> None:
        """Begin to watch; in the event loop."""
        self.loop = asyncio.get_running_loop()
        self._watch()

    def _watch(self) -> None:
        command = [sys.executable, "-m", "mmrl.ui.board.watching", str(self.places.folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        self.ordered = b""
        self._order()

    def end(self) -> None:
        """The pages are told no more; from any thread, or a signal's handler."""
        if self.loop:
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for queue in self.pages:
            queue.put_nowait(END)

    def stop(self) -> None:
        self.ending = True
        if self.process:
            assert self.process.stdin
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def ask(self, run: str, seconds: float = 0.0) -> None:
        """Somebody looks at a run. Waits for so long until its index can be read."""
        with self.lock:
            self.asked[run] = time.monotonic()
            event = self.ready.setdefault(run, threading.Event())
        self._order()
        event.wait(seconds)

    @property
    def is_full(self) -> bool:
        """Whether so many pages are open that no other can be told what is new."""
        return len(self.pages) >= PAGES

    async def news(self, runs: Iterable[str]) -> AsyncIterator[dict[str, Any] | None]:
        """What is new of these runs, or of the list of runs; None now and then, as a sign of life."""
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
        """Tell the watcher what is looked at, if that is something else than before."""
        with self.lock:
            now = time.monotonic()
            self.asked = {run: when for run, when in self.asked.items() if now - when < KEPT}
            runs = sorted({*self.asked, *(run for shown in self.pages.values() for run in shown)})
            order = json.dumps({"runs": runs, "all": any(not shown for shown in self.pages.values())}).encode() + b"\n"
            if order == self.ordered or not self.process or not self.process.stdin:
                return
            self.ordered = order
            for run in self.ready.keys() - set(runs):
                del self.ready[run]
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(order)
                self.process.stdin.flush()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """In a thread: what the watcher tells."""
        assert process.stdout and self.loop
        for line in process.stdout:
            message = json.loads(line)
            with self.lock:
                if message["kind"] == "ready":
                    self.gone.pop(message["run"], None)
                    self.ready.setdefault(message["run"], threading.Event()).set()
                if message["kind"] == "gone":
                    self.gone[message["run"]] = message["why"]
                    self.asked.pop(message["run"], None)
                    if event := self.ready.pop(message["run"], None):
                        event.set()
                    self.ordered = b""
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(self._tell, message)
        process.wait()
        time.sleep(AGAIN)
        if not self.ending:  # it was killed: nobody would be told anything any more
            self._watch()

    def _tell(self, message: dict[str, Any]) -> None:
        with self.lock:
            to = [queue for queue, runs in self.pages.items() if (message["run"] in runs if runs else message["kind"] in LISTED)]
        for queue in to:
            if queue.qsize() >= MOST:
                while not queue.empty():
                    queue.get_nowait()
                message = {"kind": "steps", "run": message["run"], "reload": True}
            queue.put_nowait(message)


LISTED = ("state", "removed")
"""What the list of runs is told."""
END: dict[str, Any] = {}
"""The last message."""
