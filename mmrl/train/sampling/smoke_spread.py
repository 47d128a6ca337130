"""Spread in a smoke run: a random model of a few thousand weights earns the same in every completion, so nothing would be learned
from, and the update would never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

from mmrl.algorithms.presets import Algorithm
from mmrl.api.errors import NoGold
from mmrl.api.interfaces import Task
from mmrl.api.sampling import Group, SamplingRule, StepSampler
from mmrl.api.types import Prompt
from mmrl.config.sections import RlStage
from mmrl.data.prompts import gold_completion
from mmrl.train.sampling.dynamic_sampling import DynamicSampling
from mmrl.train.sampling.overlong import OverlongMask
from mmrl.train.sampling.oversampling import Oversampling
from mmrl.train.sampling.success_filter import SuccessFilter

GOLD, DRAWN = "smoke_gold", "smoke_drawn"
"""Notes of a group: its last completion is the gold one, or rewards were drawn."""
BEFORE = (SuccessFilter, DynamicSampling, Oversampling, OverlongMask)
"""Rules that leave out what has no spread, or that come last."""


class SmokeSpread(SamplingRule):
    """Where rewards are all the same, the gold completion, scored like any other, takes the place of the last one. Where there is
    none, or it earns no more, every second rollout (or group) is paid more: then the update is shown, and the reward isn't."""

    phase: ClassVar[Literal["score", "select"]] = "select"

    def __init__(self, in_groups: bool, has_gold: Callable[[Group], bool], pays: float = 1.0) -> None:
        """in_groups: rollouts are compared within a group; otherwise over the step. has_gold: whether a group's prompt has a gold
        completion. pays: what is paid more, which should count as a success."""
        self.in_groups, self.has_gold, self.pays = in_groups, has_gold, pays

    def __call__(self, groups: list[Group], sample: StepSampler) -> list[Group]:
        chosen = [group for group in self._flat(groups) if self.has_gold(group)]
        for group, gold in zip(chosen, sample.gold(chosen), strict=True):
            group.rollouts, group.scores = [*group.rollouts[:-1], *gold.rollouts], [*group.scores[:-1], *gold.scores]
            group.notes[GOLD] = True
        for group in self._flat(groups):
            group.pay("smoke", [self.pays * (k % 2 if self.in_groups else 1) for k in range(len(group.rollouts))])
            group.notes[DRAWN] = True
        return groups

    def _flat(self, groups: Sequence[Group]) -> list[Group]:
        """The groups without spread; over the step, every second group if all rewards are the same."""
        if self.in_groups:
            return [group for group in groups if group.spread == 0]
        return [] if len({reward for group in groups for reward in group.rewards}) > 1 else list(groups[::2])

    def counts(self, groups: Sequence[Group]) -> Mapping[str, float]:
        return {f"sampling/{name}": float(sum(name in group.notes for group in groups)) for name in (GOLD, DRAWN)}


def with_spread(
    rules: Sequence[SamplingRule], stage: RlStage, algorithm: Algorithm, tasks: Mapping[str, Task]
) -> list[SamplingRule]:
    """The rules of a smoke run's stage: with `SmokeSpread`, if its update needs spread. tasks: by label."""
    if not {"rewards_N", "rewards_NT", "parts_NR"} & {*algorithm.needs}:
        return list(rules)
    in_groups = algorithm.compares and stage.settings.get("baseline") != "batch"
    pays = max(1.0, stage.success_threshold)
    spread = SmokeSpread(in_groups, lambda group: stage.labels == "task" and has_gold(tasks, group.prompt), pays)
    at = next((i for i, rule in enumerate(rules) if isinstance(rule, BEFORE)), len(rules))
    return [*rules[:at], spread, *rules[at:]]


def has_gold(tasks: Mapping[str, Task], prompt: Prompt) -> bool:
    """Whether a prompt has a gold completion: in a simulator none can be put in, and some tasks know none."""
    if tasks[prompt.task].simulation is not None:
        return False
    try:
        gold_completion(tasks[prompt.task], prompt)
    except NoGold:
        return False
    return True
