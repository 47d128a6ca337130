"""The rules of sampling of a stage, in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmrl.api.errors import UserError, plugin_errors
from mmrl.api.interfaces import Task
from mmrl.api.sampling import SamplingRule
from mmrl.config.sections import OffPolicyStage, RlStage, RuleConfig
from mmrl.judge.rewards import Weights
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


def check_plugin_rules(
    where: str, stage: RlStage | OffPolicyStage, weights: Mapping[str, Weights], tasks: Mapping[str, Task] | None
) -> None:
    """Raise UserError for rules that are unknown, there twice, have wrong options or lack a task. where: the stage's key.
    weights: of all tasks of the run, by label. tasks: by label; None where none was made, and rules aren't asked about them."""
    voted = isinstance(stage, RlStage) and stage.labels != "task"
    verifiers = [] if voted else sorted({verifier for of_task in weights.values() for verifier in of_task})
    for number, entry in enumerate(stage.rules):
        try:
            rule = plugins.registry().make_sampling_rule(entry.id, entry.options)
            _check_once(where, stage.rules, number, rule)
            check_sizes(f"sampling rule {entry.id!r}", rule)
            if isinstance(stage, OffPolicyStage) and rule.phase != "score":
                raise UserError(f"{entry.id!r} chooses among groups, and an off-policy stage keeps every episode: drop it")
            with plugin_errors(f"sampling rule {entry.id!r}: check()"):
                rule.check(verifiers)
            with plugin_errors(f"sampling rule {entry.id!r}: check_tasks()"):
                if tasks is not None:
                    rule.check_tasks(tasks)
        except UserError as error:
            raise type(error)(f"{where}.rules.{number}: {error}") from error


def _check_once(where: str, entries: Sequence[RuleConfig], number: int, rule: SamplingRule) -> None:
    """Refuse a rule that is in the list before, too: as it is, or with other options if its metrics have one name each."""
    entry, counts = entries[number], type(rule).counts is not SamplingRule.counts
    spec = plugins.registry().get("sampling_rules", entry.id)
    for before, other in enumerate(entries[:number]):
        same = plugins.registry().get("sampling_rules", other.id) is spec
        if same and (counts or other.options == entry.options):
            raise UserError(f"{entry.id!r} is there twice, here and as {where}.rules.{before}: drop one of them")
