"""What came of a step's sampling, and what other learner processes get of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mmrl.api.sampling import Group
from mmrl.api.types import Prompt, Rollout, Score, Turn, replace
from mmrl.data.prompts import Outcome


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


def light_group(group: Group) -> Group:
    """The stub of a group that other ranks get: all but pictures and what the model reads of them."""
    prompt = without_media(group.prompt)
    rollouts, others = [light(r, prompt) for r in group.rollouts], [light_group(g) for g in group.others]
    return replace(group, prompt=prompt, inputs=None, rollouts=rollouts, others=others, elsewhere=True)


def without_media(prompt: Prompt) -> Prompt:
    """The prompt without its pictures and videos."""
    kept = [
        m if isinstance(m["content"], str) else {**m, "content": [p for p in m["content"] if p["type"] == "text"]}
        for m in prompt.messages
    ]
    return replace(prompt, messages=kept)


def light(rollout: Rollout, prompt: Prompt | None = None) -> Rollout:
    """The stub of a rollout that other ranks get. prompt: its own without media, where that is at hand."""
    prompt = prompt or without_media(rollout.prompt)
    turns = tuple(_counted(turn) for turn in rollout.turns)
    track = rollout.track and rollout.track.light
    return replace(rollout, prompt=prompt, turns=turns, inputs=None, later=None, frames=(), track=track, elsewhere=True)


def _counted(turn: Turn) -> Turn:
    """A turn with its text and its length alone: its ids would be most of what the ranks send each other."""
    nobody = (math.nan,) if any(math.isnan(p) for p in turn.logprobs) else ()
    return replace(turn, observed_ids=(), token_ids=range(len(turn.token_ids)), logprobs=nobody, messages=())


def outcomes(groups: Sequence[Group], success: float) -> list[Outcome]:
    """What came of the groups, for the source of prompts: a prompt that was only answered with help has failed."""
    return [
        Outcome(g.place, tuple(g.unaided), spread=g.spread > 0, failed=bool(g.unaided) and max(g.unaided) < success)
        for g in groups
    ]
