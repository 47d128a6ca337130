"""The probe with shuffled video frames: whether the policy uses their order."""

from __future__ import annotations

from mmrl.api.tasks.perturb import shuffled
from mmrl.config.sections import RunConfig
from mmrl.evaluation.answers import Answering, Answers
from mmrl.evaluation.probes.probe import Probe, Probed
from mmrl.evaluation.results import mean_of
from mmrl.rollout.generate.steering import Steering


class Shuffled(Probe):
    """`evaluate.shuffle_frames`: the figure `shuffled`, if the task has videos."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @classmethod
    def of(cls, config: RunConfig) -> Shuffled | None:
        return cls(config.seed) if config.evaluate.shuffle_frames else None

    def __call__(self, asking: Answering, label: str, plain: Answers, observer: Steering | None) -> Probed:
        if not plain.have_videos:
            return Probed()
        mixed = asking.answers(label, "with shuffled frames", lambda prompt: shuffled(prompt, self.seed))
        return Probed({"shuffled": mean_of(mixed.items)})
