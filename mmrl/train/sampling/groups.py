"""What came of a step's sampling, and what other learner processes get of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mmrl.api.sampling import Group
from mmrl.api.types import Rollout, Score
from mmrl.data.prompts import GroupOutcome


@dataclass(kw_only=True)
class Sampled:
    """What a step trains on, and all that was sampled for it."""

    groups: list[Group]
    """Numbered by `Rollout.group`, from 0."""
    sampled: list[Group]
    """These and the ones that were left out."""
    counts: dict[str, float] = field(default_factory=dict)
    """Metrics of the sampling and of its rules."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Part -> how long the step had to wait for it."""
    idle: bool = False
    """The rules left nothing: the groups are all that were sampled, and none of them is trained on."""

    @property
    def rollouts(self) -> list[Rollout]:
        return [r for g in self.groups for r in g.rollouts]

    @property
    def scores(self) -> list[Score]:
        return [s for g in self.groups for s in g.scores]

    @property
    def everything(self) -> list[Group]:
        """All groups that were sampled, those among them that rules sampled besides."""
        return [*self.sampled, *(other for group in self.sampled for other in _others(group))]


def _others(group: Group) -> Iterator[Group]:
    for other in group.others:
        yield other
        yield from _others(other)


def group_stub(group: Group) -> Group:
    """The stub of a group that other ranks get: all but pictures and what the model reads of them."""
    prompt = group.prompt.without_media()
    rollouts, others = [r.to_stub(prompt) for r in group.rollouts], [group_stub(g) for g in group.others]
    return replace(group, prompt=prompt, inputs=None, rollouts=rollouts, others=others, is_stub=True)


def outcomes(groups: Sequence[Group], success: float) -> list[GroupOutcome]:
    """What came of the groups, for the source of prompts: a prompt that was only answered with help has failed."""
    return [
        GroupOutcome(g.place, tuple(g.unaided), spread=g.spread > 0, failed=bool(g.unaided) and max(g.unaided) < success)
        for g in groups
    ]
