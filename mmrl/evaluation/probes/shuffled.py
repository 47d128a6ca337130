"""Answers to videos whose frames are in another order: whether the policy uses time."""

from __future__ import annotations

from mmrl.api.tasks.altered import shuffled
from mmrl.config.sections import RunConfig
from mmrl.evaluation.answers import Answering, Answers
from mmrl.evaluation.figures import mean_of
from mmrl.evaluation.probes.probe import Probe, Probed
from mmrl.rollout.generate.steering import Steering


class Shuffled(Probe):
    """`evaluate.shuffled`: the figure `shuffled`, where the task shows videos."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @classmethod
    def of(cls, config: RunConfig) -> Shuffled | None:
        return cls(config.seed) if config.evaluate.shuffled else None

    def __call__(self, asking: Answering, label: str, plain: Answers, observer: Steering | None) -> Probed:
        if not plain.have_videos:
            return Probed()
        mixed = asking.answers(label, "on shuffled videos", lambda prompt: shuffled(prompt, self.seed))
        return Probed({"shuffled": mean_of(mixed.items)})
