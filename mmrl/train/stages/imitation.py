"""The step of an `rl` stage that also imitates gold completions, in the same loss or in alternating steps."""

from __future__ import annotations

import random

from mmrl.api.seeds import derive
from mmrl.config.sections import ImitationConfig
from mmrl.policies.batches import ones
from mmrl.train.stages.rl import MiniBatches, RlSteps
from mmrl.train.update.learner import Demonstrations


class ImitatingSteps(RlSteps):
    """`[stages.imitation]`: each step's loss mixes RL and imitation, or each step does one of the two."""

    def __call__(self, beside: Demonstrations | None = None) -> dict[str, float]:
        beside = self.demonstrations()
        if beside and beside.weight == 1:
            return self.learn(MiniBatches([]), beside)
        return super().__call__(beside)

    @property
    def rule(self) -> ImitationConfig:
        assert self.stage.imitation is not None
        return self.stage.imitation

    def demonstrations(self) -> Demonstrations | None:
        """The gold completions of this step; None if the step imitates nothing."""
        rule, memory, at = self.rule, self.run.at.memory, self.run.at
        if rule.rule == "mixed":
            weight = rule.start_weight + (rule.end_weight - rule.start_weight) * min(at.stage_step / rule.decay_steps, 1.0)
        else:
            first, last = memory.get("sasr_first"), memory.get("sasr_last")
            chance = 1.0 if first is None or last is None else last / max(last + rule.gamma * first, 1e-12)
            weight = float(random.Random(derive(self.config.seed, "sasr", at.step)).random() < chance)
        if not weight:
            return None
        rollouts = self.demonstrated(rule.batch_size)
        (batch,) = self.pack(rollouts, ones(rollouts))
        return Demonstrations(batch=batch, weight=weight, uncertain=rule.uncertainty_weighting)

    def learn(self, batches: MiniBatches, beside: Demonstrations | None) -> dict[str, float]:
        metrics, memory = super().learn(batches, beside), self.run.at.memory
        if self.rule.rule == "sasr" and "imitation/loss" in metrics:
            memory["sasr_last"] = metrics["grad_norm"]
            memory.setdefault("sasr_first", metrics["grad_norm"])
        return metrics


STEPS = ImitatingSteps
