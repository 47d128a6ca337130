"""The rules of sampling of a stage, in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Mapping

from mmrl.api.errors import UserError, plugin_errors
from mmrl.api.interfaces import Task
from mmrl.api.sampling import SamplingRule
from mmrl.config.sections import OffPolicyStage, RlStage
from mmrl.registry import plugins
from mmrl.train.sampling.co_reward import CoReward
from mmrl.train.sampling.dynamic_sampling import DynamicSampling
from mmrl.train.sampling.ground_truth import GroundTruth
from mmrl.train.sampling.guard import check_sizes
from mmrl.train.sampling.hints import Hints
from mmrl.train.sampling.length import LengthBonus
from mmrl.train.sampling.noisy import NoisyRollouts
from mmrl.train.sampling.overlong import OverlongMask, OverlongPenalty
from mmrl.train.sampling.oversampling import Oversampling
from mmrl.train.sampling.success_filter import SuccessFilter
from mmrl.train.sampling.verified import Verified
from mmrl.train.sampling.votes import Votes

LABELS = (Verified, Votes, CoReward)
"""Rules that give scores; a stage has one of them. Noisy rollouts and rules of plugins follow."""
OTHERS = (*(LengthBonus, OverlongPenalty), *(Hints, SuccessFilter, DynamicSampling, Oversampling, GroundTruth), OverlongMask)
"""Rules that follow those of plugins."""


def rules_of(stage: RlStage) -> list[SamplingRule]:
    """The rules that a stage's keys switch on. `of` of each built-in rule makes it from the stage, or returns None."""
    made = [kind.of(stage) for kind in (*LABELS, NoisyRollouts)], plugin_rules(stage), [kind.of(stage) for kind in OTHERS]
    return [rule for rules in made for rule in rules if rule is not None]


def plugin_rules(stage: RlStage | OffPolicyStage) -> list[SamplingRule]:
    """The rules that `[[stages.rules]]` names, made with their options."""
    return [plugins.registry().make_sampling_rule(entry.id, entry.options) for entry in stage.rules]


def check_plugin_rules(where: str, stage: RlStage | OffPolicyStage, verifiers: list[str], tasks: Mapping[str, Task]) -> None:
    """Raise UserError for rules that are unknown, have wrong options or lack a task. where: the stage's key. verifiers: those
    that reward it. tasks: those of the run, by label."""
    for number, entry in enumerate(stage.rules):
        try:
            rule = plugins.registry().make_sampling_rule(entry.id, entry.options)
            check_sizes(f"sampling rule {entry.id!r}", rule)
            if isinstance(stage, OffPolicyStage) and rule.phase != "score":
                raise UserError(f"{entry.id!r} chooses among groups, and an off-policy stage keeps every episode: drop it")
            with plugin_errors(f"sampling rule {entry.id!r}: check()"):
                rule.check(verifiers)
            with plugin_errors(f"sampling rule {entry.id!r}: check_tasks()"):
                rule.check_tasks(tasks)
        except UserError as error:
            raise type(error)(f"{where}.rules.{number}: {error}") from error
