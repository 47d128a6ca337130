"""The parent's side of `mmrl_interop.worlds.child`: a few processes, each with many sessions."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from mmrl import EnvironmentFailed, UserError
from mmrl.api.processes import ENVIRONMENT, ChildProcess
from mmrl.api.processes.answers import TookTooLong, exchange
from mmrl.api.tasks.option_checks import check_integer
from mmrl_interop.worlds.child import LARGEST

SERVING = Path(__file__).with_name("child.py")
GRACE_S = 5.0
"""Seconds that a process has to end a call itself; then it is killed, with all its sessions."""


class WorldProcesses:
    """Other programs' environments in processes; a process that dies or hangs is replaced, and its episodes are lost."""

    def __init__(
        self,
        what: str,
        target: str,
        options: Mapping[str, Any],
        *,
        python: str | None = None,
        processes: int = 1,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        start_s: float = 180.0,
        guard: bool = False,
    ) -> None:
        """what: their name in messages. target: `module:class` of this package, see `child`. options: of the class. python:
        another interpreter. processes: how many at most. environment: more variables for them. timeout_s: seconds of a call.
        start_s: seconds of a start. guard: kill what they start, too. Nothing is started yet."""
        check_integer("processes", processes, 1, 256)
        if python is not None and not (Path(python).is_file() and os.access(python, os.X_OK)):
            raise UserError(
                f"{what}: python = {python!r:.100} is no program: give the path of an interpreter, such as .venv/bin/python"
            )
        self.what, self.target, self.options, self.timeout_s, self.start_s = what, target, dict(options), timeout_s, start_s
        self.python, self.guard, self.most = python, guard, processes
        self.environment = {**os.environ, **ENVIRONMENT, **(environment or {})}
        self._lock, self.counting, self._alive = threading.Lock(), threading.Lock(), list[_Process]()
        weakref.finalize(self, _close_all, self._alive).atexit = False  # at exit they end with their thread

    @property
    def facts(self) -> dict[str, Any]:
        """What the worlds say of themselves. Raises UserError if they can't be made."""
        try:
            return self._free().facts
        except EnvironmentFailed as error:
            raise UserError(str(error)) from error

    def open(self) -> Session:
        """A new session, in the process with the fewest. Raises EnvironmentFailed, or UserError for options that can't be."""
        return Session(self, self._free())

    def close(self) -> None:
        """Kill the processes."""
        _close_all(self._alive)

    def _free(self) -> _Process:
        with self._lock:
            for dead in [process for process in self._alive if process.ended]:
                self._alive.remove(dead)
            if self._alive and (len(self._alive) == self.most or not min(p.sessions for p in self._alive)):
                return min(self._alive, key=lambda process: process.sessions)
            process = _Process(self)
            self._alive.append(process)
            return process


class Session:
    """One episode's environment."""

    def __init__(self, worlds: WorldProcesses, process: _Process) -> None:
        self.worlds, self.process, self.number = worlds, process, next(process.numbers)
        self._closed = False
        self._count(1)

    def call(self, method: str, **arguments: Any) -> Any:
        """Raises EnvironmentFailed if the environment raised, hangs or died."""
        try:
            return self.process.ask(self.number, method, arguments, self.worlds.timeout_s)
        except UserError as error:
            raise EnvironmentFailed(str(error)) from error

    def close(self) -> None:
        """May be called twice, and after the process died."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(EnvironmentFailed, UserError):
                self.process.ask(self.number, "close", {}, self.worlds.timeout_s)
            self._count(-1)

    def _count(self, more: int) -> None:
        with self.worlds.counting:
            self.process.sessions += more


class _Process:
    """A process; one call at a time."""

    def __init__(self, worlds: WorldProcesses) -> None:
        module = worlds.target.partition(":")[0]
        file = Path(__file__).with_name(module.rpartition(".")[2]).with_suffix(".py")
        # it dies with the thread that starts it, which must be one that stays
        self.child = (
            _starter()
            .submit(
                ChildProcess,
                "mmrl_interop.worlds.child:serve",
                [worlds.target, str(file), worlds.options],
                file=str(SERVING),
                python=worlds.python,
                pipes=True,
                environment=worlds.environment,
                guard=worlds.guard,
            )
            .result()
        )
        self.what, self.sessions, self.numbers, self.ended = worlds.what, 0, itertools.count(), False
        self._lock, self._inbox = threading.Lock(), bytearray()
        try:
            self.facts: dict[str, Any] = self._answer(worlds.start_s)
        except BaseException:
            self.close()
            raise

    def ask(self, session: int, method: str, arguments: Mapping[str, Any], seconds: float) -> Any:
        """Raises EnvironmentFailed, and UserError for what the user can mend."""
        call = {"session": session, "method": method, "arguments": arguments, "seconds": seconds}
        with self._lock:
            if self.ended:
                raise EnvironmentFailed(f"{self.what}: its process was lost in another episode")
            return self._answer(seconds + GRACE_S, json.dumps(call).encode() + b"\n")

    def close(self) -> None:
        self.ended = True
        self.child.close()

    def _answer(self, seconds: float, request: bytes = b"") -> Any:
        line = self._exchange(request, time.monotonic() + seconds)
        if line is None:
            gone = self.child.exit_code(0.2) is not None
            why = self.child.how_it_ended() if gone else f"took longer than {seconds:g} s and was killed"
            self.close()
            raise EnvironmentFailed(f"{self.what}: its process {why}")
        try:
            answer = json.loads(line)
        except ValueError:
            self.close()
            raise EnvironmentFailed(f"{self.what}: its process sent no JSON: {line[:60]!r}") from None
        if "refused" in answer:
            raise UserError(f"{self.what}: {answer['refused']}")
        if "failed" in answer:
            raise EnvironmentFailed(f"{self.what}: {answer['failed']}")
        return answer["done"]

    def _exchange(self, request: bytes, deadline: float) -> bytes | None:
        """Send a request and return the next line; None if the process ended or is late."""
        end, parts = self._inbox.find(b"\n"), exchange(self.child, request, lambda: deadline - time.monotonic())
        try:
            while end < 0:
                part = next(parts, b"")
                if not part or len(self._inbox) > LARGEST:
                    return None
                end = len(self._inbox) + found if (found := part.find(b"\n")) >= 0 else -1
                self._inbox += part
        except (TookTooLong, OSError):
            return None
        line = bytes(self._inbox[:end])
        del self._inbox[: end + 1]
        return line


@cache
def _starter() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "worlds-start")


os.register_at_fork(after_in_child=_starter.cache_clear)  # a fork doesn't have its thread


def _close_all(processes: list[_Process]) -> None:
    for process in processes:
        process.close()
    processes.clear()
