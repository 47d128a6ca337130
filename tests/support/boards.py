"""A board in a process of its own, for tests: started on a free port, asked by address, ended."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode


@dataclass
class Answer:
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Running:
    """A board that listens."""

    port: int
    process: subprocess.Popen[bytes]
    caches: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, /, headers: dict[str, str] | None = None, method: str = "GET", **fields: Any) -> Answer:
        """The answer to a request, whose path is sent as it is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.putrequest(
                method,
                path + (f"?{urlencode(fields, doseq=True)}" if fields else ""),
                skip_host=bool(headers and "Host" in headers),
            )
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def indexed(self, run: str, rollouts: int) -> None:
        """Waits until so many rollouts are in the index."""
        end = time.monotonic() + 30
        while f"{rollouts:,} rollout" not in (said := self.get("/part/groups", run=run).text):
            assert time.monotonic() < end, said[:300]
            time.sleep(0.1)


@contextlib.contextmanager
def board(folder: Path, caches: Path, *options: str, token: str = "") -> Iterator[Running]:
    """`mmrl board FOLDER --port 0 ...` until the block ends; it must end within seconds, and never have raised."""
    env = {**os.environ, "XDG_CACHE_HOME": str(caches), "MMRL_BOARD_TOKEN": token}
    caches.mkdir(parents=True, exist_ok=True)
    log = caches / f"board-{time.monotonic_ns()}.log"
    with open(log, "wb") as output:
        command = [sys.executable, "-m", "mmrl", "board", str(folder), "--port", "0", *options]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)
    try:
        while not (found := re.search(r"http://[^/]*:(\d+)/", log.read_text())):
            assert process.poll() is None, f"the board ended: {log.read_text()}"
            time.sleep(0.05)
        running = Running(int(found[1]), process, caches)
        _wait(running)
        yield running
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    assert "Traceback" not in log.read_text(), log.read_text()


def _wait(running: Running) -> None:
    end = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError):
            running.get("/static/page.css")
            return
        assert time.monotonic() < end
        time.sleep(0.05)
