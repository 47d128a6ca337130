"""The task `judge/recycled`: is an answer right, which of two is. It rewards what `judge/recycle` makes, and measures the
judge."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from mmrl import Prompt, UserError, user_message
from mmrl.api.tasks.image_sources import chance
from mmrl.api.tasks.option_checks import LazyPrompts, check_split
from mmrl.api.types import Case
from mmrl_judge.on_task import OnTask
from mmrl_judge.spark.recycling import Answered, judgements

BOX = "\\boxed{"
TRIES = 16
"""Other prompts that are looked at for a wrong answer."""


@dataclass(kw_only=True, eq=False)
class RecycledJudging(OnTask):
    """Judgements about the answers of another task, such as `vqa/table`: its own is right, that of another prompt is wrong."""

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        """One prompt for each of the other task."""
        found = self.of.prompts(check_split(split, self.splits), seed)
        items: Any = found if hasattr(found, "__getitem__") and hasattr(found, "__len__") else list(found)
        if len(items) < 2:
            raise UserError(f"task = {self.task!r} has {len(items)} prompts in {split!r}: two are needed for a wrong answer")
        return LazyPrompts(range(len(items)), lambda number: self._judged(items, number))

    def gold(self, prompt: Prompt) -> str:
        return f"{BOX}{prompt.answer}}}"

    def _judged(self, items: Any, number: int) -> Prompt:
        prompt = items[number]
        draw = chance(0, "recycled", prompt.id)
        own = self._answer(prompt)
        wrong = next((other for _ in range(TRIES) if (other := self._other(items, number, draw)) != own), None)
        if wrong is None:
            raise UserError(f"{TRIES} other prompts have the same answer {own!r:.40}: no wrong one was found")
        pair = [own, wrong]
        (made,) = judgements([Answered(question=prompt.text, completions=pair, answers=pair, right=[True, False])], draw)
        messages = [user_message(made.text, *prompt.images, *prompt.videos)]
        return Prompt(
            id=f"{prompt.id}-{made.kind}", messages=messages, answer=made.verdict, meta={"kind": made.kind, "wrong": made.wrong}
        )

    def _other(self, items: Any, number: int, draw: random.Random) -> str:
        """The answer of another prompt."""
        place = draw.randrange(len(items) - 1)
        return self._answer(items[place + (place >= number)])

    def _answer(self, prompt: Prompt) -> str:
        return self.of.extract_answer(self.of.gold(prompt))


def boxed(case: Case) -> float:
    """1 if the last box of the completion holds the right verdict, but for case and blanks; else 0."""
    _, found, rest = case.completion.rpartition(BOX)
    inside, closed, _ = rest.partition("}")
    return float(bool(found) and bool(closed) and inside.strip().casefold() == str(case.answer).casefold())
