"""The step of each kind of stage; each reads top to bottom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl.schema import DistillStage, RlStage, SftStage, Training
from mmrl.steps.base import Steps as Steps
from mmrl.steps.distill import DistillSteps
from mmrl.steps.rl import RlSteps
from mmrl.steps.sft import SftSteps

if TYPE_CHECKING:
    from mmrl.run import Run


def steps_of(run: Run, stage: Training) -> Steps:
    """What carries a stage out."""
    if isinstance(stage, SftStage):
        return SftSteps(run, stage)
    if isinstance(stage, DistillStage):
        return DistillSteps(run, stage)
    assert isinstance(stage, RlStage)
    return RlSteps(run, stage)
