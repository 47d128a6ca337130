"""The step of a `distill` stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mmrl.algorithms.signals import Signals
from mmrl.api.types import Rollout, Score
from mmrl.compute import ranks
from mmrl.config.sections import EXPERT, DistillStage, RlStage
from mmrl.policies.acting.acting import ActingPolicy
from mmrl.policies.batches import ones
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.turns import TurnCollector
from mmrl.run_folder.metrics import REDUCTIONS
from mmrl.train.sampling.gather import Taken, collected, own_of
from mmrl.train.sampling.groups import light
from mmrl.train.stages.base import Steps
from mmrl.train.update.learner import Learner

if TYPE_CHECKING:
    from mmrl.train.stages.context import Context


class DistillSteps(Steps):
    """Learn from a teacher, on the policy's own completions or on the teacher's."""

    stage: DistillStage

    def __init__(self, run: Context, stage: DistillStage) -> None:
        super().__init__(run, stage)
        self.stage, self.teacher = stage, run.teacher(run.at.stage)
        self.algorithm = run.setup.algorithms[run.at.stage]
        self.collector = run.collector
        if stage.divergence == "hard" and isinstance(self.teacher, VLM):
            self.collector = TurnCollector(self.teacher, LocalGenerator(self.teacher, run.config.generate.batch_size))

    def begin(self) -> None:
        config = self.config
        self.run.collector.advised = self.stage.teacher == EXPERT
        self.learner = Learner(
            self.run.policy,
            self.stage,
            self.algorithm,
            temperature=config.generate.temperature,
            teacher=self.teacher,
            checkpointed=config.train.checkpointing,
        )

    def __call__(self) -> dict[str, float]:
        run, taken = self.run, dict(enumerate(self.take(self.stage.prompts_per_step)))
        with run.clock("generate"):
            self.collector.wake()
            found = ranks.gathered(lambda: self._collect(own_of(taken)), lambda group: [light(r) for r in group])
        rollouts = [r for group in found for r in group]
        lengths = [r.length for r in rollouts]
        metrics = ranks.figures(run.collector.figures(), REDUCTIONS) | {"length/mean": sum(lengths) / len(rollouts)}
        credit = ones(rollouts)
        if self.algorithm:
            rl = RlStage(kind="rl", steps=1)  # what of an rl stage a signal looks at: no penalty in the reward
            signals = Signals(rollouts, [Score(0.0)] * len(rollouts), rl, measure=lambda names: self.measure(rollouts, names))
            credit = self.algorithm.credit(signals)
            metrics["divergence"] = -credit.advantages.sum().item() / sum(lengths)  # as the sampled tokens estimate it
        return metrics | self.update(self.pack(rollouts, credit))

    def _collect(self, taken: Mapping[int, Taken]) -> dict[int, list[Rollout]]:
        size = lambda task: self.run.setup.entries[task].group_size or self.stage.group_size  # noqa: E731
        found = collected(self.collector, taken, size, lambda task: self.sampling(task, 0), self.run.at.step)
        if self.collector.advised:
            policy = self.run.policy
            assert isinstance(policy, ActingPolicy)
            found = [[replace(r, track=policy.following(r.track)) for r in group if r.track] for group in found]
        return dict(zip(taken, found, strict=True))
