"""Gold completions among those of a smoke run: a random model writes nothing that a rule could read, so that votes, hints and
games of the policy with itself would never be played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mmrl.api.errors import NoGold, PluginError, UserError
from mmrl.api.sampling import Group
from mmrl.api.types import Prompt, Rollout
from mmrl.data.prompts import gold_completion

if TYPE_CHECKING:
    from mmrl.config.sections import Training
    from mmrl.train.context import StageContext

GOLD = "smoke_gold"
"""The note of a group: gold completions are among its own."""
LOOKED_AT = 8
"""Prompts whose gold completions are looked at for one that is another than a prompt's own."""


class SmokeGold:
    """Puts gold completions in the place of a group's last ones: its own for a half of the group, and for a quarter one of
    another prompt, which has the form that is asked for and a wrong content. They come before any rule, and are scored like all
    others.

    Of the first groups of a step every second one stays as it was sampled, so that rules also see groups without a success, and
    in every second step the others have a single gold completion, so that a success is also rare. What rules sample later, such
    as groups with a hint, has them all.
    """

    def __init__(self, run: StageContext, stage: Training) -> None:
        self.run, self.split = run, stage.split

    def __call__(self, groups: Sequence[Group], step: int, first: bool) -> None:
        """Change groups of this rank in place, which aren't scored yet. step: its index in the stage. first: they are the first
        of the step."""
        for group in groups:
            size = len(group.rollouts)
            if first and group.number % 2 != (size == 1):  # of two groups of one, the step keeps the first
                continue
            gold = self.of(group.prompt)
            if gold is None:
                continue
            texts = [gold]
            if size > 1 and not (first and step % 2):
                other = self._other(group.prompt, gold)
                texts = [*([] if other is None else [other] * (size // 4)), *[gold] * (size // 2)]
            shown = self.run.collector.try_answers([group.prompt] * len(texts), [group.inputs] * len(texts), texts)
            gold_rollouts = [replace(r, group=group.number) for r in shown]
            group.rollouts = [*group.rollouts[: size - len(texts)], *gold_rollouts]
            group.notes[GOLD] = True

    def endings(self, rollouts: Sequence[Rollout]) -> list[str | None]:
        """With what answers end that go on from begun ones: every second one with its gold completion, and the others with what
        is sampled, None."""
        return [self.of(rollout.prompt) if n % 2 == 0 else None for n, rollout in enumerate(rollouts)]

    def of(self, prompt: Prompt) -> str | None:
        """The gold completion of a prompt; None where none can be put in: in a simulator, or if the task knows none."""
        task = self.run.tasks[prompt.task]
        try:
            return gold_completion(task, prompt) if task.simulation is None else None
        except NoGold:
            return None

    def _other(self, prompt: Prompt, gold: str) -> str | None:
        """The gold completion of another prompt of the same task, if one of the first says something else."""
        if self.split not in self.run.tasks[prompt.task].splits:  # of a task that only a rule asks
            return None
        items = self.run.setup.splits(prompt.task, self.split)
        for number in range(min(LOOKED_AT, len(items))):
            try:
                other = self.of(replace(items[number], task=prompt.task))
            except PluginError:
                raise
            except UserError:  # its media are broken, of which the source of prompts tells where it is drawn
                continue
            if other not in (None, gold):
                return other
        return None
