"""The keys of conditions: texts in prompts that say how good a completion was."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from mmrl.config.values import Section


class ConditionConfig(Section):
    """`[stages.condition]`: train on all completions with their quality in the prompt, and sample with the text of good ones
    (RECAP, pi*0.6)."""

    positive: str = "Advantage: positive"
    """Text in the prompts of the best completions, and in prompts for sampling and evaluation."""
    negative: str = "Advantage: negative"
    """Text in the prompts of other completions."""
    top: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of a step's completions, by advantage, that get the positive text."""
    drop: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the prompts that get neither text, so that the policy also learns to answer without it."""

    @model_validator(mode="after")
    def _texts_tell_good_from_bad(self) -> ConditionConfig:
        for key in ("positive", "negative"):
            if not getattr(self, key).strip():
                raise ValueError(f"condition.{key} is blank, so it doesn't change a prompt: give a text")
        if self.positive.strip() == self.negative.strip():
            raise ValueError(f"condition.positive and negative are both {self.positive!r}: give two different texts")
        return self
