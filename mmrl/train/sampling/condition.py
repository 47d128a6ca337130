"""Imitation of all rollouts, with prompts that say whether each was good: RECAP (Physical Intelligence, pi*0.6, section 4)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from mmrl.api.episodes import GUIDED, SAID
from mmrl.api.types import Prompt, Rollout
from mmrl.config.sections import ConditionConfig, RecapStage, RlStage, Training
from mmrl.policies.batches import Credit
from mmrl.rollout.collector import Collector
from mmrl.train.sampling.groups import Sampled
from mmrl.train.sampling.prompts import append_text


class Prompts(Protocol):
    """The prompts of a stage, by (label of the task, index in the task)."""

    def __getitem__(self, place: tuple[str, int], /) -> Prompt: ...


def with_condition(prompt: Prompt, condition: str, guidance: float = 1.0) -> Prompt:
    """The prompt with a condition at its end, or the same prompt if the condition is empty. If a simulator gives the instruction,
    the condition follows it, and guides the policy with the weight `guidance`."""
    if not prompt.messages:
        guided = {} if guidance == 1 else {GUIDED: guidance}
        return replace(prompt, meta={**prompt.meta, SAID: condition, **guided}) if condition else prompt
    return append_text(prompt, f"\n{condition}") if condition else prompt


def stage_condition(stage: Training) -> Callable[[Prompt], Prompt]:
    """A function that adds a stage's positive condition to prompts, for sampling and evaluation; without a condition it changes
    nothing."""
    condition = stage.condition.positive if isinstance(stage, RlStage | RecapStage) and stage.condition else ""
    guidance = stage.guidance if isinstance(stage, RecapStage) else 1.0
    return lambda prompt: with_condition(prompt, condition, guidance)


def relabel(
    sampled: Sampled, credit: Credit, config: ConditionConfig, collector: Collector, plain: Prompts, seed: int
) -> tuple[list[Rollout], Credit, float]:
    """Relabel rollouts for imitation: (rollouts under prompts with conditions, credit of weight 1 each, share labelled positive).

    The `top` share by advantage is labelled positive, the rest negative; a share `drop` of the rollouts gets no condition. Failed
    rollouts are left out. plain: place of a group -> its prompt without a condition. All rollouts were sampled with the positive
    condition.
    """
    lengths_N = torch.tensor([max(r.length, 1) for r in sampled.rollouts])
    advantages_N = credit.advantages if credit.advantages.ndim == 1 else credit.advantages.sum(1) / lengths_N
    labels = condition_labels(advantages_N.tolist(), config, seed)
    answers: list[Rollout] = []
    shown: dict[tuple[int, str], tuple[Prompt, Any]] = {}
    for rollout, label in zip(sampled.rollouts, labels, strict=True):
        if label == config.positive:  # as it was sampled
            answers.append(rollout)
            continue
        key, group = (rollout.group, label), sampled.groups[rollout.group]
        if key not in shown:
            prompt = with_condition(plain[group.place], label)
            shown[key] = prompt, None if group.inputs is None else collector.encode([prompt])[0]
        answers.append(rollout.answering(*shown[key]))
    credit = Credit(advantages=torch.ones(len(labels)).where(~advantages_N.isnan(), torch.nan))
    return answers, credit, labels.count(config.positive) / len(labels)


def condition_labels(advantages: Sequence[float], config: ConditionConfig, seed: int) -> list[str]:
    """The condition of each rollout, "" for none. Ties with the last of the `top` are positive too; the worst rollouts never are,
    so no rollout is positive if all failed."""
    chance = random.Random(seed)
    valid = sorted((a for a in advantages if a == a), reverse=True)
    bound, worst = (valid[max(1, round(config.top * len(valid))) - 1], valid[-1]) if valid else (0.0, 0.0)
    good = [a >= bound and a > worst for a in advantages]
    return ["" if chance.random() < config.drop else config.positive if g else config.negative for g in good]
