"""A prompt with its rollouts and their scores, and what came of the groups of a step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mmrl.api.types import Prompt, Rollout, Score, Turn
from mmrl.data.prompts import Outcome, Place

if TYPE_CHECKING:
    from mmrl.train.sampling.temporal import Timed


@dataclass(kw_only=True)
class Group:
    """A prompt, its rollouts and their scores, side by side."""

    place: Place
    prompt: Prompt
    inputs: Any
    """As the policy reads it (`mmrl.policies.vlm.reading.PromptInputs`, or what a task demonstrates)."""
    rollouts: list[Rollout]
    scores: list[Score]
    alone: list[float] = field(default_factory=list)
    """The rewards without any help, by hints or the gold completion."""
    neutral: int | None = None
    """Which of the rollouts counts nothing, if any: the gold completion beside a sampled one that is as good."""
    timed: Timed | None = None
    """How it fared against its frames shuffled, where the stage asks."""
    beside: list[Group] = field(default_factory=list)
    """What was sampled and scored for that."""
    elsewhere: bool = False
    """Another rank has its pictures: this is what that told, see `light`."""

    @property
    def light(self) -> Group:
        """What other ranks are told: all but pictures and what the model reads of them."""
        prompt = without_media(self.prompt)
        told = [light(r, prompt) for r in self.rollouts]
        return replace(self, prompt=prompt, inputs=None, rollouts=told, beside=[g.light for g in self.beside], elsewhere=True)

    @property
    def rewards(self) -> list[float]:
        """Of the rollouts whose score didn't fail, those of their worlds included."""
        both = zip(self.rollouts, self.scores, strict=True)
        return [s.value + r.world_reward for r, s in both if s.value is not None]

    @property
    def spread(self) -> float:
        """Standard deviation of the rewards."""
        return statistics.pstdev(self.rewards) if self.rewards else 0.0

    def successes(self, threshold: float) -> float:
        """Share of the rewards that reach the threshold."""
        return statistics.fmean(r >= threshold for r in self.rewards) if self.rewards else 0.0


@dataclass(kw_only=True)
class Gathered:
    """What a step trains on, and all that was sampled for it."""

    groups: list[Group]
    """Numbered by `Rollout.group`, from 0."""
    sampled: list[Group]
    """These and the ones that were left out."""
    spent: list[Group] = field(default_factory=list)
    """Sampled and scored besides: what hinted groups took the place of, and hints that didn't help."""
    counts: dict[str, float] = field(default_factory=dict)
    """Metrics of the rules at work."""
    idle: bool = False
    """The rules left nothing: the groups are all that were sampled, and none of them is trained on."""

    @property
    def rollouts(self) -> list[Rollout]:
        return [r for g in self.groups for r in g.rollouts]

    @property
    def scores(self) -> list[Score]:
        return [s for g in self.groups for s in g.scores]

    @property
    def neutral(self) -> list[bool]:
        """Of each rollout, whether it counts nothing."""
        return [k == g.neutral for g in self.groups for k in range(len(g.rollouts))]


def without_media(prompt: Prompt) -> Prompt:
    """The prompt without its pictures and videos."""
    kept = [
        m if isinstance(m["content"], str) else {**m, "content": [p for p in m["content"] if p["type"] == "text"]}
        for m in prompt.messages
    ]
    return replace(prompt, messages=kept)


def light(rollout: Rollout, prompt: Prompt | None = None) -> Rollout:
    """What other ranks are told of a rollout. prompt: its own without media, where that is at hand."""
    prompt = prompt or without_media(rollout.prompt)
    turns = tuple(_counted(turn) for turn in rollout.turns)
    track = rollout.track and rollout.track.light
    return replace(rollout, prompt=prompt, turns=turns, inputs=None, later=None, frames=(), track=track, elsewhere=True)


def _counted(turn: Turn) -> Turn:
    """A turn of which others need its text and how long it was: its ids would be most of what a step tells."""
    nobody = (math.nan,) if any(math.isnan(p) for p in turn.logprobs) else ()
    return replace(turn, observed_ids=(), token_ids=range(len(turn.token_ids)), logprobs=nobody, messages=())


def outcomes(groups: Sequence[Group], success: float) -> list[Outcome]:
    """What came of the groups, for the source of prompts: a prompt that was only answered with help has failed."""
    return [
        Outcome(g.place, tuple(g.alone), spread=g.spread > 0, failed=bool(g.alone) and not any(r >= success for r in g.alone))
        for g in groups
    ]
