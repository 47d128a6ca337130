"""The indexer process, `python -m mmrl.ui.board.indexer FOLDER [DESCRIPTOR]`, which fills the indexes of runs while the board
serves pages.

It reads JSON lines `{"runs": [NAME, ...], "all": bool, "skip": [NAME, ...]}` from stdin: the runs to index, whether to report the
states of all runs, and runs to leave alone. It writes JSON lines `{"kind", "run", ...}` with the changes to stdout. It exits at
the end of stdin. The file of DESCRIPTOR has the name of the run that it works on as a JSON line, so that whoever started it knows
which run it died of.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from mmrl.run_folder.validated import to_storable
from mmrl.ui.board.index import Index, News
from mmrl.ui.board.run_paths import NotFound, RunPaths, index_file
from mmrl.ui.board.state import State, state_in_list

PAUSE = 0.2
"""Seconds between two passes over the indexed runs."""
LIST = 1.0
"""Seconds between two passes over the states of runs."""
SLICE = 0.15
"""Seconds that one run is indexed before it is the next one's turn."""
TOLD = 200
"""Maximal new rows that are sent; for more, pages are told to reload."""
MEMORY, HANG = 2 << 30, 60
"""Address space of the process in bytes; seconds of one pass over a run after which the system ends the process."""


class Indexer:
    """Indexes runs and reports their changes. tell: called with each message, a dictionary. mark: called with the name of the run
    that is worked on, empty for none."""

    def __init__(self, places: RunPaths, tell: Callable[[dict[str, Any]], None], mark: Callable[[str], None]) -> None:
        self.places, self.tell, self.mark = places, tell, mark
        self.wanted: list[str] = []
        self.skip: frozenset[str] = frozenset()
        self.all = False
        self.indexes: dict[str, Index] = {}
        self.states: dict[str, State] = {}
        self.listed, self.pause = 0.0, LIST

    def asked(self, line: bytes) -> None:
        """Take an order from stdin: the runs to index from now on."""
        order = json.loads(line)
        self.wanted, self.all, self.skip = order["runs"], order["all"], frozenset(order["skip"])
        for name in self.indexes.keys() - set(self.wanted):
            self.indexes.pop(name).close()
        self.listed = 0.0

    def look(self) -> bool:
        """One pass over all runs; returns whether there is more to index."""
        behind = [self._grow(name) for name in self.wanted]
        if time.monotonic() - self.listed > self.pause:
            self._list()
        return any(behind)

    @contextlib.contextmanager
    def _at(self, name: str) -> Iterator[None]:
        """Work on a run. A pass that takes too long ends the process, as a run that needs too much memory would."""
        self.mark(name)
        signal.alarm(HANG)
        try:
            yield
        finally:
            signal.alarm(0)
            self.mark("")

    def _grow(self, name: str) -> bool:
        try:
            with self._at(name):
                index = self.indexes.get(name)
                if index is None:
                    run = self.places.run(name)
                    index = self.indexes[name] = Index(run, index_file(run))
                    self.tell({"kind": "ready", "run": name})
                news = index.grow(SLICE)
        except Exception as error:  # noqa: BLE001  one broken run must not stop the others; its pages show the error
            if not isinstance(error, OSError | NotFound | sqlite3.Error):
                traceback.print_exc()
            if name in self.indexes:
                self.indexes.pop(name).close()
            self.tell({"kind": "gone", "run": name, "why": f"{type(error).__name__}: {error}"[:300]})
            self.wanted = [other for other in self.wanted if other != name]
            return False
        for message in update_messages(news):
            self.tell({"run": name, **message})
        return index.behind

    def _list(self) -> None:
        began = time.monotonic()
        names = self.places.names() if self.all else self.wanted
        for name in names:
            if name in self.skip:
                continue
            with self._at(name):
                current = state_in_list(name, self.places)
            if current and self.states.get(name) != current:
                self.states[name] = current
                self.tell({"kind": "state", "run": name, "state": asdict(current)})
        if self.all:
            for name in self.states.keys() - set(names):
                del self.states[name]
                self.tell({"kind": "removed", "run": name})
        self.listed = time.monotonic()
        self.pause = max(LIST, 10 * (self.listed - began))


def update_messages(news: News) -> Iterator[dict[str, Any]]:
    """The messages about a run's news."""
    steps = [row for row in news.rows if "metrics" in row]
    if news.again or len(news.rows) > TOLD:
        yield {"kind": "steps", "reload": True}
    elif steps:
        yield {"kind": "steps", "rows": steps}
    if not news.again and len(news.rows) <= TOLD:
        for row in news.rows:
            if "eval" in row:
                yield {"kind": "eval", "row": row}
    if news.errors:
        yield {"kind": "errors", "rows": news.errors[-TOLD:]}
    if news.steps:
        yield {"kind": "rollouts", "step": max(news.steps)}


def main(folder: str, marker: int | None = None) -> None:
    """Index runs below a folder until the end of stdin. marker: descriptor of the file for the name of the current run."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard), hard))

    def mark(name: str) -> None:
        if marker is not None:
            os.pwrite(marker, json.dumps(name).encode() + b"\n", 0)

    def tell(message: dict[str, Any]) -> None:
        print(json.dumps(to_storable(message), allow_nan=False), flush=True)

    watching = Indexer(RunPaths.of(folder), tell, mark)
    orders, pending, busy = sys.stdin.buffer.fileno(), b"", False
    while True:
        ready, _, _ = select.select([orders], [], [], 0 if busy else PAUSE)
        if ready:
            data = os.read(orders, 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                watching.asked(line)
        busy = watching.look()


if __name__ == "__main__":
    try:
        main(sys.argv[1], *map(int, sys.argv[2:]))
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)
