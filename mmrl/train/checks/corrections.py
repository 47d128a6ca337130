"""Checks of what corrects for a sampler with other probabilities than the learner's."""

from __future__ import annotations

from mmrl.algorithms.loss import negative_log_likelihood, policy_gradient
from mmrl.algorithms.presets import Algorithm
from mmrl.api.errors import UserError
from mmrl.config.sections import RlStage

TO_LEARNER = {"mean_log_ratio_L", "log_ratios_N"}
"""What a loss may ask for that compares with the policy before the update, see `mmrl.algorithms.loss.MEASURED`."""


def check_corrections(where: str, stage: RlStage, algorithm: Algorithm) -> None:
    """Refuse keys that have no effect, or that the algorithm's loss contradicts. where: the stage's key."""
    level = stage.importance_sampling_level
    if level != "token" and stage.importance_sampling == "off":
        raise UserError(
            f'{where}.importance_sampling_level = "{level}" has no effect with importance_sampling = "off": set that to '
            '"truncate" or "mask", or drop this'
        )
    if stage.ratio_to == "learner":
        return
    key = f'{where}.ratio_to = "{stage.ratio_to}"'
    if TO_LEARNER & set(algorithm.loss_needs):
        raise UserError(f"{key}: the loss of {stage.algorithm} compares with the policy before the update: drop it")
    if getattr(algorithm.loss, "func", algorithm.loss) in (policy_gradient, negative_log_likelihood):
        raise UserError(f"{key}: the loss of {stage.algorithm} has no ratio: drop it, or use importance_sampling")
