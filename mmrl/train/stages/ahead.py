"""Completions of later steps are sampled while the learner learns: bounded, and the same in every run with the same seed.

Weights change hands only while nobody samples. Once step s has its completions, and none are being sampled, the sampler takes the
weights of that moment and samples for the next `staleness` steps. So those of step s + k are k versions old when they are learned
from, whoever is quicker. With `staleness = 0` none of this is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from mmrl.api.types import Rollout
from mmrl.compute import ranks
from mmrl.train.metrics import Clock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moment:
    """What completions are sampled for, and with."""

    step: int
    """The step of the run that they are for, from 0."""
    stage_step: int
    """The same within its stage."""
    version: int
    """Steps that the weights have seen which sample."""


@dataclass
class Sampled(Generic[T]):
    """What came of it."""

    found: T
    seconds: dict[str, float] = field(default_factory=dict)
    """Part -> how long it took."""
    source: Any = None
    """The state of the source of prompts then."""


class Ahead(Generic[T]):
    """A thread that samples for the next steps."""

    def __init__(self, sample: Callable[[Moment, Clock], T], refresh: Callable[[], None], state: Callable[[], Any], depth: int):
        """sample: called in that thread. refresh: brings the weights over; called while it rests. state: of the source of
        prompts. depth: how many steps ahead."""
        self.sample, self.refresh, self.state, self.depth = sample, refresh, state, depth
        self.jobs: deque[tuple[Moment, Future[Sampled[T]]]] = deque()
        self.pool = ThreadPoolExecutor(1, "sampler")
        self.closed = False

    def __call__(self, step: int, stage_step: int, last: int) -> Sampled[T]:
        """What this step learns from. last: the last step that may be sampled for before this one is learned: nobody samples
        while the run is evaluated or saved."""
        if not self.jobs:
            self.refresh()
            self._submit(Moment(step, stage_step, step))
        moment, job = self.jobs.popleft()
        assert moment.step == step, f"step {step} got what was sampled for step {moment.step}"
        found = job.result()
        if not self.jobs and last > step:
            self.refresh()
            for ahead in range(1, min(self.depth, last - step) + 1):
                self._submit(Moment(step + ahead, stage_step + ahead, step))
        return found

    def _submit(self, moment: Moment) -> None:
        self.jobs.append((moment, self.pool.submit(self._work, moment)))

    def _work(self, moment: Moment) -> Sampled[T]:
        if self.closed:
            raise RuntimeError("nobody waits for this any more")
        clock = Clock()
        with ranks.speaking("ahead"):
            found = self.sample(moment, clock)
        return Sampled(found, clock.seconds, self.state())

    def close(self) -> None:
        """Wait for the step under way, and drop what is there."""
        self.closed = True
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.jobs.clear()


def lag(rollouts: Sequence[Rollout], step: int, bound: int) -> dict[str, float]:
    """How many versions behind the tokens are that a step learns from. RuntimeError above the bound, which the schedule keeps."""
    behind = [(step - version, size) for rollout in rollouts for version, size in rollout.turn_versions if size]
    most = max((versions for versions, _ in behind), default=0)
    if most > bound:
        raise RuntimeError(f"step {step + 1} got tokens of weights {most} versions old, above compute.staleness = {bound}")
    tokens = sum(count for _, count in behind)
    return {"staleness/mean": sum(v * n for v, n in behind) / tokens if tokens else 0.0, "staleness/max": float(most)}
