"""Training on everything, told whether it was good: RECAP (Physical Intelligence, pi*0.6, section 4)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from mmrl.api.simulators.types import Track
from mmrl.api.types import Prompt, Rollout
from mmrl.config.sections import ConditionConfig
from mmrl.policies.batches import Credit
from mmrl.policies.vlm.reading import PromptInputs
from mmrl.rollout.simulators.lane import SAID
from mmrl.train.sampling.gather import moved, with_text
from mmrl.train.sampling.groups import Gathered, Group


def shown_as(prompt: Prompt, condition: str) -> Prompt:
    """The prompt with a condition at its end; without one, as it is. Where a simulator gives the instruction, it follows that."""
    if not prompt.messages:
        return replace(prompt, meta={**prompt.meta, SAID: condition}) if condition else prompt
    return with_text(prompt, f"\n{condition}") if condition else prompt


def relabelled(
    gathered: Gathered,
    credit: Credit,
    config: ConditionConfig,
    encode: Callable[[Prompt], PromptInputs],
    plain: Callable[[Group], Prompt],
    seed: int,
) -> tuple[list[Rollout], Credit, float]:
    """The rollouts as answers to prompts that say how good each was, every one with the weight 1: to be imitated; and the share
    of them that is called positive.

    The `top` share by advantage is called positive, the rest negative; `drop` of the rollouts hear neither. Failed ones stay out.
    plain: a group's prompt without a condition. What was sampled was sampled as positive.
    """
    lengths_N = torch.tensor([max(r.length, 1) for r in gathered.rollouts])
    advantages_N = credit.advantages if credit.advantages.ndim == 1 else credit.advantages.sum(1) / lengths_N
    labels = labels_of(advantages_N.tolist(), config, seed)
    answers: list[Rollout] = []
    shown: dict[tuple[int, str], tuple[int, Prompt, PromptInputs]] = {}
    for rollout, label in zip(gathered.rollouts, labels, strict=True):
        key, group = (rollout.group, label), gathered.groups[rollout.group]
        if rollout.track is not None:
            answers.append(replace(rollout, track=told(rollout.track, config.positive, label)))
            continue
        if key not in shown:
            prompt = group.prompt if label == config.positive else shown_as(plain(group), label)
            own = group.inputs if label == config.positive or group.elsewhere else encode(prompt)
            shown[key] = (len(shown), prompt, own)
        number, prompt, inputs = shown[key]
        answers.append(replace(rollout if label == config.positive else moved(rollout, prompt, inputs), group=number))
    credit = Credit(advantages=torch.ones(len(labels)).where(~advantages_N.isnan(), torch.nan))
    return answers, credit, labels.count(config.positive) / len(labels)


def told(track: Track, before: str, label: str) -> Track:
    """The episode under another condition than the one that it was sampled under."""
    plain = track.instruction.removesuffix(f" {before}")
    return replace(track, instruction=f"{plain} {label}".strip())


def labels_of(advantages: Sequence[float], config: ConditionConfig, seed: int) -> list[str]:
    """The condition of each rollout, "" for none. What ties with the last of the `top` is positive too, and the worst never is:
    so nothing is in a step in which all failed."""
    chance = random.Random(seed)
    valid = sorted((a for a in advantages if a == a), reverse=True)
    bound, worst = (valid[max(1, round(config.top * len(valid))) - 1], valid[-1]) if valid else (0.0, 0.0)
    good = [a >= bound and a > worst for a in advantages]
    return ["" if chance.random() < config.drop else config.positive if g else config.negative for g in good]
