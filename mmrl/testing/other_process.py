"""A process with another hash seed, which makes the rows of tasks once more: one for all that are checked, as it takes seconds to
start.

It is started anew where it has died, and where another would find other plugins: the environment, the working directory or the
path of modules are not what they were.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.api.processes import ChildProcess
from mmrl.api.processes.child import describe_error, take_pipes
from mmrl.testing.checks import CheckFailed
from mmrl.testing.sample import fingerprint, sample_rows

PATIENCE_S = 10.0
"""For the process to end by itself, and what it started, such as a browser, with it."""
PROGRAM = "mmrl.testing.other_process:serve"


def rows_in_subprocess(id: str, options: Mapping[str, Any], splits: Sequence[str], limit: int) -> dict[str, list[str]]:
    """Split -> the fingerprints of its rows, as another process makes them. Raises Fault where it can't."""
    global _other
    if _other is None or not _other.fits():
        if _other is not None:
            _other.close()
        _other = RowProcess()
    return _other.ask({"id": id, "options": dict(options), "splits": list(splits), "limit": limit})


class RowProcess(ChildProcess):
    """The process. Requests and answers are lines of JSON; what tasks print is none of them."""

    def __init__(self) -> None:
        self._place = _place()
        hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
        super().__init__(
            PROGRAM,
            path=sys.path,
            pipes=True,
            stderr=tempfile.TemporaryFile(),  # noqa: SIM115 - it is open as long as the process is
            environment={**os.environ, "PYTHONHASHSEED": hash_seed},
            bound=False,  # it ends by itself, and what it started, such as a browser, with it
        )
        assert self.popen.stdin and self.popen.stdout
        self._requests, self._answers = self.popen.stdin, os.fdopen(self.popen.stdout.fileno(), "rb", closefd=False)

    def fits(self) -> bool:
        """It lives, and is as one that is started now."""
        return self.popen.poll() is None and self._place == _place()

    def ask(self, request: Mapping[str, Any]) -> dict[str, list[str]]:
        """What it says of a task. Raises Fault with the last line of its error, or of what it said before it died."""
        try:
            with contextlib.suppress(BrokenPipeError):  # it died: then there is no answer either
                self._requests.write(json.dumps(request).encode() + b"\n")
            line = self._answers.readline()
        except BaseException:  # Ctrl-C, a time limit: the answer that comes yet would be taken for that to the next request
            self.kill()
            raise
        if not line:
            self.popen.wait()
            self.stderr.seek(0)
            lines = self.stderr.read().decode(errors="replace").strip().splitlines()
            raise CheckFailed(f"another process can't make the rows: {(lines or ['it died'])[-1]}")
        answer = json.loads(line)
        if "error" in answer:
            raise CheckFailed(f"another process can't make the rows: {answer['error']}")
        return answer["rows"]

    def close(self) -> None:
        """Ends it, also where a task keeps it busy, as when a person gave up."""
        self._requests.close()  # which ends it where it waits to be asked
        self.exit_code(PATIENCE_S)
        super().close()


_other: RowProcess | None = None


@atexit.register
def _closed() -> None:
    if _other is not None:
        _other.close()


def _place() -> tuple[Any, ...]:
    """What decides on the plugins that are found. pytest's own variable has the name of each test."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return kept, os.getcwd(), list(sys.path)


def serve() -> None:
    """What the process does, until nobody asks any more."""
    requests, replies = take_pipes()
    with os.fdopen(replies, "w") as answers:
        for line in requests:
            answers.write(json.dumps(_answer(json.loads(line))) + "\n")
            answers.flush()


def _answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    from mmrl.registry import plugins

    try:
        task = plugins.registry().make_task(asked["id"], asked["options"])
        return {"rows": {s: [fingerprint(p) for p in sample_rows(task, s, asked["limit"], broken=[])] for s in asked["splits"]}}
    except Exception as error:  # noqa: BLE001 - whatever a task raises is told by who asked
        return {"error": describe_error(error)}


__all__ = ["rows_in_subprocess"]
