"""The indexer process, `python -m mmrl.ui.board.indexer FOLDER`, which fills the indexes of runs while the board serves pages.

It reads JSON lines `{"runs": [NAME, ...], "all": bool}` from stdin: the runs to index, and whether to report the states of all
runs. It writes JSON lines `{"kind", "run", ...}` with the changes to stdout. It exits at the end of stdin.
"""

from __future__ import annotations

import json
import os
import select
import sqlite3
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mmrl.run_folder.validated import to_storable
from mmrl.ui.board.index import Index, News
from mmrl.ui.board.run_paths import NotFound, RunPaths, index_file
from mmrl.ui.board.state import State, state

PAUSE = 0.2
"""Seconds between two passes over the indexed runs."""
LIST = 1.0
"""Seconds between two passes over the states of runs."""
SLICE = 0.15
"""Seconds that one run is indexed before it is the next one's turn."""
TOLD = 200
"""Maximal new rows that are sent; for more, pages are told to reload."""


class Indexer:
    """Indexes runs and reports their changes. tell: called with each message, a dictionary."""

    def __init__(self, places: RunPaths, tell: Any) -> None:
        self.places, self.tell = places, tell
        self.wanted: list[str] = []
        self.all = False
        self.indexes: dict[str, Index] = {}
        self.states: dict[str, State] = {}
        self.listed = 0.0

    def asked(self, line: bytes) -> None:
        """Take an order from stdin: the runs to index from now on."""
        order = json.loads(line)
        self.wanted, self.all = order["runs"], order["all"]
        for name in self.indexes.keys() - set(self.wanted):
            self.indexes.pop(name).close()
        self.listed = 0.0

    def look(self) -> bool:
        """One pass over all runs; returns whether there is more to index."""
        behind = [self._grow(name) for name in self.wanted]
        if time.monotonic() - self.listed > LIST:
            self._list()
        return any(behind)

    def _grow(self, name: str) -> bool:
        try:
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
        names = self.places.names() if self.all else self.wanted
        for name in names:
            try:
                current = state(name, self.places.run(name))
            except (FileNotFoundError, NotFound):  # the run was just removed
                continue
            if self.states.get(name) != current:
                self.states[name] = current
                self.tell({"kind": "state", "run": name, "state": asdict(current)})
        if self.all:
            for name in self.states.keys() - set(names):
                del self.states[name]
                self.tell({"kind": "removed", "run": name})
        self.listed = time.monotonic()


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


def main(folder: str) -> None:
    watching = Indexer(RunPaths.of(folder), lambda message: print(json.dumps(to_storable(message), allow_nan=False), flush=True))
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
        main(sys.argv[1])
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)
