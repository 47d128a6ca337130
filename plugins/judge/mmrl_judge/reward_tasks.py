"""Tasks that make a generative reward model: a policy learns to say which answers are right, from the pairs of another task."""

from __future__ import annotations

from dataclasses import dataclass

from mmrl import Prompt, Task, UserError
from mmrl.api.services import pairs_of
from mmrl.api.tasks.image_sources import chance
from mmrl.api.tasks.option_checks import LazyPrompts, check_split
from mmrl.api.types import Case
from mmrl.api.verifiers.parse import without_thinking
from mmrl_judge.on_task import OnTask
from mmrl_judge.wording import BETTER, NO, RIGHT, YES, ask_better, ask_right, check_question


@dataclass(kw_only=True, eq=False)
class Judging(OnTask):
    """Base class of tasks on the pairs of another task, such as `judge/pairs`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.of).pair is Task.pair:
            raise UserError(f"task = {self.task!r} has no pairs: name a task that has, such as judge/pairs")

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
    return float(without_thinking(case.completion).strip().removesuffix(".").casefold() == str(case.answer).casefold())
