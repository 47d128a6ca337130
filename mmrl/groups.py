"""A prompt with its rollouts and their scores, and what came of the groups of a step."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmrl.data.source import Outcome, Place
from mmrl.policies.reading import PromptInputs
from mmrl.types import Prompt, Rollout, Score, replace


@dataclass(kw_only=True)
class Group:
    """A prompt, its rollouts and their scores, side by side."""

    place: Place
    prompt: Prompt
    inputs: PromptInputs
    rollouts: list[Rollout]
    scores: list[Score]
    alone: list[float] = field(default_factory=list)
    """The rewards without any help, by hints or the gold completion."""
    neutral: int | None = None
    """Which of the rollouts counts nothing, if any: the gold completion beside a sampled one that is as good."""

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


def right(score: Score, verifier: str = "") -> float | None:
    """How right an answer is: what a verifier gave it, None where it gave nothing; without one its whole reward, None where that
    failed."""
    return score.parts.get(verifier) if verifier and not score.failed else score.value


def adjusted(score: Score, part: str, amount: float) -> Score:
    """The score with an amount added, under its own name; a failed one stays failed."""
    if score.value is None:
        return score
    return replace(score, value=score.value + amount, parts={**score.parts, part: amount})


def outcomes(groups: Sequence[Group], success: float) -> list[Outcome]:
    """What came of the groups, for the source of prompts: a prompt that was only answered with help has failed."""
    return [
        Outcome(g.place, tuple(g.alone), spread=g.spread > 0, failed=bool(g.alone) and not any(r >= success for r in g.alone))
        for g in groups
    ]
