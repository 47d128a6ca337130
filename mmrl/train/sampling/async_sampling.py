"""Asynchronous sampling: completions of later steps are sampled while the learner learns. Their staleness is bounded, and runs
with the same seed give the same results.

The sampler takes new weights only while nothing is being sampled: once step s has its completions, it takes the current weights
and samples for the next `staleness` steps. So the completions of step s + k are k versions old when they are learned from,
however long sampling and learning take. `staleness = 0` switches this off.

With `interrupt` it takes new weights after every update, in the middle of answers, and always samples for the next `staleness`
steps: nobody waits until nothing is being sampled. The completions of step s + k are begun with weights of step s or newer, so
their oldest token has the same bound. Which token is the first of new weights depends on time; which prompts a step has doesn't.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from mmrl.api.types import Rollout
from mmrl.compute import ranks
from mmrl.compute.devices import current_gpu
from mmrl.data.stream import GroupOutcome
from mmrl.train.metrics import StepTimer
from mmrl.train.position import StepIndex
from mmrl.train.sampling.groups import Sampled
from mmrl.train.sampling.rule_states import RuleState
from mmrl.train.sampling.sampler import Sampler
from mmrl.train.sampling.source import Prompts


class AsyncSampler:
    """A sampler that samples for the next steps in a thread."""

    def __init__(
        self,
        sampler: Sampler,
        staleness: int,
        *,
        interrupt: bool = False,
        steps: int,
        evaluate_every: int = 0,
        save_every: int = 0,
    ) -> None:
        """staleness: maximal number of steps to sample ahead. interrupt: give new weights to answers under way. steps: number of
        steps of the stage. evaluate_every, save_every: the policy is evaluated after so many steps of the stage, the run is saved
        after so many steps of the run, and nothing is sampled then; 0 for never."""
        self.sampler, self.staleness, self.interrupt = sampler, staleness, interrupt
        self.steps, self.evaluate_every, self.save_every = steps, evaluate_every, save_every
        self.prompts = sampler.prompts
        self.jobs: deque[tuple[StepIndex, Future[tuple[Sampled, Any, list[RuleState]]]]] = deque()
        self.told: deque[Sequence[GroupOutcome]] = deque()
        """The outcomes that the draws of each job are the first to know."""
        self.settled: list[GroupOutcome] = []
        """Those of the next job."""
        self.pool = ThreadPoolExecutor(1, "sampler")
        self.closed = False
        self.drawn: Any = None
        """The state of the source of prompts after this step, before it draws for later steps."""
        self.ruled: list[RuleState] = []
        """The states of the rules after this step, before they are applied to later steps."""

    def __call__(self, prompts: Prompts, at: StepIndex) -> Sampled:
        """Return the groups of this step; start to sample for later steps."""
        clock = StepTimer()
        with clock("wait"):
            if self.interrupt:
                self.sampler.renew(at)
                self._submit_ahead(prompts, at)
            elif not self.jobs:
                self._refresh()
                self._submit(prompts, at)
            index, job = self.jobs.popleft()
            self.told.popleft()
            assert index.step == at.step, f"step {at.step} got the groups of step {index.step}"
            found, self.drawn, self.ruled = job.result()
            if not self.interrupt and not self.jobs and min(self.staleness, self._undisturbed(at)):
                self._refresh()
                self._submit_ahead(prompts, at)
        counts = {f"async/{part}": seconds for part, seconds in found.seconds.items()}
        sampled = [rollout for rollout in found.rollouts if not rollout.is_demonstration]  # gold completions are of no weights
        counts |= staleness_metrics(sampled, at.step, self.staleness)
        if self.interrupt:
            counts |= interruption_metrics(sampled)
        return replace(found, counts=found.counts | counts, seconds=clock.seconds)

    def _undisturbed(self, at: StepIndex) -> int:
        """The number of following steps before the next evaluation or save, or the end of the stage."""
        left = [self.steps - at.stage_step - 1]
        left += [-(at.stage_step + 1) % self.evaluate_every] if self.evaluate_every else []
        left += [-(at.step + 1) % self.save_every] if self.save_every else []
        return min(left)

    def _refresh(self) -> None:
        self.settled = [*self.sampler.source.outcomes]
        self.sampler.refresh()

    def _submit_ahead(self, prompts: Prompts, at: StepIndex) -> None:
        """Sample for the steps that are not sampled for yet, up to the last that may be."""
        begun = self.jobs[-1][0].step + 1 if self.jobs else at.step + (not self.interrupt)
        for k in range(begun - at.step, min(self.staleness, self._undisturbed(at)) + 1):
            self._submit(prompts, StepIndex(at.step + k, at.stage_step + k, at.version))

    def _submit(self, prompts: Prompts, at: StepIndex) -> None:
        told = self.sampler.source.unsettled() if self.interrupt else []
        self.jobs.append((at, self.pool.submit(self._work, prompts, at, told)))
        self.told.append([*self.settled, *told])
        self.settled = []

    def _work(self, prompts: Prompts, at: StepIndex, told: Sequence[GroupOutcome]) -> tuple[Sampled, Any, list[RuleState]]:
        """Sample for a step; also returns the states of the source of prompts and of the rules after that. told: the outcomes of
        earlier groups, which its draws are the first to know."""
        with ranks.use_group("ahead"), current_gpu(self.sampler.run.policy.device):
            if ranks.any_rank(self.closed):  # or a rank would begin a step that another drops, and wait for it
                raise RuntimeError("the sampler is closed" if self.closed else ranks.CLOSED)
            self.sampler.source.settle(told)
            return self.sampler.sample(prompts, at), self.sampler.source.state(), self.sampler.rule_states()

    def sleep(self) -> None:
        """Do nothing: the sampling policy keeps its memory while the learner learns."""

    def state(self) -> Any:
        """The state of the source of prompts after this step, with the outcomes that it knows by then. A resumed run draws the
        prompts of later steps again."""
        if not self.jobs:
            return self.sampler.state()
        source = self.sampler.source
        return source.after(self.drawn, [*itertools.chain(*self.told), *source.outcomes])

    def rule_states(self) -> list[RuleState]:
        """The states of the rules after this step. A resumed run applies them to later steps again."""
        return self.ruled if self.jobs else self.sampler.rule_states()

    def close(self) -> None:
        """Wait until the step being sampled is complete, and drop all results."""
        self.closed = True
        self.pool.shutdown(wait=True)
        self.jobs.clear()
        self.told.clear()


def staleness_metrics(rollouts: Sequence[Rollout], step: int, bound: int) -> dict[str, float]:
    """Mean and maximal number of versions by which a step's tokens are behind. Raises RuntimeError above `bound`."""
    behind = [(step - version, size) for rollout in rollouts for version, size in rollout.token_versions if size]
    most = max((versions for versions, _ in behind), default=0)
    if most > bound:
        raise RuntimeError(f"step {step + 1} got tokens of weights {most} versions old, above compute.staleness = {bound}")
    tokens = sum(count for _, count in behind)
    return {"staleness/mean": sum(v * n for v, n in behind) / tokens if tokens else 0.0, "staleness/max": float(most)}


def interruption_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Share of a step's rollouts that were sampled with several versions of the weights, and the mean number of versions."""
    versions = [len({version for version, size in r.token_versions if size}) for r in rollouts if r.length]
    return {
        "interrupted/share": sum(n > 1 for n in versions) / max(1, len(versions)),
        "interrupted/versions": sum(versions) / max(1, len(versions)),
    }
