"""The keys of `[[stages]] kind = "hg-dagger"`, besides those of `mmrl.config.training`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mmrl.config.training import Training
from mmrl.config.values import Count, Positive, Rate, Share


class HgDaggerStage(Training):
    """`[[stages]] kind = "hg-dagger"`: the policy plays, a person takes over where it errs, and the policy imitates all that was
    done in its place so far, and nothing of its own (Kelly et al., HG-DAgger, arXiv 1810.02890). For policies that act."""

    kind: Literal["hg-dagger"]
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
    capacity: Annotated[int, Field(ge=1, le=10**8)] = 100_000
    """Calls in the memory, of the newest episodes in which another acted; those of the expert's episodes come on top."""
    expert_episodes: Count = 0
    """Episodes of the simulator's own expert that the policy also imitates, from the first step on."""
    interventions: Share = 0.0
    """Share of the episodes in which the simulator's expert takes over at some step, as a person would."""

    def smaller(self) -> HgDaggerStage:
        small = super().smaller().at_most(updates=2, expert_episodes=2)
        return small.model_copy(update={"interventions": 1.0}) if self.interventions else small  # or by chance nobody does
