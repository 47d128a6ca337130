"""The rollouts of a step as answers to other prompts, to compare what the policy says of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

import torch

from mmrl.api.episodes import Conversation
from mmrl.api.errors import NoGold
from mmrl.api.interfaces import Task
from mmrl.api.types import Prompt, Rollout
from mmrl.compute import ranks
from mmrl.rollout.collector import Collector
from mmrl.train.sampling.hints import with_hint
from mmrl.train.sampling.prompts import append_text

SOLVED = "\nCorrect solution:\n\n{}\n\n\n\nCorrectly solve the original question.\n"
"""What follows a prompt that shows a solution: the words of SDPO's authors, by which TRL asks too."""


def prompted(
    rollouts: Sequence[Rollout],
    collector: Collector,
    changed: Callable[[Conversation], Prompt | None],
    kind: Callable[[Conversation], Hashable] = lambda rollout: None,
) -> list[Conversation]:
    """The same tokens after changed prompts, one for all rollouts of a prompt and of a kind. changed: gives None to leave a
    prompt as it is. Rollouts of other ranks stay as they are."""
    talks = [r for r in rollouts if isinstance(r, Conversation)]
    keys = [(r.group, id(r.inputs), kind(r)) for r in talks]
    seen = {key: r for key, r in zip(keys, talks, strict=True) if not r.is_stub}
    prompts = {key: prompt for key, r in seen.items() if (prompt := changed(r)) is not None}
    inputs = dict(zip(prompts, collector.encode(list(prompts.values())), strict=True))
    return [r.answering(prompts[key], inputs[key]) if key in prompts else r for key, r in zip(keys, talks, strict=True)]


def told_rollouts(rollouts: Sequence[Rollout], collector: Collector, tasks: Mapping[str, Task]) -> list[Conversation]:
    """As answers to prompts that tell the whole gold completion, for self-distillation. Prompts without one stay."""
    return prompted(rollouts, collector, partial(_told, tasks=tasks))


def shown_rollouts(rollouts: Sequence[Rollout], collector: Collector, solved: Sequence[bool]) -> list[Conversation]:
    """As answers to prompts that show the first of their group's other rollouts that is solved, for self-distillation. Where no
    other one is, they stay. solved: for each rollout."""
    firsts: dict[int, list[Conversation]] = {}
    for rollout, right in zip(rollouts, solved, strict=True):
        if right and isinstance(rollout, Conversation):
            firsts.setdefault(rollout.group, []).append(rollout)

    def solution(rollout: Conversation) -> str | None:
        others = (r for r in firsts.get(rollout.group, ())[:2] if r is not rollout)
        return next(("\n\n".join(turn.text for turn in other.turns) for other in others), None)

    def changed(rollout: Conversation) -> Prompt | None:
        return None if (text := solution(rollout)) is None else append_text(rollout.prompt, SOLVED.format(text))

    return prompted(rollouts, collector, changed, solution)


def unchanged(rollouts: Sequence[Rollout], after: Sequence[Rollout], device: torch.device) -> torch.Tensor:
    """Whether `prompted` left each rollout as it is, as the rank knows that holds it. Returns bool [N] on the device; call it on
    all ranks."""
    own = [float(not one.is_stub and other.prompt is one.prompt) for one, other in zip(rollouts, after, strict=True)]
    return ranks.all_reduce_sum(torch.tensor(own, device=device)) > 0


def _told(rollout: Conversation, tasks: Mapping[str, Task]) -> Prompt | None:
    try:
        return with_hint(rollout.prompt, tasks[rollout.prompt.task], 1.0)
    except NoGold:
        return None
