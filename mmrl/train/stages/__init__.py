"""The training step of each kind of stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl.config.sections import DistillStage, RlStage, SftStage, Training
from mmrl.train.stages.base import Steps as Steps
from mmrl.train.stages.distill import DistillSteps
from mmrl.train.stages.imitation import ImitatingSteps
from mmrl.train.stages.rl import RlSteps
from mmrl.train.stages.sft import SftSteps

if TYPE_CHECKING:
    from mmrl.train.context import StageContext


def steps_of(run: StageContext, stage: Training) -> Steps:
    """The object that runs the steps of a stage."""
    if isinstance(stage, SftStage):
        return SftSteps(run, stage)
    if isinstance(stage, DistillStage):
        return DistillSteps(run, stage)
    assert isinstance(stage, RlStage)
    return ImitatingSteps(run, stage) if stage.imitation else RlSteps(run, stage)
