"""The held-out prompts that an evaluation asks, without those that can't be used."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from mmrl.api.errors import PluginError, UserError
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt
from mmrl.compute import ranks
from mmrl.config.sections import EvaluateConfig, TaskConfig
from mmrl.data.prompts import Indexable, Splits, max_broken, prompt_at


class EvaluationPrompt(NamedTuple):
    """A prompt of an evaluation."""

    posed: Prompt
    """As its task poses it."""
    shown: Prompt
    """As it is answered."""
    read: Any
    """As the policy reads that."""
    mine: bool = True
    """This rank answers it; else another reads it."""


class HeldOutPrompts:
    """`evaluate.num_prompts` prompts of each task: the same for every seed and run, and spread over the split, as data are
    often sorted.

    splits: the tasks' prompts. encode: prompts as the policy reads them.
    """

    def __init__(self, evaluate: EvaluateConfig, splits: Splits, encode: Callable[[Sequence[Prompt]], Sequence[Any]]) -> None:
        self.evaluate, self.splits, self.encode = evaluate, splits, encode
        self.left_out: dict[str, dict[int, str]] = {}
        """Label -> the number of each prompt that can't be used -> its name and why."""

    def prompts(self, entry: TaskConfig) -> list[Prompt]:
        """All of a task that were not left out so far, as it poses them."""
        return [self._posed(entry, i) for i in self._chosen(entry) if i not in self._gone(entry)]

    def batches(
        self, entry: TaskConfig, at_once: int, shown: Callable[[Prompt], Prompt], strict: bool
    ) -> Iterator[list[EvaluationPrompt]]:
        """A task's prompts, so many at once. shown: how one is answered.

        One that the task can't pose or the policy can't read, such as a broken clip, is left out, from then on. strict: there
        is none any more, as all were asked before. Raises UserError where one is, or where they are more than a tenth.
        """
        chosen = self._chosen(entry)
        for start in range(0, len(chosen), at_once):
            numbers = [i for i in chosen[start : start + at_once] if i not in self._gone(entry)]
            if numbers and (found := self._batch(entry, numbers, shown, strict)):
                yield found

    def _batch(
        self, entry: TaskConfig, numbers: Sequence[int], shown: Callable[[Prompt], Prompt], strict: bool
    ) -> list[EvaluationPrompt]:
        own = {k: number for k, number in enumerate(numbers) if ranks.owns(k)}

        def read() -> dict[int, EvaluationPrompt | str | None]:
            return dict(zip(own, self._asked(entry, list(own.values()), shown, strict), strict=True))

        found: list[EvaluationPrompt | str | None] = ranks.gather_sharded(read, lambda one: one if isinstance(one, str) else None)
        kept: list[EvaluationPrompt] = []
        for number, one in zip(numbers, found, strict=True):
            if isinstance(one, str):
                self._leave_out(entry, number, one)
            elif one is not None:
                kept.append(one)
            else:
                posed = self._posed(entry, number)
                kept.append(EvaluationPrompt(posed, shown(posed), None, mine=False))
        return kept

    def _asked(
        self, entry: TaskConfig, numbers: Sequence[int], shown: Callable[[Prompt], Prompt], strict: bool
    ) -> list[EvaluationPrompt | str]:
        """These prompts, or why one can't be used."""

        def asked(some: Sequence[int]) -> list[EvaluationPrompt]:
            posed = [self._posed(entry, i) for i in some]
            seen = [shown(prompt) for prompt in posed]
            return [EvaluationPrompt(*one) for one in zip(posed, seen, self.encode(seen), strict=True)]

        try:
            return [*asked(numbers)]
        except PluginError:
            raise
        except UserError:
            if strict:
                raise
        found: list[EvaluationPrompt | str] = []  # one by one, so that it is known which it is
        for number in numbers:
            try:
                found += asked([number])
            except PluginError:
                raise
            except UserError as error:
                found.append(str(error))
        return found

    def _leave_out(self, entry: TaskConfig, number: int, why: str) -> None:
        gone, there = self._gone(entry), len(self._chosen(entry))
        gone[number] = f"item {number}: {why}"
        if len(gone) > max_broken(there, there):
            raise UserError(
                f"evaluation of {entry.label!r}: {len(gone)} of {there} prompts of split {self.evaluate.split!r} can't be "
                f"used: mend or remove them; the last: {why}"
            )

    def _gone(self, entry: TaskConfig) -> dict[int, str]:
        return self.left_out.setdefault(entry.label, {})

    def _posed(self, entry: TaskConfig, number: int) -> Prompt:
        return prompt_at(self._items(entry), number, entry.label, template=entry.prompt_template)

    def _chosen(self, entry: TaskConfig) -> list[int]:
        there = len(self._items(entry))
        n = min(self.evaluate.num_prompts, there)
        return sorted(random.Random(derive(0, "evaluate", entry.id, self.evaluate.split)).sample(range(there), n))

    def _items(self, entry: TaskConfig) -> Indexable:
        return self.splits(entry.label, self.evaluate.split)
