"""The probe with blank images and videos and silent sounds: what the policy answers without seeing or hearing them."""

from __future__ import annotations

from mmrl.api.tasks.perturb import blanked
from mmrl.config.sections import RunConfig
from mmrl.evaluation.answers import Answering, Answers
from mmrl.evaluation.probes.probe import Probe, Probed
from mmrl.evaluation.results import mean_of
from mmrl.rollout.generate.steering import Steering


class Blank(Probe):
    """`evaluate.blank_images`: the figure `blank`, if the task has images, videos or sounds."""

    @classmethod
    def of(cls, config: RunConfig) -> Blank | None:
        return cls() if config.evaluate.blank_images else None

    def __call__(self, asking: Answering, label: str, plain: Answers, observer: Steering | None) -> Probed:
        if not any(p.images or p.videos or p.sounds for p in plain.prompts):
            return Probed()
        return Probed({"blank": mean_of(asking.answers(label, "with blank images", blanked).items)})
