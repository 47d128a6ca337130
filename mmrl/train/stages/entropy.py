"""The step of an `rl` stage that holds the policy's entropy at a target."""

from __future__ import annotations

import math
from dataclasses import replace

from mmrl.config.sections import EntropyConfig
from mmrl.policies.batches import Credit, ones
from mmrl.train.sampling.groups import Sampled
from mmrl.train.stages.rl import MiniBatches, RlSteps
from mmrl.train.update.demonstrations import Demonstrations


class EntropySteps(RlSteps):
    """`[stages.entropy_control]`: the update also imitates right answers that were sampled hotter or colder. Hotter ones flatten
    the distribution, and colder ones sharpen it; since only right ones are imitated, neither works against the reward."""

    @property
    def rule(self) -> EntropyConfig:
        assert self.stage.entropy_control is not None
        return self.stage.entropy_control

    def imitated(self, sampled: Sampled, credit: Credit) -> Demonstrations | None:
        """Right answers to the step's first prompts at another temperature; none before an update has measured the entropy."""
        entropy, rule = self.run.at.memory.get("entropy"), self.rule
        if entropy is None:
            return None
        temperature = rule.high if entropy < rule.target else rule.low
        chosen = sampled.groups[: math.ceil(rule.prompts * len(sampled.groups))]
        tried = self.direct.again(chosen, self.run.at.moment, self.run.clock, temperature)
        self.run.report_failures(tried)
        right = [
            r
            for group in tried
            for r, s in zip(group.rollouts, group.scores, strict=True)
            if s.value is not None and s.value + r.environment_reward >= self.stage.success_threshold
        ]
        if not right:
            return None
        rollouts = [replace(r, group=n) for n, r in enumerate(right)]
        (batch,) = self.pack(rollouts, ones(rollouts))
        return Demonstrations(batch=batch, weight=rule.weight)

    def learn(self, batches: MiniBatches, beside: Demonstrations | None) -> dict[str, float]:
        metrics = super().learn(batches, beside)
        if "entropy" in metrics:
            self.run.at.memory["entropy"] = metrics["entropy"]
        return metrics


STEPS = EntropySteps
