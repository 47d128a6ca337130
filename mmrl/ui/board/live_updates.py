"""Passes messages between the indexer process (`watching`) and open pages: orders the runs that pages show, sends them news."""

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

from mmrl.ui.board.run_paths import RunPaths

KEPT = 120.0
"""Seconds that a run is still indexed after its last request."""
ALIVE = 15.0
"""Seconds between two keep-alive messages to a page."""
PAGES = 200
"""Maximal number of open pages that receive news, since each message goes to all of them."""
AGAIN = 0.5
"""Seconds before an indexer that exited is started again."""
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
        self.loop: asyncio.AbstractEventLoop | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.ordered = b""
        self.ending = False

    def start(self) -> None:
        """Start the indexer. Call it in the event loop."""
        self.loop = asyncio.get_running_loop()
        self._watch()

    def _watch(self) -> None:
        command = [sys.executable, "-m", "mmrl.ui.board.indexer", str(self.places.folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
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
        """Have a run indexed. Waits up to `seconds` until its index can be read."""
        with self.lock:
            self.asked[run] = time.monotonic()
            event = self.ready.setdefault(run, threading.Event())
        self._order()
        event.wait(seconds)

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
        """Pass on the indexer's messages until it exits. Runs in a thread."""
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
        if not self.ending:  # it was killed: without a new one pages would get no news
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
"""Kinds of messages that the list of runs receives."""
END: dict[str, Any] = {}
"""Message that ends a page's stream."""
