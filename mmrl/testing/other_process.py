"""A second process with another hash seed that makes the rows of tasks again. It takes seconds to start, so all checks share it.

It is restarted if it has died, or if a new process could find other plugins because the environment variables, the working
directory or `sys.path` have changed.
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
"""Seconds for the process to end by itself, together with processes that it started, such as a browser."""
PROGRAM = "mmrl.testing.other_process:serve"


def rows_in_subprocess(id: str, options: Mapping[str, Any], splits: Sequence[str], limit: int) -> dict[str, list[str]]:
    """Split -> fingerprints of its rows, made in another process. Raises CheckFailed if the process can't make them."""
    global _process
    if _process is None or not _process.is_current():
        if _process is not None:
            _process.close()
        _process = RowProcess()
    return _process.ask({"id": id, "options": dict(options), "splits": list(splits), "limit": limit})


class RowProcess(ChildProcess):
    """The second process. Requests and answers are lines of JSON; prints of tasks go to stderr."""

    def __init__(self) -> None:
        self._settings = _plugin_settings()
        hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
        super().__init__(
            PROGRAM,
            path=sys.path,
            pipes=True,
            stderr=tempfile.TemporaryFile(),  # noqa: SIM115 - it stays open as long as the process lives
            environment={**os.environ, "PYTHONHASHSEED": hash_seed},
            bound=False,  # it ends by itself, together with processes that it started, such as a browser
        )
        assert self.popen.stdin and self.popen.stdout
        self._requests, self._answers = self.popen.stdin, os.fdopen(self.popen.stdout.fileno(), "rb", closefd=False)

    def is_current(self) -> bool:
        """Whether the process is alive and finds the same plugins as a new process would."""
        return self.popen.poll() is None and self._settings == _plugin_settings()

    def ask(self, request: Mapping[str, Any]) -> dict[str, list[str]]:
        """The fingerprints of a task's rows. Raises CheckFailed with the process's error, or the last line of stderr if it
        died."""
        try:
            with contextlib.suppress(BrokenPipeError):  # it died, and the answer is empty too
                self._requests.write(json.dumps(request).encode() + b"\n")
            line = self._answers.readline()
        except BaseException:  # Ctrl-C or a time limit: the late answer would be read as that to the next request
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
        """End the process, even if a task keeps it busy."""
        self._requests.close()  # an idle process ends by this
        self.exit_code(PATIENCE_S)
        super().close()


_process: RowProcess | None = None


@atexit.register
def _close() -> None:
    if _process is not None:
        _process.close()


def _plugin_settings() -> tuple[Any, ...]:
    """The settings that decide which plugins are found. pytest's variable is left out, as it changes with each test."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return kept, os.getcwd(), list(sys.path)


def serve() -> None:
    """Answer requests until stdin is closed: the main function of the process."""
    requests, replies = take_pipes()
    with os.fdopen(replies, "w") as answers:
        for line in requests:
            answers.write(json.dumps(_answer(json.loads(line))) + "\n")
            answers.flush()


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    from mmrl.registry import plugins

    try:
        task, limit = plugins.registry().make_task(request["id"], request["options"]), request["limit"]
        return {"rows": {s: [fingerprint(p) for p in sample_rows(task, s, limit, broken=[])] for s in request["splits"]}}
    except Exception as error:  # noqa: BLE001 - the parent process reports it
        return {"error": describe_error(error)}


__all__ = ["rows_in_subprocess"]
