"""`[stages.turn_critic]`: critics of whole turns, which learn from a memory of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mmrl.config.values import Count, Limit, Positive, Rate, Section, Share

OF_RETURNS = ("target_rate", "answers")
"""Keys of `rule = "returns"` alone."""
OF_SUCCESS = ("replay", "top")
"""Keys of `rule = "success"` alone."""


class TurnCriticConfig(Section):
    """`[stages.turn_critic]`: two critics of whole turns in place of `critic`, for policies that write. They remember the turns
    of all steps, learn from them many times in each step, and the lower of the two counts. They read the hidden states of a
    frozen copy of the policy at the end of what it saw and of what it answered."""

    rule: Literal["returns", "success"] = "returns"
    """`returns`: values of states and of answers, by temporal differences (Zhou et al., ArCHer, section 3.2, arXiv 2402.19446);
    `success`: the probability of success in a state, and from the prompt alone, by cross-entropy (Bai et al., DigiRL, section 4,
    arXiv 2406.11896)."""
    capacity: Annotated[int, Field(ge=1, le=10**8)] = 10_000
    """Turns in the memory, the newest."""
    gamma: Share = 0.95
    """Discount of a turn."""
    updates: Positive = 50
    """Updates of the critics in a step."""
    batch_size: Positive = 256
    """Turns of an update."""
    learning_rate: Rate = 3e-4
    """Learning rate of the critics, with the stage's warm-up and schedule."""
    max_grad_norm: Limit = 1.0
    """Largest norm of the critics' gradient."""
    hidden: Annotated[list[Positive], Field(min_length=1)] = [256, 256]
    """Widths of the hidden layers of a critic."""
    target_rate: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share by which the target critics move towards the critics in each update; for `returns`."""
    answers: Count = 0
    """Remembered observations that the policy answers anew in a step. The policy learns from these answers in place of the step's
    own, and so do the values of states (ArCHer's published code); 0: both learn from the step's own. For `returns`, with
    `archer`."""
    warmup_steps: Count = 0
    """Steps at the beginning of the stage in which only the critics learn."""
    replay: Count = 0
    """Remembered episodes from which the policy learns in a step, in place of the step's own; 0: the step's own. For `success`,
    with an algorithm that imitates."""
    top: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the remembered episodes that are replayed: those whose reward is furthest above the probability of success that
    the prompt had."""

    @model_validator(mode="after")
    def _what_is_set_has_an_effect(self) -> TurnCriticConfig:
        rules = {**dict.fromkeys(OF_RETURNS, "returns"), **dict.fromkeys(OF_SUCCESS, "success")}
        for key, rule in rules.items():
            if self.rule != rule and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f'turn_critic.{key} has no effect with rule = "{self.rule}": set rule = "{rule}", or drop it')
        if not self.replay and self.top != type(self).model_fields["top"].default:
            raise ValueError(f"turn_critic.top = {self.top:g} chooses among replayed episodes: set replay, or drop it")
        return self

    def smaller(self) -> TurnCriticConfig:
        return self.at_most(updates=2, batch_size=8, warmup_steps=1, replay=4, answers=4)
