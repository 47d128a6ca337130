"""Verifiers that ask a reward model in this process: one that says yes or no, one that compares, one that rates with a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.api.errors import UserError, is_finite
from mmrl.api.services import check_reward_model, check_vision_language, reward_model, vision_language
from mmrl.api.types import Case, Message, Score
from mmrl_judge.asking import reference_of
from mmrl_judge.wording import BETTER, NO, RIGHT, YES, ask_better, ask_right, check_question


class LocalModel:
    """A vision-language model that answers with one of two words. model: a folder, such as the `policy` of a checkpoint that was
    trained on `judge/right` or `judge/better`, or a hub name."""

    question: str
    """What the model is asked, if the option doesn't say it."""

    def __init__(
        self, model: str, device: str = "auto", batch_size: int = 16, max_pixels: int | None = None, question: str | None = None
    ) -> None:
        """batch_size: questions at once. max_pixels: larger pictures are shrunk to this number of pixels. question: as in the
        training of the model."""
        self.question = self.question if question is None else question
        check_question(self.question, *self.fields)
        self.model = vision_language(model, device=device, batch_size=batch_size, max_pixels=max_pixels)

    fields: tuple[str, ...]
    """What the question must contain."""

    @classmethod
    def check(cls, cameras: Mapping[str, Sequence[str]], **options: Any) -> None:
        """Raise UserError for options that can't work; nothing is loaded."""
        if (question := options.get("question")) is not None:
            check_question(question, *cls.fields)
        check_vision_language(options.get("model", ""), **{k: options[k] for k in ("device", "batch_size") if k in options})

    def shares(self, questions: Sequence[Sequence[Message]], words: tuple[str, str]) -> list[float]:
        """The probability of the first word, of both, for each question."""
        found: list[float] = self.model.answer_probabilities(questions, words)[:, 0].tolist() if questions else []
        return found


class Right(LocalModel):
    """The probability that the model says yes to "Is the proposed answer right?", against no."""

    question, fields = RIGHT, ()

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        questions = [ask_right(messages_of(case), case.completion, self.question) for case in cases]
        return [Score(value, {}, f"yes with probability {value:.3f}") for value in self.shares(questions, (YES, NO))]


class Better(LocalModel):
    """The probability that the model prefers the answer to the reference, the mean of both orders. The reference is
    `meta["reference"]`, or the prompt's answer."""

    question, fields = BETTER, ("first", "second")

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        sides = [(messages_of(case), case.completion, reference_of(case)) for case in cases]
        ahead = self.shares([ask_better(m, own, other, self.question) for m, own, other in sides], ("1", "2"))
        behind = self.shares([ask_better(m, other, own, self.question) for m, own, other in sides], ("1", "2"))
        return [
            Score((one + 1 - two) / 2, {}, f"{one:.3f} as the first, {1 - two:.3f} as the second")
            for one, two in zip(ahead, behind, strict=True)
        ]


class Rating:
    """The rating of a reward model with a scalar head, brought to 0..1: sigmoid((rating - center) / scale)."""

    def __init__(
        self, model: str, device: str = "auto", center: float = 0.0, scale: float = 1.0, max_pixels: int | None = None
    ) -> None:
        """model: the `policy` folder of a checkpoint of `policy.kind = "reward"`. center: the rating that is worth 0.5; ratings
        have no zero of their own. scale: larger values flatten the reward. max_pixels: larger pictures are shrunk."""
        check_scale(center, scale)
        self.model, self.center, self.scale = reward_model(model, device=device, max_pixels=max_pixels), center, scale

    @staticmethod
    def check(cameras: Mapping[str, Sequence[str]], **options: Any) -> None:
        """Raise UserError for options that can't work; nothing is loaded."""
        check_reward_model(options.get("model", ""), device=options.get("device", "auto"))

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        ratings = self.model.rate([(messages_of(case), case.completion) for case in cases])
        return [Score(share_of(r, self.center, self.scale), {"rating": r}, f"rated {r:.4g}") for r in ratings]


def check_scale(center: float, scale: float) -> None:
    """Raise UserError for numbers that `share_of` can't use."""
    if not is_finite(center) or not is_finite(scale) or scale <= 0:
        raise UserError(f"center = {center!r:.40} must be a number, and scale = {scale!r:.40} one above 0")


def share_of(rating: float, center: float, scale: float) -> float:
    """sigmoid((rating - center) / scale)."""
    x = (rating - center) / scale
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def messages_of(case: Case) -> list[Message]:
    """The conversation that the completion answers. Raises ValueError for a case without an episode."""
    if case.rollout is None:
        raise ValueError("the case has no episode, so it isn't known what was asked")
    return list(case.rollout.messages)
