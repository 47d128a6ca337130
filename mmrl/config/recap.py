"""The keys of `[[stages]] kind = "recap"`, besides those of `mmrl.config.training`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mmrl.config.condition import ConditionConfig
from mmrl.config.training import Training
from mmrl.config.values import Count, Positive, Rate, Share, Weight


class RecapStage(Training):
    """`[[stages]] kind = "recap"`: keep all episodes, train a value function on them, and imitate every action with a text in
    the instruction that says whether it was better than expected (Physical Intelligence, pi*0.6, arXiv 2511.14759). For policies
    that act."""

    kind: Literal["recap"]
    """Kind of the stage."""
    prompts_per_step: Positive = 16
    """Starts per step, each of which is played."""
    group_size: Positive = 1
    """Episodes from each start."""
    updates: Positive = 50
    """Updates of the policy in a step."""
    batch_size: Positive = 64
    """Calls of the policy in an update."""
    learning_rate: Rate = 5e-5
    """Learning rate after the warm-up."""
    condition: ConditionConfig = ConditionConfig(drop=0.3)
    """The texts, the share of each task's actions that is positive, and how often neither text is given."""
    guidance: Weight = 1.0
    """Classifier-free guidance by the positive text, in training episodes and evaluations: the policy acts by the velocity, or
    the logits, without a text, plus so many times what the text changes in them. 1: none. For flows and action tokens."""
    capacity: Annotated[int, Field(ge=1, le=10**8)] = 100_000
    """Calls in the replay memory, the newest; those of the expert's episodes come on top."""
    expert_episodes: Count = 0
    """Episodes of the simulator's own expert that the stage also learns from; all their actions are positive."""
    interventions: Share = 0.0
    """Share of the episodes in which the simulator's expert takes over at some step, as a person would; its actions are
    positive."""
    restart: bool = False
    """Begin the training of each step with the policy and the value function as they were when the stage began, as published."""
    # the values
    lookahead: Count = 50
    """Calls whose reward an advantage has before the value takes over; 0: the whole episode."""
    failure: Weight = 1.0
    """Cost of a failed episode, in lengths of the longest episode."""
    bins: Annotated[int, Field(ge=2, le=4096)] = 201
    """Bins of the value function's distribution over returns."""
    smoothing: Weight = 0.0
    """Standard deviation of the Gaussian around a return that the bins learn, in bins; 0: the bin that it falls into."""
    hidden: Annotated[list[Positive], Field(min_length=1)] = [256, 256]
    """Widths of the hidden layers of the value function, which reads the hidden states of a copy of the policy."""
    value_trains: Literal["head", "vision", "model"] = "head"
    """What the value function learns besides these layers: `head`, nothing, so that the copy is frozen and sees each call once;
    `vision`, the copy's vision encoder; `model`, its language model and projector, too, as published."""
    state: Count = 0
    """Length of the simulator's state, if the value function reads it too; 0: it doesn't."""
    value_updates: Positive = 200
    """Updates of the value function in a step."""
    value_batch_size: Positive = 256
    """Calls in an update of the value function."""
    value_learning_rate: Rate = 3e-4
    """Learning rate of the value function."""

    def smaller(self) -> RecapStage:
        return super().smaller().at_most(updates=2, value_updates=4, value_batch_size=8, expert_episodes=2)

    @model_validator(mode="after")
    def _keys_fit_each_other(self) -> RecapStage:
        if not self.failure:
            raise ValueError("failure = 0 makes a failed episode as good as a long one that succeeded: raise it, such as to 1")
        if self.guidance != 1 and not self.condition.drop:
            raise ValueError(
                f"guidance = {self.guidance:g} needs a policy that has learned without a text too: set condition.drop above 0"
            )
        return self
