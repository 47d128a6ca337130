"""`[limits]` of a run file."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from mmrl.config.values import Section, Threshold


class Alarm(Section):
    """Thresholds of a metric; a plain number is `stop`."""

    warn: Threshold | None = None
    """The metric reaching this gives a warning, once."""
    stop: Threshold | None = None
    """The metric reaching this stops the run."""

    @model_validator(mode="before")
    @classmethod
    def _a_number_stops(cls, value: Any) -> Any:
        return {"stop": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _warns_first(self) -> Alarm:
        if self.warn is not None and self.stop is not None and self.warn > self.stop:
            raise ValueError(f"warn = {self.warn:g} is above stop = {self.stop:g}, so it would never warn: lower it")
        return self


class LimitsConfig(Section):
    """`[limits]`: limits of metrics that warn, or stop the run, when training goes wrong. Each is `{warn = ..., stop = ...}`; a
    plain number is `stop`."""

    logprob_gap: Alarm = Alarm(warn=0.02, stop=0.1)
    """Mean difference between the sampler's and the learner's log-probabilities, in nats per token."""
    answer_collapse: Alarm = Alarm(warn=0.9)
    """Share of a step's completions that are the same text although their prompts have different answers."""
    length_growth: Alarm = Alarm(warn=4.0)
    """Mean length, divided by that of the stage's first steps. Lengths of episodes in simulators raise no alarm."""
    entropy_fall: Alarm = Alarm(warn=0.98)
    """Decrease of the entropy as a share of that in the first steps; of policies whose actions are normally distributed, decrease
    of the standard deviation."""
    clip_share: Alarm = Alarm(warn=0.5)
    """Share of tokens without gradient because the loss clips them."""
    kl: Alarm = Alarm(warn=1.0)
    """KL divergence from the reference in nats per token, as the metric `kl` estimates it; without a reference, from the weights
    before the step."""
    zero_std: Alarm = Alarm(warn=0.95)
    """Share of groups without gradient, over the last ten steps: their rewards have zero standard deviation, or the algorithm
    credits none."""
    blind: Alarm = Alarm(warn=0.9)
    """Metric with blanked images divided by the metric with the images; needs `evaluate.blank_images`."""
    reward_hacking: Alarm = Alarm(warn=0.05)
    """Decrease of the held-out metric from its best value, while a part of the reward is clearly higher than it was then."""

    alarms: dict[str, Alarm] = {}
    """Thresholds of plugins' alarms by id, see `mmrl list alarms`. The alarms of a plugin are on if one of the tasks is the
    plugin's, or if they are named here."""
