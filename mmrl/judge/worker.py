"""The process that runs the verifiers of one plugin. Jobs come in as pickles, replies go out as lines of JSON.

The engine starts it (`mmrl.judge.process`). docs/isolation.md says what a verifier can do in it, and what it can't.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib.util
import json
import mmap
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mmrl.api.errors import UserError, plugin_errors
from mmrl.api.processes import system_calls
from mmrl.api.processes.child import describe_error, take_pipes
from mmrl.compute.crossing import Fault, trace_of
from mmrl.judge.environment import MODULES
from mmrl.judge.messages import Row
from mmrl.judge.surroundings import Surroundings
from mmrl.judge.verifiers import BatchVerifier, LoadedVerifier
from mmrl.registry import plugins
from mmrl.registry.importing import make_importable

FLUSH_S = 0.01
"""Seconds between messages with results: a crash loses no more work than that."""


def main(progress_fd: int, memory_mb: int | None, strict: bool) -> None:
    """Load the verifiers, then run chunks of cases until the engine closes the pipe or dies. strict: forbid system calls that
    lead out of a sandbox."""
    jobs, replies = take_pipes()
    faulthandler.enable()  # a crash in C code names its line on stderr
    progress = memoryview(mmap.mmap(progress_fd, 0)).cast("q")
    os.close(progress_fd)
    if strict:
        system_calls.forbid()
    verifiers = _load(pickle.load(jobs), replies)
    if memory_mb is not None:
        _limit_memory(memory_mb)
    surroundings = Surroundings()
    _reply(replies, "ready")
    while True:
        try:
            serial, name, careful, payloads = pickle.load(jobs)
        except (EOFError, pickle.UnpicklingError):
            _end()  # the engine is gone
        verifier = verifiers[name]
        if isinstance(verifier, BatchVerifier):
            rows, healthy = _call(verifier, payloads, progress), verifier.healthy
        else:
            rows, healthy = _run(verifier, payloads, progress, partial(_reply, replies, "scores", serial), careful)
        _reply(replies, "done", serial, rows, surroundings.restore(isinstance(verifier, BatchVerifier)) and healthy)


def _call(model: BatchVerifier, payloads: list[bytes], progress: memoryview[int]) -> list[Row]:
    """Score a chunk in one call. If that raises, score the cases one by one, all together in the time limit of one call."""
    rows = model.score(payloads)
    if rows is None:
        progress[0] = 1
        rows = [model.score_one(payload) for payload in payloads]
    model.free_memory()
    return rows


def _run(
    verifier: LoadedVerifier, payloads: list[bytes], progress: memoryview[int], send: Callable[[list[Row]], None], careful: bool
) -> tuple[list[Row], bool]:
    """Score a chunk; the rows that were not sent, and whether the process can go on. `progress` tells the engine which case runs,
    so that deadlines cost no message; `careful` sends every result at once, so that a crash fails the right case."""
    rows: list[Row] = []
    flushed = time.monotonic()
    verifier.healthy = True
    for i, payload in enumerate(payloads):
        if rows and (careful or time.monotonic() - flushed > FLUSH_S):
            send(rows)
            rows, flushed = [], time.monotonic()
        progress[0] = i
        rows.append(verifier.score(payload))
    return rows, verifier.healthy


def _load(wanted: Mapping[str, Mapping[str, Any]], replies: int) -> dict[str, LoadedVerifier | BatchVerifier]:
    """The verifiers by id. A failure here is an error of the set-up, with which the engine stops."""
    try:
        make_importable(os.environ.get(MODULES, "").split(os.pathsep))
        registry = plugins.registry()
        specs = {name: registry.get("verifiers", name) for name in wanted}
        if any(spec.rollout for spec in specs.values()):
            _prepare_for_tensors()
        made = {name: registry.make_verifier(name, options) for name, options in wanted.items()}
        for name, function in made.items():
            if not specs[name].model:
                _prepare(name, function)
        return {name: BatchVerifier(f) if specs[name].model else LoadedVerifier(f) for name, f in made.items()}
    except BaseException as error:  # noqa: BLE001  the engine reports every error
        if isinstance(error, UserError):
            fault = Fault.of(error)
        else:
            fault = Fault("PluginError", f"verifiers could not be loaded: {describe_error(error)}", trace_of(error))
        _reply(replies, "fault", dataclasses.astuple(fault))
        sys.exit(1)


def _prepare(name: str, function: Callable[..., Any]) -> None:
    """Call `prepare` of a verifier's target, if it has one, with the verifier's options."""
    target, options = (function.func, function.keywords) if isinstance(function, partial) else (function, {})
    if prepare := getattr(target, "prepare", None):
        with plugin_errors(f"verifier {name!r}: prepare()"):
            prepare(**options)


def _prepare_for_tensors() -> None:
    """An episode in a simulator comes as tensors; importing what they need must not count for the first case."""
    if importlib.util.find_spec("torch"):
        importlib.import_module("torch")


def _reply(replies: int, kind: str, *body: Any) -> None:
    data = json.dumps([kind, *body]).encode() + b"\n"
    try:
        while data:
            data = data[os.write(replies, data) :]
    except OSError:  # a verifier closed it, or the engine is gone
        os._exit(os.EX_IOERR)


def _end() -> None:
    """Leave. Processes that verifiers left running are killed by the guard, or by this where there is none."""
    if sys.platform == "linux":
        os._exit(0)
    os.killpg(os.getpid(), signal.SIGKILL)


def _limit_memory(megabytes: int) -> None:
    """Let cases allocate this much beyond the memory of the imports; more raises MemoryError. Linux only.

    The hard limit stays, so that programs that a verifier starts may raise theirs; the engine measures them all. There is none of
    the address space: browsers reserve a multiple of what they use."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[5]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_DATA, (taken + megabytes * 2**20, resource.getrlimit(resource.RLIMIT_DATA)[1]))
