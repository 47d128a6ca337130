"""A reward for reasoning by three dimensions, without a right answer: confidence, relevance and coherence.

Wang et al. 2025, "From <Answer> to <Think>: Multidimensional Supervision of Reasoning Process for LLM Optimization" (DRM), arXiv
2510.11457. Its code is not published. The three are verifiers of their own, so that `gdpo` standardises each in its group and
adds them by their weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mmrl.api.services import check_pair_classifier, check_vision_language, pair_classifier, token_decoder
from mmrl.api.types import Case, Score, Turn
from mmrl.api.verifiers.parse import last_tag
from mmrl_judge.asking import question_of
from mmrl_judge.reward_models import check_scale, share_of

LOWEST = -20.0
"""The lowest confidence; also that of an answer without a reasoning, which has none of the three dimensions."""
NO_REASONING = "no reasoning before the answer"
Span = tuple[int, int]
"""[start, end) in characters or tokens."""


class Parts(NamedTuple):
    """Where a completion reasons and where it answers, in characters."""

    reasoning: Span
    answer: Span


def parts_of(completion: str) -> Parts | None:
    """The reasoning is what stands before </think>, or else before the answer tag; the answer is the last answer tag's content,
    or else what follows. None if either is missing or blank."""
    mark = next((mark for mark in ("</think>", "<answer>") if mark in completion), None)
    if mark is None:
        return None
    end = completion.find(mark)
    start = completion.rfind("<think>", 0, end)
    said = last_tag(completion[end:])
    at = end + len(mark) if said is None else completion.rfind(f"<answer>{said}</answer>") + len("<answer>")
    found = Parts((0 if start < 0 else start + len("<think>"), end), (at, len(completion) if said is None else at + len(said)))
    return found if all(completion[first:last].strip() for first, last in found) else None


def tokens_of(span: Span, text: str, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Span:
    """The tokens of a span of characters. text: that of all ids."""

    def written(count: int) -> int:
        """Characters that the first tokens write; a part of a character, which is decoded as another one, is none."""
        begun = decode(ids[:count])
        wrong = (n for n, (a, b) in enumerate(zip(begun, text, strict=False)) if a != b)
        return next(wrong, min(len(begun), len(text)))

    first, last = (_smallest(len(ids), lambda count, end=end: written(count) >= end) for end in span)  # type: ignore[misc]
    return max(0, first - (written(first) > span[0])), last


def _smallest(most: int, holds: Callable[[int], bool]) -> int:
    """The smallest number up to `most` for which it holds, by bisection."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


class Confidence:
    """The mean log-probability of the reasoning's tokens plus the sum of those of the answer's, from `LOWEST` to 0: how sure the
    policy was, at the temperature of sampling (DRM, section on confidence).

    What was not sampled, such as a gold completion, has 0. An answer without a reasoning has the lowest value. Known exploits: a
    policy that always writes the same is sure of it; combine it with the other dimensions, or with the right answer.
    """

    def __init__(self, model: str) -> None:
        """model: the run's `policy.model`, whose tokenizer says where the answer begins; no weights are read."""
        self.decode = token_decoder(model)

    @staticmethod
    def check(cameras: Mapping[str, Sequence[str]], *, model: str) -> None:
        """Raise UserError for a model that can't work; nothing is loaded."""
        check_vision_language(model)

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        return [self._score(case) for case in cases]

    def _score(self, case: Case) -> Score:
        turn = _last_turn(case)
        if turn is None or len(turn.logprobs) != len(turn.token_ids):
            return Score(None, {}, "the case has no log-probabilities: they come with completions that a run samples")
        if any(math.isnan(p) for p in turn.logprobs):
            return Score(0.0, {}, "not sampled")
        opening = turn.text.removesuffix(self.decode(turn.token_ids))  # what the chat template wrote of the answer
        if opening and not opening.startswith("<think>"):
            return Score(None, {}, "its tokens are another model's: set the option model to the run's policy.model")
        if (parts := parts_of(turn.text)) is None:
            return Score(LOWEST, {}, NO_REASONING)
        thought, said = (
            turn.logprobs[slice(*tokens_of(span, turn.text, turn.token_ids, lambda ids: opening + self.decode(ids)))]
            for span in parts
        )
        found = {"reasoning": math.fsum(thought) / len(thought), "answer": math.fsum(said)}
        return Score(min(0.0, max(LOWEST, sum(found.values()))), found, "mean of the reasoning, sum of the answer")


