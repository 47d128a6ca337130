"""The numbers of a step's prompts, groups and completions, by which it samples and is planned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

from mmrl.api.errors import PluginError, UserError, is_finite, plugin_errors
from mmrl.api.sampling import SamplingRule, StepLoad
from mmrl.config.sections import TaskConfig

MOST = 10**9
"""Largest number of groups or completions that a rule may add to a step, far above what can be sampled."""


class StepNumbers:
    """How many prompts a step begins with, and how many groups it trains on."""

    def __init__(self, prompts_per_step: int, rules: Sequence[SamplingRule]) -> None:
        """rules: all of the stage."""
        self.rules = rules
        self.per_prompt = math.prod(rule.groups_per_prompt for rule in rules)
        self.wanted = prompts_per_step * self.per_prompt
        """Number of groups that a step trains on."""
        self.prompts = self.prompts_for(self.wanted)
        """Number of prompts with which a step begins."""

    def prompts_for(self, groups: int) -> int:
        """The number of prompts to sample for so many groups to train on."""
        prompts = math.ceil(groups / self.per_prompt)
        return math.ceil(round(prompts * math.prod(rule.oversample for rule in self.rules), 6))  # 10 x 1.1 is 11


def group_sizes(entries: Mapping[str, TaskConfig], size: int) -> dict[str, int]:
    """Task -> completions per prompt. size: the stage's."""
    return {label: entry.group_size or size for label, entry in entries.items()}


def step_load(
    prompts_per_step: int, size: int, rules: Sequence[SamplingRule], entries: Mapping[str, TaskConfig] | None = None
) -> StepLoad:
    """What a step samples and trains on, at most. size: the stage's completions per prompt. entries: the run's tasks; of those
    that prompts are drawn from, all prompts are taken to be of that with the largest groups. Raises UserError for more than
    `MOST` prompts or completions."""
    numbers, sizes = StepNumbers(prompts_per_step, rules), group_sizes(entries or {}, size)
    drawn = max((sizes[label] for label, entry in (entries or {}).items() if entry.weight), default=size)
    if max(numbers.prompts, drawn) > MOST:  # the run's own numbers, for which no rule is to blame
        raise UserError(
            f"a step begins with {numbers.prompts:,} prompts of {drawn:,} completions each, more than {MOST:,}: "
            "lower its prompts_per_step and group_size"
        )
    load = StepLoad(wanted=numbers.wanted, groups=numbers.prompts, size=drawn, sizes=sizes, sampled=((numbers.prompts, drawn),))
    for rule in sorted(rules, key=lambda rule: rule.phase == "select"):
        what = f"sampling rule {type(rule).__name__}: adds()"
        with plugin_errors(what):
            load = rule.adds(load)
        if not isinstance(load, StepLoad):
            raise PluginError(f"{what} must give a StepLoad, not a {type(load).__name__}")
        if wrong := _impossible(load):
            raise PluginError(
                f"{what} gives a StepLoad with {wrong} = {getattr(load, wrong)!r:.60}: give numbers from 0 to {MOST:,}"
            )
    return load


def _impossible(load: StepLoad) -> str:
    """The first field of a load that no step can have; empty if there is none."""
    for name in ("groups", "size", "extra"):
        if not _is_count(getattr(load, name)):
            return name
    for name in ("sampled", "perhaps", "added"):
        rounds = getattr(load, name)
        if not isinstance(rounds, tuple) or not all(isinstance(one, tuple) and len(one) == 2 for one in rounds):
            return name
        if not all(map(_is_count, chain.from_iterable(rounds))):
            return name
    for name in ("joined", "beside"):
        shares = getattr(load, name)
        if not isinstance(shares, tuple) or not all(is_finite(share) and 0 <= share <= MOST for share in shares):
            return name
    return ""


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MOST
