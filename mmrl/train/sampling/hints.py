"""Hints: groups without a success are sampled again with a part of the gold completion in the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from mmrl.api.errors import plugin_errors
from mmrl.api.interfaces import Task
from mmrl.api.sampling import Group, SamplingRule, StepLoad, StepSampler
from mmrl.api.types import Prompt
from mmrl.config.sections import RlStage
from mmrl.train.sampling.prompts import append_text
from mmrl.train.sampling.votes import check_kind

HINT = "\n\nHint: "
HINTED = "hinted"
"""The note of a group that succeeded with a hint."""


class Hints(SamplingRule):
    """Longer and longer hints, until a completion succeeds. `ghpo` (Liu et al., GHPO, section 3): the hinted group replaces the
    original one. `guide` (Nath et al., Adaptive guidance, section 3): its completions join the group, as completions of the
    prompt without the hint."""

    phase: ClassVar[Literal["score", "select"]] = "select"

    def __init__(self, kind: str, shares: Sequence[float], success: float) -> None:
        self.kind, self.shares, self.success = kind, shares, success

    @classmethod
    def of(cls, stage: RlStage) -> Hints | None:
        return cls(stage.hints, stage.hint_shares, stage.success_threshold) if stage.hints != "none" else None

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        failed = [g for g in groups if g.rewards and not g.successes(self.success)]
        for share in self.shares:
            if not failed:
                break
            tried = sample.again(failed, partial(hinted, sample=sample, share=share))
            for group, other in zip(failed, tried, strict=True):
                self._help(group, other)
            failed = [g for g in failed if HINTED not in g.notes]
        return groups

    def _help(self, group: Group, other: Group) -> None:
        """Replace the group by the hinted group `other`, or add that one's rollouts, if it succeeded."""
        if not other.successes(self.success):
            group.others.append(other)
            return
        if self.kind == "ghpo":
            group.others = [replace(group), *other.others]
            group.prompt, group.inputs, group.notes = other.prompt, other.inputs, other.notes
            group.rollouts, group.scores = other.rollouts, other.scores
        else:
            group.others.append(replace(other, rollouts=[], scores=[]))  # its notes count in metrics
            group.rollouts = group.rollouts + [r.answering(group.prompt, group.inputs) for r in other.rollouts]
            group.scores = group.scores + other.scores
        group.notes = {**group.notes, HINTED: True}

    def adds(self, load: StepLoad) -> StepLoad:
        more = load.rounds(load.groups, load.size)
        joined = sum(size for _, size in more[: 1 + len(load.joined)]) if self.kind == "guide" else 0
        return replace(load, perhaps=(*load.perhaps, *more * len(self.shares)), extra=load.extra + joined)

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        return {"sampling/hinted": float(sum(HINTED in g.notes for g in groups))}


def hinted(group: Group, sample: StepSampler, share: float) -> Prompt:
    """The group's prompt with a hint: a share of its gold completion."""
    return with_hint(group.prompt, sample.task(group.prompt.task), share)


def with_hint(prompt: Prompt, task: Task, share: float) -> Prompt:
    """The prompt with the task's hint. Raises NoGold if the task knows no correct completion."""
    what = f"task {prompt.task!r}: hint()"
    with plugin_errors(what):
        hint = task.hint(prompt, share)
    check_kind(hint, str, f"{what} must give text")
    return append_text(prompt, HINT + hint)
