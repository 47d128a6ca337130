"""The process that runs verifiers. Jobs come in as pickles, replies go out as lines of JSON.

The engine starts it (`mmrl.judge.process`). A verifier can do no harm in it beyond its own case.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib.util
import json
import math
import mmap
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.processes.child import describe_error, short, take_pipes
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Case, Score
from mmrl.compute.crossing import Fault, trace_of
from mmrl.registry import plugins

FLUSH_S = 0.01
"""Seconds between messages with results: a crash loses no more work than that."""
REPLY_S = 10.0
"""Seconds that the engine may take to read a reply; they don't count for a case."""
SLACK = 1e-6
"""A value may be outside its range by this much, for rounding."""

Row = tuple[float | None, dict[str, float], str, list[float]]
"""The fields of a Score in a reply."""


def main(clock_fd: int, memory_mb: int | None) -> None:
    """Load the verifiers, then run chunks of cases until the engine closes the pipe or dies."""
    jobs, replies = take_pipes()
    faulthandler.enable()  # a crash in C code names its line on stderr
    clock = memoryview(mmap.mmap(clock_fd, 0)).cast("d")
    os.close(clock_fd)
    verifiers = _load(pickle.load(jobs), replies)
    if memory_mb is not None:
        _limit_memory(memory_mb)
    _reply(replies, "ready", None)
    while True:
        try:
            name, careful, payloads = pickle.load(jobs)
        except (EOFError, pickle.UnpicklingError):
            os.killpg(os.getpid(), signal.SIGKILL)  # the engine is gone: also kill processes that verifiers left running
        verifier = verifiers[name]
        if isinstance(verifier, BatchVerifier):
            _call(verifier, payloads, clock, replies)
        else:
            _run(verifier, payloads, careful, clock, replies)


def _call(model: BatchVerifier, payloads: list[bytes], clock: memoryview[float], replies: int) -> None:
    """Score a chunk in one call. If that raises, score the cases one by one, all together in the time limit of one call."""
    clock[1] = time.monotonic()
    rows = model.score(payloads)
    if rows is None:
        clock[1] = time.monotonic()
        rows = [model.score_one(payload) for payload in payloads]
    clock[1] = time.monotonic() + REPLY_S
    _reply(replies, "done", [rows, True])


def _run(verifier: LoadedVerifier, payloads: list[bytes], careful: bool, clock: memoryview[float], replies: int) -> None:
    """Score a chunk. `clock` tells the engine which case runs and since when, so that deadlines cost no message;
    `careful` sends every result at once, so that a crash fails the right case."""
    rows: list[Row] = []
    flushed = time.monotonic()
    verifier.healthy = True
    for i, payload in enumerate(payloads):
        now = time.monotonic()
        if rows and (careful or now - flushed > FLUSH_S):
            clock[1] = now + REPLY_S
            _reply(replies, "scores", rows)
            rows, flushed = [], now
        clock[0] = i
        clock[1] = now
        rows.append(verifier.score(payload))
    clock[1] = time.monotonic() + REPLY_S
    _reply(replies, "done", [rows, verifier.healthy and not _has_children()])


class LoadedVerifier:
    """A verifier and its spec."""

    def __init__(self, function: Callable[[Case], Any], spec: VerifierSpec) -> None:
        self.function, self.spec = function, spec
        self.healthy = True
        """False after a MemoryError: the process is replaced, to free the verifier's memory."""
        self._process = os.getpid()

    def score(self, payload: bytes) -> Row:
        """Score one case, unpickled anew so that changes to it don't last; any error gives a failed row."""
        try:
            case = pickle.loads(payload)
            moments = _moments(case)  # before the verifier can change it
            row = _checked(self.function(case), self.spec, moments)
        except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt of a verifier are failures too
            self.healthy &= not isinstance(error, MemoryError)
            row = (None, {}, describe_error(error), [])
        if os.getpid() != self._process:  # a fork that came back from the verifier must not reply
            os._exit(0)
        return row


