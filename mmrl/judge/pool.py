"""Worker processes and their deadlines: one thread hands out chunks of cases, reads replies and replaces workers.

Each worker shares the index of its case with the engine, which looks at it and counts the time by its own clock. When a deadline
is missed, too much memory is occupied, or the worker dies, one case fails and the worker is killed with all its descendants.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Case, Score
from mmrl.compute.crossing import Fault
from mmrl.judge.messages import Chunk, Ready, Request, Scores, scored
from mmrl.judge.process import Worker

START_S, MODEL_START_S = 120.0, 1200.0
"""Seconds that a worker has to import its plugins; and to load models besides."""
TICK_S = 0.25
"""Seconds between looks at workers that are busy: at their case, their memory, and whether they still live."""
LOOKS = 4
"""Looks at a worker within its deadline, at least: a late case is stopped by a quarter of its deadline later."""
CHUNK = 256
HEAVY_CHUNK = 8
"""Cases per message, at most; fewer where cases carry images. A model takes `VerifierSpec.batch_size` at once."""


@dataclass(eq=False, slots=True)
class WorkerGroup:
    """Workers that load the same verifiers, and their queue."""

    spawn: Callable[[], Worker]
    verifiers: frozenset[str]
    count: int
    """How many workers."""
    model: bool = False
    """The verifiers are models: a message is one call, whose cases are late or lost together."""
    ready: bool = False
    """One of the workers has loaded everything."""
    queue: deque[Chunk] = field(default_factory=deque)

    @property
    def start_s(self) -> float:
        """Seconds that a worker has to start."""
        return MODEL_START_S if self.model else START_S


class Pool:
    """A fixed number of workers that are replaced when they hang or die."""

    def __init__(self, specs: Mapping[str, VerifierSpec], deadlines: Mapping[str, float], crews: Sequence[WorkerGroup]) -> None:
        self._specs, self._deadlines, self._crews = specs, deadlines, crews
        self._workers: list[Worker] = []
        self._requests: list[Request] = []
        self._lock = threading.Lock()
        self._inbox: deque[Request] = deque()
        self._fault: BaseException | None = None
        self._closing = False
        self.loaded: Future[None] = Future()
        """Resolved when a worker of each group has loaded its verifiers, or with the error of one that failed."""
        if not crews:
            self.loaded.set_result(None)
        self._selector = selectors.DefaultSelector()
        self._bell, self._button = os.pipe()
        os.set_blocking(self._button, False)
        self._selector.register(self._bell, selectors.EVENT_READ, lambda: os.read(self._bell, 4096))
        # Linux kills a worker when the thread that started it ends, so one thread starts them all and outlives them.
        self._thread = threading.Thread(target=self._drive, name="mmrl-judge", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request; its future gets the result, or the UserError of verifiers that can't be loaded."""
        with self._lock:
            if self._closing:
                raise self._fault or RuntimeError("the judge is closed")
            request.future.set_running_or_notify_cancel()
            self._inbox.append(request)
            self._ring()

    def close(self) -> None:
        """Kill the workers; unfinished requests are cancelled."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._ring()
        self._thread.join()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the engine is notified already
            os.write(self._button, b"!")

    def _drive(self) -> None:
        try:
            while not self._closing:
                self._accept()
                self._hand_out()
                for key, _ in self._selector.select(self._patience()):
                    key.data()
                self._look_after()
        except BaseException as error:  # noqa: BLE001  pending futures raise it
            self._fail(error)
        for worker in self._workers:
            worker.close()
        with self._lock:
            self._closing = True
            for future in [self.loaded, *(r.future for r in [*self._requests, *self._inbox])]:
                if not future.done():
                    future.set_exception(CancelledError("the judge was closed"))
            self._selector.close()
            os.close(self._bell)
            os.close(self._button)

    def _accept(self) -> None:
        """Cut new requests into chunks, small enough that all workers get some and slow cases even out."""
        while self._inbox:
            request = self._inbox.popleft()
            if self._fault:
                request.future.set_exception(self._fault)
                continue
            self._requests.append(request)
            for name, indices in request.wanted.items():
                request.scores[name] = {}
                request.missing += len(indices)
                crew, spec = next(c for c in self._crews if name in c.verifiers), self._specs[name]
                size = HEAVY_CHUNK if spec.images or spec.rollout else CHUNK
                if crew.model:
                    size = spec.batch_size
                else:
                    size = min(size, math.ceil(len(indices) / (4 * crew.count)))
                crew.queue += [Chunk(request, name, list(indices[i : i + size])) for i in range(0, len(indices), size or 1)]
            self._finish(request)

    def _hand_out(self) -> None:
        for crew in self._crews:
            while sum(w.crew is crew for w in self._workers) < crew.count and not self._fault:
                self._hire(crew)
        for worker in self._workers:
            while worker.crew.queue and worker.ready and not worker.chunk:
                self._give(worker, worker.crew.queue.popleft())

    def _hire(self, crew: WorkerGroup) -> None:
        try:
            worker = crew.spawn()
        except OSError as error:
            self._fail(UserError(f"the judge can't start a worker process: {error}"))
            return
        worker.crew = crew
        self._workers.append(worker)
        self._selector.register(worker.stdin, selectors.EVENT_WRITE, partial(self._write, worker))
        self._selector.register(worker.stdout, selectors.EVENT_READ, partial(self._read, worker))
        self._selector.register(worker.stderr, selectors.EVENT_READ, partial(self._listen, worker))

    def _give(self, worker: Worker, chunk: Chunk) -> None:
        spec, payloads, sent = self._specs[chunk.verifier], [], []
        for i in chunk.indices:
            try:
                payloads.append(payload(chunk.request.cases[i], spec))
                sent.append(i)
            except Exception as error:  # noqa: BLE001  pickling runs code of the case's objects
                chunk.request.put(chunk.verifier, i, pickling_failure(error))
        chunk.indices = sent
        if sent:
            worker.send(chunk, payloads)
            self._selector.register(worker.stdin, selectors.EVENT_WRITE, partial(self._write, worker))
        self._finish(chunk.request)

    def _write(self, worker: Worker) -> None:
        worker.write()
        if not worker.outbox:
            self._selector.unregister(worker.stdin)

    def _listen(self, worker: Worker) -> None:
        if not worker.listen():
            self._selector.unregister(worker.stderr)

    def _read(self, worker: Worker) -> None:
        for reply in worker.read():
            if isinstance(reply, Ready):
                worker.loaded()
                worker.crew.ready = True
                if all(crew.ready for crew in self._crews) and not self.loaded.done():
                    self.loaded.set_result(None)
            elif isinstance(reply, Fault):
                self._fail(reply.error("a worker of the judge"))
            elif chunk := worker.chunk:
                self._take(chunk, reply)
                if reply.healthy is not None:
                    worker.chunk, worker.spent = None, not reply.healthy
                    self._finish(chunk.request)

    def _take(self, chunk: Chunk, reply: Scores) -> None:
        spec, request = self._specs[chunk.verifier], chunk.request
        for row in reply.rows:
            index = chunk.indices.pop(0)
            request.put(chunk.verifier, index, scored(row, spec, request.cases[index]))

    def _patience(self) -> float | None:
        """Seconds until a worker must be looked at; None if no worker is busy."""
        busy = [w for w in self._workers if w.chunk or not w.ready]
        ticks = [min(TICK_S, self._allowed(w) / LOOKS) for w in busy]
        return max(0.0, min(*ticks, *(self._limit(w) - time.monotonic() for w in busy))) if busy else None

    def _allowed(self, worker: Worker) -> float:
        """Seconds that the worker has for what it does."""
        if not worker.chunk:
            return worker.crew.start_s
        return self._deadlines[worker.chunk.verifier] * (worker.sent if worker.crew.model else 1)

    def _limit(self, worker: Worker) -> float:
        """The time at which a busy worker is late."""
        return (worker.since if worker.chunk else worker.born) + self._allowed(worker)

    def _look_after(self) -> None:
        for worker in list(self._workers):
            worker.observe()
            if worker.spent:
                self._dismiss(worker)
            elif worker.ended or worker.popen.poll() is not None:
                self._bury(worker)
            elif (worker.chunk or not worker.ready) and time.monotonic() > (limit := self._limit(worker)):
                self._bury(worker, self._lateness(worker), limit)
            elif worker.chunk and (excess := worker.excess_memory(TICK_S)):
                self._bury(worker, excess, self._limit(worker))

    def _lateness(self, worker: Worker) -> str:
        if not worker.chunk:
            what = "loading the models" if worker.crew.model else "importing the verifiers"
            return f"{what} took longer than {worker.crew.start_s:g} s"
        many = f" for each of {worker.sent} cases" if worker.crew.model else ""
        return f"took longer than its deadline of {self._deadlines[worker.chunk.verifier]:g} s{many}"

    def _bury(self, worker: Worker, late: str = "", limit: float = 0.0) -> None:
        """Fail one case for a worker that died, is too late or took too much memory; the others go back to the queue.

        The worker was on case `at`. If it was late, that case fails. If it died, that case is certain to be the cause only
        if it was the first without a result (an earlier case may have damaged the process, such as by closing its pipe);
        otherwise all are run again, with every result sent at once, as after a bad reply, which an earlier chunk may have left
        behind. A model is called with all of them, so all of them fail.
        """
        why = late or worker.cause_of_death()
        worker.kill()
        worker.observe()
        self._read(worker)
        chunk = worker.chunk
        if not worker.ready and not self._fault:
            self._fail(UserError(f"the judge's worker could not start: {why}"))
        if chunk and worker.crew.model:
            for index in chunk.indices:
                chunk.request.put(chunk.verifier, index, Score(None, {}, why[:500]))
            self._finish(chunk.request)
        elif chunk:
            running = worker.at - (worker.sent - len(chunk.indices))
            if late:
                culprit = running if self._limit(worker) == limit and 0 <= running < len(chunk.indices) else None
            else:
                culprit = 0 if chunk.careful or (running == 0 and not worker.broken) else None
            if culprit is not None:
                chunk.request.put(chunk.verifier, chunk.indices.pop(culprit), Score(None, {}, why[:500]))
            if chunk.indices:
                worker.crew.queue.appendleft(Chunk(chunk.request, chunk.verifier, chunk.indices, careful=culprit is None))
            self._finish(chunk.request)
        self._dismiss(worker)

    def _dismiss(self, worker: Worker) -> None:
        for pipe in (worker.stdin, worker.stdout, worker.stderr):
            if pipe in self._selector.get_map():
                self._selector.unregister(pipe)
        worker.close()
        self._workers.remove(worker)

    def _finish(self, request: Request) -> None:
        if not request.missing and request in self._requests:
            self._requests.remove(request)
            try:
                request.future.set_result(request.finish(request.scores))
            except Exception as error:  # noqa: BLE001  the future raises it, and the pool goes on
                request.future.set_exception(error)

    def _fail(self, error: BaseException) -> None:
        """Fail all present and later requests with this error."""
        self._fault = error
        for crew in self._crews:
            crew.queue.clear()
        for future in [self.loaded, *(r.future for r in self._requests)]:
            if not future.done():
                future.set_exception(error)
        self._requests.clear()


def payload(case: Case | bytes, spec: VerifierSpec) -> bytes:
    """A case pickled for a verifier of this spec. Raises any error of pickling."""
    return case if isinstance(case, bytes) else pickle.dumps(strip_case(case, spec))


def pickling_failure(error: Exception) -> Score:
    """The score of a case that can't be pickled."""
    return Score(None, {}, f"the case can't be pickled: {error}"[:500])


def strip_case(case: Case, spec: VerifierSpec) -> Case:
    """The case as a verifier of this spec gets it: images and the episode only if the spec requests them, never model inputs."""
    changes: dict[str, Any] = {}
    if case.media and not spec.images:
        changes["media"] = ()
    if case.rollout is not None:
        changes["rollout"] = case.rollout.portable() if spec.rollout else None
    return replace(case, **changes) if changes else case
