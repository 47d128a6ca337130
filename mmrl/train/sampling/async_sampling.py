"""Completions of later steps are sampled while the learner learns: bounded, and the same in every run with the same seed.

Weights change hands only while nobody samples. Once step s has its completions, and none are being sampled, the sampler takes the
weights of that moment and samples for the next `staleness` steps. So those of step s + k are k versions old when they are learned
from, whoever is quicker. With `staleness = 0` none of this is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from mmrl.api.types import Rollout
from mmrl.compute import ranks
from mmrl.train.metrics import StepTimer
from mmrl.train.position import StepIndex
from mmrl.train.sampling.groups import Sampled
from mmrl.train.sampling.sampler import Sampler
from mmrl.train.sampling.source import Prompts


class AsyncSampler:
    """A sampler whose thread samples for the next steps."""

    def __init__(self, sampler: Sampler, staleness: int, *, steps: int, evaluate_every: int = 0, save_every: int = 0) -> None:
        """staleness: how many steps ahead. steps: of the stage. evaluate_every, save_every: after so many steps of the stage the
        policy is evaluated, of the run saved, and nobody may sample then; 0 for never."""
        self.sampler, self.staleness = sampler, staleness
        self.steps, self.evaluate_every, self.save_every = steps, evaluate_every, save_every
        self.prompts = sampler.prompts
        self.jobs: deque[tuple[StepIndex, Future[tuple[Sampled, Any]]]] = deque()
        self.pool = ThreadPoolExecutor(1, "sampler")
        self.closed = False
        self.drawn: Any = None
        """The state of the source of prompts behind this step, before anything was drawn for later ones."""

    def __call__(self, prompts: Prompts, at: StepIndex) -> Sampled:
        """The groups of this step; those of later ones begin to be sampled."""
        clock = StepTimer()
        with clock("wait"):
            if not self.jobs:
                self.sampler.refresh()
                self._submit(prompts, at)
            moment, job = self.jobs.popleft()
            assert moment.step == at.step, f"step {at.step} got what was sampled for step {moment.step}"
            found, self.drawn = job.result()
            if not self.jobs and (following := min(self.staleness, self._undisturbed(at))):
                self.sampler.refresh()
                for k in range(1, following + 1):
                    self._submit(prompts, StepIndex(at.step + k, at.stage_step + k, at.version))
        counts = {f"async/{part}": seconds for part, seconds in found.seconds.items()}
        counts |= staleness_metrics(found.rollouts, at.step, self.staleness)
        return replace(found, counts=found.counts | counts, seconds=clock.seconds)

    def _undisturbed(self, at: StepIndex) -> int:
        """How many steps may follow before nobody may sample."""
        left = [self.steps - at.stage_step - 1]
        left += [-(at.stage_step + 1) % self.evaluate_every] if self.evaluate_every else []
        left += [-(at.step + 1) % self.save_every] if self.save_every else []
        return min(left)

    def _submit(self, prompts: Prompts, at: StepIndex) -> None:
        self.jobs.append((at, self.pool.submit(self._work, prompts, at)))

    def _work(self, prompts: Prompts, at: StepIndex) -> tuple[Sampled, Any]:
        """What was sampled for a step, and the state of the source of prompts then."""
        if self.closed:
            raise RuntimeError("nobody waits for this any more")
        with ranks.use_group("ahead"):
            return self.sampler.sample(prompts, at), self.sampler.source.state()

    def sleep(self) -> None:
        """The sampling policy keeps its memory while the learner learns."""

    def state(self) -> Any:
        """A run that ends here draws again what was drawn for later steps."""
        return self.drawn if self.jobs else self.sampler.state()

    def close(self) -> None:
        """Wait for the step under way, and drop what is there."""
        self.closed = True
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.jobs.clear()


def staleness_metrics(rollouts: Sequence[Rollout], step: int, bound: int) -> dict[str, float]:
    """How many versions behind the tokens are that a step learns from. RuntimeError above the bound, which the schedule keeps."""
    behind = [(step - version, size) for rollout in rollouts for version, size in rollout.turn_versions if size]
    most = max((versions for versions, _ in behind), default=0)
    if most > bound:
        raise RuntimeError(f"step {step + 1} got tokens of weights {most} versions old, above compute.staleness = {bound}")
    tokens = sum(count for _, count in behind)
    return {"staleness/mean": sum(v * n for v, n in behind) / tokens if tokens else 0.0, "staleness/max": float(most)}
