"""The step of an `sft` stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl.learn import Learner
from mmrl.packer import ones
from mmrl.schema import SftStage
from mmrl.steps.base import Steps

if TYPE_CHECKING:
    from mmrl.run import Run


class SftSteps(Steps):
    """Imitate gold completions."""

    stage: SftStage

    def __init__(self, run: Run, stage: SftStage) -> None:
        super().__init__(run, stage)
        self.stage = stage

    def begin(self) -> None:
        self.learner = Learner(self.run.policy, self.stage, checkpointed=self.config.train.checkpointing)

    def __call__(self) -> dict[str, float]:
        rollouts = self.demonstrated(self.stage.batch_size)
        metrics = self.update(self.pack(rollouts, ones(rollouts)))
        return {k: metrics[k] for k in ("loss", "grad_norm", "learning_rate")}