class Relevance:
    """Whether question and documents support the reasoning, and the reasoning the answer: the mean of 0..1 of each, by a model of
    pairs of texts (DRM, section on relevance). Documents are texts in `meta["documents"]`, if a prompt has any; their mean counts
    once.

    The model reads (question, reasoning), (document, reasoning) and (reasoning, answer); it sees no picture. Known exploits:
    repeating the question and the answer is relevant.
    """

    def __init__(self, model: str, device: str = "auto", batch_size: int = 32) -> None:
        """model: a folder or hub name of a sequence classification model, of entailment (the probability of the class
        `entailment`) or a reranker (the sigmoid of its only output). batch_size: pairs at once."""
        self.model = pair_classifier(model, device=device, batch_size=batch_size)

    @staticmethod
    def check(cameras: Mapping[str, Sequence[str]], *, model: str, device: str = "auto", batch_size: int = 32) -> None:
        """Raise UserError for options that can't work; nothing is loaded."""
        check_pair_classifier(model, device=device, batch_size=batch_size)

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        asked = [self._pairs(case) for case in cases]
        found = iter(self.model.agreement([pair for _, pair in (one for own in asked for one in own)]))
        return [_mean([(name, next(found)) for name, _ in own]) for own in asked]

    @staticmethod
    def _pairs(case: Case) -> list[tuple[str, tuple[str, str]]]:
        """(name, pair) for each; none without a reasoning."""
        if (parts := parts_of(case.completion)) is None:
            return []
        reasoning, answer = (case.completion[slice(*span)].strip() for span in parts)
        documents = [("documents", (document, reasoning)) for document in documents_of(case)]
        return [("question", (asked_of(case), reasoning)), *documents, ("answer", (reasoning, answer))]


class Coherence:
    """How well the reasoning is written, by a reward model of texts: sigmoid((rating - center) / scale) of the reasoning as an
    answer to the question and its documents (DRM, section on coherence). 0 without a reasoning.

    The model sees neither a picture nor the answer. Known exploits: those of the reward model.
    """

    def __init__(self, model: str, device: str = "auto", batch_size: int = 32, center: float = 0.0, scale: float = 1.0) -> None:
        """model: a folder or hub name of a sequence classification model with one output, which reads a question and an answer.
        batch_size: at once. center: the rating that is worth 0.5. scale: larger values flatten the reward."""
        check_scale(center, scale)
        self.model, self.center, self.scale = pair_classifier(model, device=device, batch_size=batch_size), center, scale

    @staticmethod
    def check(
        cameras: Mapping[str, Sequence[str]],
        *,
        model: str,
        device: str = "auto",
        batch_size: int = 32,
        center: float = 0.0,
        scale: float = 1.0,
    ) -> None:
        """Raise UserError for options that can't work; nothing is loaded."""
        check_scale(center, scale)
        check_pair_classifier(model, device=device, batch_size=batch_size)

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        asked = [(case, parts) for case in cases if (parts := parts_of(case.completion)) is not None]
        answered = [
            ("\n\n".join([asked_of(case), *documents_of(case)]), case.completion[slice(*parts.reasoning)].strip())
            for case, parts in asked
        ]
        found = iter(self.model.ratings(answered))
        return [
            Score(0.0, {}, NO_REASONING)
            if parts_of(case.completion) is None
            else Score(share_of(rating := next(found), self.center, self.scale), {"rating": rating}, f"rated {rating:.4g}")
            for case in cases
        ]


def _mean(found: Sequence[tuple[str, float]]) -> Score:
    """The mean of the means of each name."""
    if not found:
        return Score(0.0, {}, NO_REASONING)
    parts = {name: [v for n, v in found if n == name] for name, _ in found}
    means = {name: sum(values) / len(values) for name, values in parts.items()}
    return Score(sum(means.values()) / len(means), means, ", ".join(f"{name} {v:.2f}" for name, v in means.items()))


def _last_turn(case: Case) -> Turn | None:
    turns = getattr(case.rollout, "turns", ())
    return next((turn for turn in reversed(turns) if turn.token_ids), None)


def asked_of(case: Case) -> str:
    """The question as its table has it, `meta["question"]`, or else all that the policy was asked."""
    return str(case.meta["question"]) if "question" in case.meta else question_of(case)


def documents_of(case: Case) -> list[str]:
    """The texts that belong to the question."""
    documents = case.meta.get("documents") or ()
    return [documents] if isinstance(documents, str) else [str(document) for document in documents]
