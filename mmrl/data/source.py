"""A weighted mixture of tasks, each walked in a shuffled order that is drawn anew every epoch."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from mmrl.data.seeds import derive
from mmrl.errors import UserError
from mmrl.interfaces import Task
from mmrl.targets import PluginError, calling
from mmrl.types import Prompt, replace


@runtime_checkable
class Indexable(Protocol):
    """All that is asked of a lazy sequence of prompts."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Prompt: ...


def prompts_of(task_id: str, task: Task, split: str, seed: int) -> Indexable:
    """A task's split, indexable. Raises UserError when the split doesn't exist or is empty."""
    if split not in task.splits:
        raise UserError(f"task {task_id!r} has no split {split!r}: choose one of {', '.join(task.splits)}")
    with calling(f"task {task_id!r}: prompts({split!r}, {seed})"):
        found = task.prompts(split, seed)
        items = found if isinstance(found, Indexable) and not isinstance(found, str | Mapping) else list(found)
    if not len(items):
        raise UserError(f"task {task_id!r} has no prompts in split {split!r}: check its options and data")
    return items


def prompt_at(items: Indexable, index: int, task_id: str) -> Prompt:
    """A task's prompt. Raises PluginError when that is none, and UserError when the task opens its pictures itself and can't."""
    with calling(f"task {task_id!r}: item {index} of its prompts"):
        prompt = items[index]
    if not isinstance(prompt, Prompt):
        raise PluginError(f"task {task_id!r}: prompts() must give mmrl.Prompt, item {index} is a {type(prompt).__name__}")
    return replace(prompt, task=task_id)


def gold_of(task: Task, prompt: Prompt) -> str:
    """The task's completion that deserves the most. Raises PluginError when it is no text."""
    where = f"task {prompt.task!r}: gold() of prompt {prompt.id!r}"
    with calling(where):
        gold = task.gold(prompt)
    if not isinstance(gold, str) or (gold.encode(errors="replace").decode() != gold):
        raise PluginError(f"{where} must be text that can be written as UTF-8, not {gold!r:.60}")
    return gold


class Source:
    """Prompts of several tasks in the proportion of their weights.

    Which task comes next and in which order a task's items come is a function of the seed and of how many were taken, so a
    resumed run goes on with the very prompts it would have had.
    """

    def __init__(self, prompts: Mapping[str, Indexable], weights: Mapping[str, float], seed: int) -> None:
        """prompts: task id -> its items. weights: task id -> share, relative to the others."""
        self.prompts = dict(prompts)
        self.weights = [weights[t] for t in self.prompts]
        self.seed = seed
        self.taken = {t: 0 for t in self.prompts}
        self._orders: dict[str, tuple[int, list[int]]] = {}

    def __len__(self) -> int:
        """How many different prompts there are."""
        return sum(len(items) for items in self.prompts.values())

    def take(self, n: int) -> list[Prompt]:
        """The next n prompts."""
        return [self[self.draw()] for _ in range(n)]

    def draw(self) -> tuple[str, int]:
        """The task and the index of the next prompt."""
        return self._next(self._task(sum(self.taken.values())))

    def __getitem__(self, place: tuple[str, int]) -> Prompt:
        """May raise UserError, when the task opens its pictures itself."""
        task, index = place
        return prompt_at(self.prompts[task], index, task)

    def state(self) -> dict[str, Any]:
        """What `restore` needs: how many prompts of each task were taken."""
        return dict(self.taken)

    def restore(self, state: Mapping[str, int]) -> None:
        self.taken = {t: int(state[t]) for t in self.prompts}

    def _task(self, count: int) -> str:
        return random.Random(derive(self.seed, "mixture", count)).choices(list(self.prompts), self.weights)[0]

    def _next(self, task: str) -> tuple[str, int]:
        items = self.prompts[task]
        epoch, index = divmod(self.taken[task], len(items))
        self.taken[task] += 1
        if self._orders.get(task, (-1, []))[0] != epoch:
            order = list(range(len(items)))
            random.Random(derive(self.seed, "order", task, epoch)).shuffle(order)
            self._orders[task] = (epoch, order)
        return task, self._orders[task][1][index]
