"""Tasks that make a generative reward model: a policy learns to say which answers are right, from the pairs of another task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmrl import Prompt, Task, UserError
from mmrl.api.coordinates import ImageProcessing
from mmrl.api.services import pairs_of, task_of
from mmrl.api.tasks.image_sources import chance
from mmrl.api.tasks.option_checks import LazyPrompts, check_split, check_type
from mmrl.api.types import Case
from mmrl_judge.wording import BETTER, NO, RIGHT, YES, ask_better, ask_right, check_question


@dataclass(kw_only=True, eq=False)
class Judging(Task):
    """Base class of tasks on the pairs of another task."""

    task: str
    """Id of the task with the pairs, such as `judge/pairs`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that task."""

    def __post_init__(self) -> None:
        check_type("task", self.task, str)
        check_type("options", self.options, Mapping, '{path = "pairs.jsonl"}')
        self.of = task_of(self.task, self.options)
        if type(self.of).pair is Task.pair:
            raise UserError(f"task = {self.task!r} has no pairs: name a task that has, such as judge/pairs")
        self.splits = self.of.splits  # type: ignore[misc]  # the other task decides
        self.held_out = self.of.held_out  # type: ignore[misc]

    @property  # type: ignore[override]
    def image_processing(self) -> ImageProcessing:
        """How the policy sees images, which the other task needs to know."""
        return self.of.image_processing

    @image_processing.setter
    def image_processing(self, value: ImageProcessing) -> None:
        self.of.image_processing = value

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        """Two prompts for each pair, one after the other."""
        items = pairs_of(self.of, check_split(split, self.splits), seed)
        return LazyPrompts(range(2 * len(items)), lambda number: self.posed(*items[number // 2], number % 2, seed))

    def posed(self, prompt: Prompt, preferred: str, rejected: str, turn: int, seed: int) -> Prompt:
        """One of the two prompts of a pair."""
        raise NotImplementedError(f"{type(self).__name__} must define posed()")

    def pair(self, prompt: Prompt) -> tuple[str, str]:
        """The right verdict and the wrong one."""
        return str(prompt.answer), str(prompt.meta["wrong"])


@dataclass(kw_only=True, eq=False)
class Right(Judging):
    """Whether an answer is right, yes or no: once for the preferred answer of a pair, once for the rejected one.

    The probability of yes is the reward of `judge/right` (RewardDance, arXiv 2509.08826, section 3.1, without its reasoning)."""

    question: str = RIGHT
    """What is asked after the answer. The verifier `judge/right` needs the same."""

    def __post_init__(self) -> None:
        check_question(self.question)
        super().__post_init__()

    def posed(self, prompt: Prompt, preferred: str, rejected: str, turn: int, seed: int) -> Prompt:
        answer, wrong = (NO, YES) if turn else (YES, NO)
        messages = ask_right(prompt.messages, rejected if turn else preferred, self.question)
        return Prompt(id=f"{prompt.id}-{answer}", messages=messages, answer=answer, meta={"wrong": wrong, "choices": [YES, NO]})


@dataclass(kw_only=True, eq=False)
class Better(Judging):
    """Which of two answers is better, 1 or 2, in both orders. The pairwise form of a reward model; `judge/better` is its use."""

    question: str = BETTER
    """What follows the prompt's text, with {first} and {second}. The verifier `judge/better` needs the same."""

    def __post_init__(self) -> None:
        check_question(self.question, "first", "second")
        super().__post_init__()

    def posed(self, prompt: Prompt, preferred: str, rejected: str, turn: int, seed: int) -> Prompt:
        first = bool(turn) != (chance(0, "order", prompt.id).random() < 0.5)  # neither order always comes first
        messages = ask_better(prompt.messages, *((preferred, rejected) if first else (rejected, preferred)), self.question)
        answer, wrong = ("1", "2") if first else ("2", "1")
        return Prompt(id=f"{prompt.id}-{answer}", messages=messages, answer=answer, meta={"wrong": wrong, "choices": ["1", "2"]})


def verdict(case: Case) -> float:
    """1 if the completion is the right verdict, but for case, outer blanks and a full stop; else 0."""
    return float(case.completion.strip().removesuffix(".").casefold() == str(case.answer).casefold())
