"""Answers to videos that are steered while they are decoded, beside the others: V-Reason (Sridhar et al.)."""

from __future__ import annotations

import math

from mmrl.config.sections import RunConfig, SteeringConfig
from mmrl.evaluation.answers import Answering, Answers
from mmrl.evaluation.paired_tests import paired_difference
from mmrl.evaluation.probes.probe import Probe, Probed
from mmrl.evaluation.results import figure_of
from mmrl.rollout.generate.steering import Steering


class Steered(Probe):
    """`evaluate.steer`: `steered`, the figure of steered answers; `steered/gain`, what it is above that of the others on the
    prompts that both were scored on; and what was seen of both, `steered/...` and `unsteered/...`."""

    def __init__(self, settings: SteeringConfig) -> None:
        self.settings = settings

    @classmethod
    def of(cls, config: RunConfig) -> Steered | None:
        return cls(config.evaluate.steering) if config.evaluate.steer else None

    def observer(self) -> Steering:
        return Steering(**{**self.settings.model_dump(), "learning_rate": 0.0})

    def __call__(self, asking: Answering, label: str, plain: Answers, observer: Steering | None) -> Probed:
        if not plain.have_videos:
            return Probed()
        steering = Steering(**self.settings.model_dump())
        items = asking.answers(label, "steered", steering=steering).items
        figure = figure_of(label, asking.config.evaluate.split, asking.spec(label), asking.setup.metrics[label], items, {})
        extra = {f"unsteered/{name}": value for name, value in (observer.figures() if observer else {}).items()}
        extra |= {"steered": figure.value} | {f"steered/{name}": value for name, value in steering.figures().items()}
        intervals = {"steered": (figure.low, figure.high)}
        pairs = zip(plain.items, items, strict=True)
        both = [(a.value, b.value) for a, b in pairs if a.value is not None and b.value is not None]
        if both:
            gain = paired_difference(*zip(*both, strict=True))
            extra["steered/gain"] = gain.difference
            if math.isfinite(gain.low):  # one graded value says nothing of their spread
                intervals["steered/gain"] = gain.low, gain.high
        return Probed(extra, intervals)
