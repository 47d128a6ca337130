"""The training step of each kind of stage: `mmrl.train.stages.KIND` has that of the stages of this kind."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mmrl.config.sections import RlStage, Training
from mmrl.train.stages.base import Steps as Steps

if TYPE_CHECKING:
    from mmrl.train.context import StageContext


def steps_of(run: StageContext, stage: Training) -> Steps:
    """The object that runs the steps of a stage, of the class that its module calls `STEPS`."""
    name = "imitation" if isinstance(stage, RlStage) and stage.imitation else stage.kind
    found: Steps = importlib.import_module(f"{__name__}.{name}").STEPS(run, stage)
    return found
