"""The pairs of a task, as a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmrl.api.interfaces import Task
from mmrl.api.types import Prompt
from mmrl.data.prompts import load_prompts, pair_of, prompt_at


class LazyPairs(Sequence[tuple[Prompt, str, str]]):
    """(prompt, preferred completion, rejected completion) of each prompt of a split, made on access."""

    def __init__(self, task: Task, split: str, seed: int) -> None:
        """Raises UserError if the task has no such split, or it is empty."""
        self.task, self.label = task, type(task).__name__
        self.items = load_prompts(self.label, task, split, seed)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        """Raises UserError for a prompt without a pair."""
        prompt = prompt_at(self.items, range(len(self))[index], self.label)
        return prompt, *pair_of(self.task, prompt)
