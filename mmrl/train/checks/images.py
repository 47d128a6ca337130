"""Checks of the sections that change images: `[stages.perception]` and `[stages.noisy]`."""

from __future__ import annotations

from mmrl.algorithms.presets import Algorithm
from mmrl.api.errors import UserError
from mmrl.config.sections import RlStage, RunConfig
from mmrl.data.prompts import Splits, prompt_at


def check_changed_images(config: RunConfig, number: int, stage: RlStage, algorithm: Algorithm, acts: bool) -> None:
    """Refuse changed images for a policy that acts, and those of which nothing depends. number: the stage's index."""
    where, needed = f"stages.{number}", "perception_NT" in algorithm.needs
    for key in ("perception", "noisy"):
        if acts and getattr(stage, key):
            raise UserError(f"{where}.{key} changes images in prompts, and {config.policy.kind} acts: leave it out")
    if acts and stage.entropy_penalty:
        raise UserError(f"{where}.entropy_penalty is for policies that write, and {config.policy.kind} acts: leave it out")
    if needed and not stage.perception:
        raise UserError(f"{where}.algorithm: {stage.algorithm} compares with masked images: give [stages.perception]")
    if stage.perception and not (stage.perception.coef or needed):
        raise UserError(
            f"{where}.perception.coef = 0, and {stage.algorithm} doesn't look at it either: set coef, such as 0.01, or use vppo"
        )
    if stage.noisy and stage.noisy.ratio == "sampled" and (config.generate.top_p < 1 or config.generate.top_k):
        raise UserError(
            f'{where}.noisy.ratio = "sampled" divides by the probabilities that tokens were sampled with, which generate.top_p '
            'and top_k change: drop those, or set ratio = "clean"'
        )


def check_images_shown(config: RunConfig, number: int, stage: RlStage, splits: Splits) -> None:
    """Refuse changed images where no task of the stage has any in its first prompt."""
    labels = list(config.weights(stage))
    for key in ("perception", "noisy") if labels else ():
        if getattr(stage, key) and not any(prompt_at(splits(label, stage.split), 0, label).images for label in labels):
            raise UserError(f"stages.{number}.{key} changes images, and no prompt of {', '.join(labels)} has one: leave it out")
