"""The step of an `sft` stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl.config.sections import SftStage
from mmrl.policies.batches import ones
from mmrl.train.stages.base import Steps
from mmrl.train.update.learner import Learner

if TYPE_CHECKING:
    from mmrl.train.context import StageContext


class SftSteps(Steps):
    """Imitate gold completions."""

    stage: SftStage

    def __init__(self, run: StageContext, stage: SftStage) -> None:
        super().__init__(run, stage)
        self.stage = stage

    def begin(self) -> None:
        self.learner = Learner(self.run.policy, self.stage, train=self.config.train)

    def __call__(self) -> dict[str, float]:
        rollouts = self.demonstrated(self.stage.batch_size)
        metrics = self.update(self.pack(rollouts, ones(rollouts)))
        return {k: metrics[k] for k in ("loss", "grad_norm", "learning_rate", "loss_scale") if k in metrics}


STEPS = SftSteps
