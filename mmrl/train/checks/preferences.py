"""Checks of `preference` stages, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.config.sections import PreferenceStage, RunConfig


def check_preference(config: RunConfig, number: int, stage: PreferenceStage, tasks: Mapping[str, Task]) -> None:
    """Refuse a preference stage without pairs or whose reference model can't be. number: the stage's index. tasks: by label."""
    where = f"stages.{number}"
    if stage.reference == "adapter" and config.policy.lora is None:
        raise UserError(f'{where}.reference = "adapter" needs adapters: give [policy.lora], or set reference = "frozen"')
    for label in config.weights(stage) if stage.pairs == "task" else ():
        if tasks[label].simulation is not None:
            raise UserError(f'{where}.pairs = "task", but task {label!r} acts in a simulator: set pairs = "sampled"')
        if type(tasks[label]).pair is Task.pair:
            raise UserError(f'{where}.pairs = "task", but task {label!r} has no pairs: set pairs = "sampled", or use judge/pairs')
