"""The training step of each kind of stage: `mmrl.train.stages.KIND` has that of a built-in kind, and plugins bring others."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import torch

from mmrl.api.errors import EnvironmentFailed, PluginError, UserError, shorten
from mmrl.config.sections import OffPolicyStage, PluginStage, RlStage, Training
from mmrl.registry import plugins
from mmrl.registry.importing import build_errors
from mmrl.train.stages.base import Steps as Steps

if TYPE_CHECKING:
    from mmrl.train.context import StageContext


def steps_of(run: StageContext, stage: Training) -> Steps:
    """The object that runs the steps of a stage, of the class that its module calls `STEPS`, or that a plugin brings."""
    if isinstance(stage, PluginStage):
        return _steps_of_plugin(run, stage)
    name = stage.kind.replace("-", "_")
    if isinstance(stage, RlStage):
        name = "imitation" if stage.imitation else "entropy" if stage.entropy_control else name
        name = "turns" if stage.turn_critic else name
    if isinstance(stage, OffPolicyStage):
        name = "improving" if stage.improve else "aliasing" if stage.noise_aliasing else name
    found: Steps = importlib.import_module(f"{__name__}.{name}").STEPS(run, stage)
    return found


def _steps_of_plugin(run: StageContext, stage: PluginStage) -> Steps:
    spec = plugins.registry().get("stages", stage.kind)
    target, options, what = plugins.registry().target(spec), {**spec.options, **stage.options}, f"stage {spec.id!r}"
    try:
        with build_errors(what, target, options):
            steps = target(run, stage, **options)
    except PluginError:
        raise
    except UserError as error:
        raise UserError(f"{what}: {error}") from error
    if not isinstance(steps, Steps):
        kind = type(steps).__name__
        raise PluginError(f"{what}: its target {spec.target!r} gave a {kind}: subclass mmrl.api.stages.SampledSteps")
    return steps


def run_step(steps: Steps, stage: Training) -> dict[str, float]:
    """Run one step; return its metrics. Raises PluginError if the step of a plugin's stage fails, or returns something else."""
    if not isinstance(stage, PluginStage):
        return steps()
    what = f"stage {stage.kind!r}: its step"
    try:
        metrics = steps()
    except (UserError, EnvironmentFailed, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise PluginError(f"{what} raised {type(error).__name__}: {shorten(error, 300)}") from error
    if not isinstance(metrics, dict) or not all(isinstance(k, str) and isinstance(v, int | float) for k, v in metrics.items()):
        raise PluginError(f"{what} must return a dict of metrics, name -> number, not {metrics!r:.200}")
    return metrics