class BatchVerifier:
    """A verifier that is a model, which takes several cases at once."""

    def __init__(self, model: Callable[[list[Case]], Sequence[Any]], spec: VerifierSpec) -> None:
        self.model, self.spec = model, spec

    def score(self, payloads: list[bytes]) -> list[Row] | None:
        """One call; None if it raised, or one of its scores is invalid."""
        try:
            return self._score(payloads)
        except Exception:  # noqa: BLE001  scored alone, each case gives its own error
            return None

    def score_one(self, payload: bytes) -> Row:
        """One case; any error gives a failed row."""
        try:
            return self._score([payload])[0]
        except Exception as error:  # noqa: BLE001
            return None, {}, describe_error(error), []

    def _score(self, payloads: list[bytes]) -> list[Row]:
        cases = [pickle.loads(payload) for payload in payloads]
        moments = [_moments(case) for case in cases]
        results = self.model(cases)
        if not isinstance(results, list | tuple) or len(results) != len(cases):
            many = f"{len(results)} of them" if isinstance(results, list | tuple) else f"a {type(results).__name__}"
            raise BadScore(f"the model must give a list of {len(cases)} scores, one for each case, and gave {many}")
        return [_checked(result, self.spec, n) for result, n in zip(results, moments, strict=True)]


def _moments(case: Case) -> int:
    """The number of `Score.steps` that a verifier may give: calls of the policy, or turns."""
    return case.rollout.num_calls if case.rollout else 0


def _checked(result: Any, spec: VerifierSpec, moments: int) -> Row:
    """What a verifier returned as a row. Raises BadScore if it is not a score, or outside the range of the spec."""
    score = result if isinstance(result, Score) else Score(result)
    if isinstance(result, Score) and score.value is None:
        return None, {}, short(score.detail) or "the verifier gave no value", []
    value = _number(score.value, "the value is")
    if not spec.low - SLACK <= value <= spec.high + SLACK:
        raise BadScore(f"the value is {value:g}, outside its range [{spec.low:g}, {spec.high:g}]")
    parts = {str(k): _number(v, f"part {k!r} is") for k, v in score.parts.items()}
    steps = [_number(s, "one of the steps is") for s in score.steps]
    if steps and len(steps) != moments:
        what = (
            f"the episode has {moments} calls or turns"
            if moments
            else "the verifier sees no episode: its spec needs rollout=True"
        )
        raise BadScore(f"it gave {len(steps)} steps, and {what}")
    return value, parts, short(score.detail), steps


class BadScore(Exception):
    """A verifier returned something that is not a score."""

    plain = True


def _number(value: Any, what: str) -> float:
    """One finite number (bool, NumPy and torch scalars too) as a float. Raises BadScore for anything else."""
    try:
        number = math.nan if isinstance(value, str | bytes | bytearray) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number):
        return number
    raise BadScore(f"{what} {value if isinstance(value, float) else f'of type {type(value).__name__}'}, not a finite number")


def _load(wanted: Mapping[str, Mapping[str, Any]], replies: int) -> dict[str, LoadedVerifier | BatchVerifier]:
    """The verifiers by id. A failure here is an error of the set-up, with which the engine stops."""
    try:
        registry = plugins.registry()
        specs = {name: registry.get("verifiers", name) for name in wanted}
        if any(spec.rollout for spec in specs.values()):
            _prepare_for_tensors()
        made = {name: registry.make_verifier(name, options) for name, options in wanted.items()}
        return {
            name: BatchVerifier(f, specs[name]) if specs[name].model else LoadedVerifier(f, specs[name])
            for name, f in made.items()
        }
    except BaseException as error:  # noqa: BLE001  the engine reports every error
        if isinstance(error, UserError):
            fault = Fault.of(error)
        else:
            fault = Fault("PluginError", f"verifiers could not be loaded: {describe_error(error)}", trace_of(error))
        _reply(replies, "fault", dataclasses.astuple(fault))
        sys.exit(1)


def _prepare_for_tensors() -> None:
    """An episode in a simulator comes as tensors; importing what they need must not count for the first case."""
    if importlib.util.find_spec("torch"):
        importlib.import_module("torch")


def _reply(replies: int, kind: str, body: Any) -> None:
    data = json.dumps([kind, body]).encode() + b"\n"
    try:
        while data:
            data = data[os.write(replies, data) :]
    except OSError:  # a verifier closed it, or the engine is gone
        os._exit(os.EX_IOERR)


def _limit_memory(megabytes: int) -> None:
    """Let cases allocate this much beyond the memory of the imports; more raises MemoryError. Linux only."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[5]) * mmap.PAGESIZE
        limit = taken + megabytes * 2**20
        most = resource.getrlimit(resource.RLIMIT_DATA)[
            1
        ]  # the hard limit stays, so that programs that a verifier starts may raise theirs
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def _has_children() -> bool:
    """Reap what exited; True if a process that a verifier started is still running."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
