"""The step of a `distill` stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mmrl.algorithms.signals import Signals
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.types import Rollout, Score
from mmrl.compute import ranks
from mmrl.config.sections import EXPERT, DistillStage, RlStage
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.batches import ones
from mmrl.rollout.collector import teacher_collector
from mmrl.train.metrics import collected_figures
from mmrl.train.sampling.interventions import refuse_interventions
from mmrl.train.sampling.sampler import collect_groups, own_shard
from mmrl.train.sampling.source import EncodedPrompt
from mmrl.train.stages.base import Steps
from mmrl.train.update.learner import Learner

if TYPE_CHECKING:
    from mmrl.train.context import StageContext


class DistillSteps(Steps):
    """Learn from a teacher, on the policy's own completions or on the teacher's."""

    stage: DistillStage

    def __init__(self, run: StageContext, stage: DistillStage) -> None:
        super().__init__(run, stage)
        self.stage, self.teacher = stage, run.teacher(run.at.stage)
        self.algorithm = run.setup.algorithms[run.at.stage]
        self.collector = run.collector
        if stage.divergence == "hard" and self.teacher:
            self.collector = teacher_collector(run.config, self.teacher)

    def begin(self) -> None:
        config = self.config
        self.run.collector.with_expert = self.stage.teacher == EXPERT
        if self.stage.teacher == EXPERT and isinstance(policy := self.run.policy, ActingPolicy) and not policy.follows:
            raise UserError(
                f"stages.{self.run.at.stage}.teacher: an expert says one action in each state, and this policy learns "
                f"{policy.ahead} in a row: imitate demonstrations in an sft stage"
            )
        self.learner = Learner(
            self.run.policy,
            self.stage,
            self.algorithm,
            temperature=config.generate.temperature,
            teacher=self.teacher,
            train=config.train,
        )

    def __call__(self) -> dict[str, float]:
        run, taken = self.run, self.take(self.stage.prompts_per_step)
        with run.clock("generate"):
            self.collector.wake_up()
            groups = ranks.gather_sharded(lambda: self._collect(own_shard(taken)), lambda group: [r.to_stub() for r in group])
        rollouts = [r for group in groups for r in group]
        if self.stage.teacher != EXPERT:
            refuse_interventions(rollouts, run.at.stage, "distill")
        lengths = [r.length for r in rollouts]
        metrics = collected_figures(run.collector) | {"length/mean": sum(lengths) / len(rollouts)}
        credit = ones(rollouts)
        if self.algorithm:
            rl = RlStage(kind="rl", steps=1)  # signals read an rl stage; this one has no penalty in the reward
            signals = Signals(rollouts, [Score(0.0)] * len(rollouts), rl, measure=lambda names: self.measure(rollouts, names))
            credit = self.algorithm.credit(signals)
            metrics["divergence"] = -credit.advantages.sum().item() / max(sum(lengths), 1)  # estimated from the sampled tokens
        return metrics | self.update(self.pack(rollouts, credit))

    def _collect(self, taken: Mapping[int, EncodedPrompt]) -> dict[int, list[Rollout]]:
        run, seed = self.run, derive(self.config.seed, "sample", self.run.at.step)
        size = {label: entry.group_size or self.stage.group_size for label, entry in run.setup.entries.items()}
        sampling = {label: run.sampling(label, seed) for label in run.tasks}
        groups = collect_groups(self.collector, taken, size, sampling, run.at.step)
        if self.collector.with_expert:
            groups = [[run.policy.following(r) if r.num_calls else r for r in group] for group in groups]  # a lost one has none
        return dict(zip(taken, groups, strict=True))


STEPS = DistillSteps
