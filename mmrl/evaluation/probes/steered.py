"""The probe with steered decoding of answers to videos, compared with the plain answers: V-Reason (Sridhar et al.)."""

from __future__ import annotations

import math

from mmrl.config.sections import RunConfig, SteeringConfig
from mmrl.evaluation.answers import Answering, Answers
from mmrl.evaluation.paired_tests import paired_difference
from mmrl.evaluation.probes.probe import Probe, Probed
from mmrl.evaluation.results import figure_of, known_sets
from mmrl.rollout.generate.steering import Steering


class Steered(Probe):
    """`evaluate.steer`: `steered`, the figure of steered answers; `steered/gain`, its gain over plain answers on the prompts with
    both scores; and the measurements of both decodings, `steered/...` and `unsteered/...`."""

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
        figure = figure_of(label, asking.config.evaluate.split, asking.spec(label), items, {})
        extra = {f"unsteered/{name}": value for name, value in (observer.figures() if observer else {}).items()}
        extra |= {"steered": figure.value} | {f"steered/{name}": value for name, value in steering.figures().items()}
        intervals = {"steered": (figure.low, figure.high)} if math.isfinite(figure.high) else {}
        pairs = zip(plain.items, items, strict=True)
        both = [(a.value, b.value, a.set) for a, b in pairs if a.value is not None and b.value is not None]
        if both:
            before, after, sets = zip(*both, strict=True)
            gain = paired_difference(before, after, known_sets(sets))
            extra["steered/gain"] = gain.difference
            if math.isfinite(gain.low):  # infinite for a single graded value
                intervals["steered/gain"] = gain.low, gain.high
        return Probed(extra, intervals)
