"""The groups of a step, and their stubs for other ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from mmrl.api.sampling import Group, share_of
from mmrl.api.types import Rollout, Score, verifier_value
from mmrl.data.epoch_filter import mean_value
from mmrl.data.stream import GroupOutcome


@dataclass(kw_only=True)
class Sampled:
    """The groups that a step trains on, and all groups that were sampled for it."""

    groups: list[Group]
    """Numbered by `Rollout.group`, from 0."""
    sampled: list[Group]
    """`groups`, and those that were left out."""
    counts: dict[str, float] = field(default_factory=dict)
    """Metrics of the sampling and of its rules."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Part -> seconds that the step waited for it."""
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Task -> verifier -> its weight in the reward."""
    idle: bool = False
    """The rules left no group: `groups` are all that were sampled, and the step trains on none of them."""

    @property
    def rollouts(self) -> list[Rollout]:
        return [r for g in self.groups for r in g.rollouts]

    @property
    def scores(self) -> list[Score]:
        return [s for g in self.groups for s in g.scores]

    @property
    def everything(self) -> list[Group]:
        """All groups that were sampled, with the further groups of rules."""
        return [*self.sampled, *(other for group in self.sampled for other in _others(group))]


def judged(group: Group, verifier: str = "") -> torch.Tensor:
    """float64 [n]: what a verifier gives to each rollout, or the whole reward with that of the environment if `verifier` is
    empty; NaN where the score failed, or where that verifier gave none."""
    values = [verifier_value(score, verifier) for score in group.scores]
    paid = [0.0 if verifier else rollout.environment_reward for rollout in group.rollouts]
    known = [math.nan if value is None else value + more for value, more in zip(values, paid, strict=True)]
    return torch.tensor(known, dtype=torch.float64)


def _others(group: Group) -> Iterator[Group]:
    for other in group.others:
        yield other
        yield from _others(other)


def group_stub(group: Group, states: bool = False) -> Group:
    """The stub of a group for other ranks: without media and encoded inputs. states: its rollouts still know their states."""
    prompt = group.prompt.without_media()
    known = [r.with_states() for r in group.rollouts] if states else group.rollouts
    rollouts, others = [r.to_stub(prompt) for r in known], [group_stub(g, states) for g in group.others]
    return replace(group, prompt=prompt, inputs=None, rollouts=rollouts, others=others, is_stub=True)


def outcomes(groups: Sequence[Group], success: float, deciding: str = "") -> list[GroupOutcome]:
    """The outcomes of the groups, for the source of prompts. A prompt that succeeded only with a hint counts as failed. deciding:
    the verifier that an epoch filter goes by; the reward if empty."""
    return [
        GroupOutcome(
            g.place,
            tuple(g.unaided),
            spread=g.spread > 0,
            failed=bool(g.unaided) and max(g.unaided) < success,
            successes=share_of(g.unaided, success),
            value=mean_value(g.unaided, [s.parts for s in g.scores if not s.failed], deciding),
        )
        for g in groups
    ]
