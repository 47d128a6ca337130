"""The three models of SynthRL behind endpoints: one writes and judges questions, one answers them, one compares answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrl.api.endpoints.answers import Answer, NoAnswer
from mmrl.api.endpoints.client import ChatEndpoint, Question
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.types import user_message
from mmrl_judge.synth import rules, words

REWRITE_TOKENS, GRADE_TOKENS, SOLVE_TOKENS, COMPARE_TOKENS = 24_576, 1024, 2048, 128
"""Longest replies, as published."""


@dataclass(frozen=True, slots=True)
class Posed:
    """A question about pictures, with its answer."""

    question: str
    answer: str
    pictures: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """A model gave nothing that can be used."""

    why: str


@dataclass(kw_only=True)
class Models:
    """What the models say. A reply that fails or is cut off is `Failed`, with the reason."""

    writer: ChatEndpoint
    """Rewrites questions, and judges and compares with temperature 0."""
    solver: ChatEndpoint
    """Answers questions with temperature 1."""
    encoder: ChatEncoder

    def rewrite(self, posed: Sequence[Posed], attempt: int) -> list[str | Failed]:
        """The replies with a harder question. attempt: another one asks anew."""
        asked = [self._ask(words.REWRITES, words.REWRITE.replace("{question}", p.question), p.pictures) for p in posed]
        return self._said(self.writer, asked, REWRITE_TOKENS, 1.0, seeds=[attempt] * len(asked))

    def grade(self, pairs: Sequence[tuple[Posed, Posed]]) -> list[str | Failed]:
        """The replies that judge each (question, its rewriting)."""
        asked = [
            self._ask(words.GRADES, _filled(words.GRADE, original=old.question, rewritten=new.question), new.pictures)
            for old, new in pairs
        ]
        return self._said(self.writer, asked, GRADE_TOKENS, 0.0)

    def passes(self, posed: Sequence[Posed], rollouts: int) -> list[int | Failed]:
        """How many of `rollouts` answers to each question are right."""
        # the published code, too, has these words in the turn of the user
        asked = [self._ask("", f"{words.SOLVES}\n\n{p.question}", p.pictures) for p in posed for _ in range(rollouts)]
        said = self._said(self.solver, asked, SOLVE_TOKENS, 1.0, seeds=list(range(rollouts)) * len(posed))
        answers = [one if isinstance(one, Failed) else rules.final_answer(one) for one in said]
        compared: list[list[dict[str, Any]]] = [
            self._ask("", _filled(words.COMPARES, truth=posed[n // rollouts].answer, said=one), ())
            for n, one in enumerate(answers)
            if isinstance(one, str)
        ]
        verdicts = iter(self._said(self.writer, compared, COMPARE_TOKENS, 0.0))
        right: list[bool | Failed] = [
            one if isinstance(one, Failed) else False if one is None else _agrees(next(verdicts)) for one in answers
        ]
        return [_count(right[n * rollouts : (n + 1) * rollouts]) for n in range(len(posed))]

    def _ask(self, system: str, text: str, pictures: Sequence[Any]) -> list[dict[str, Any]]:
        messages = [{"role": "system", "content": system}] if system else []
        return self.encoder([*messages, user_message(text, *pictures)])[0]

    def _said(
        self,
        endpoint: ChatEndpoint,
        asked: Sequence[list[dict[str, Any]]],
        max_tokens: int,
        temperature: float,
        seeds: Sequence[int] = (),
    ) -> list[str | Failed]:
        numbers: Sequence[int | None] = seeds or [None] * len(asked)
        replies = endpoint.ask(
            [
                Question(messages=m, max_tokens=max_tokens, temperature=temperature, seed=seed)
                for m, seed in zip(asked, numbers, strict=True)
            ]
        )
        return [_text(reply, endpoint, max_tokens) for reply in replies]


def _text(reply: Answer | NoAnswer, endpoint: ChatEndpoint, max_tokens: int) -> str | Failed:
    if isinstance(reply, NoAnswer):
        return Failed(str(reply))
    if not reply.finished and max_tokens != SOLVE_TOKENS:
        return Failed(f"{endpoint.model} was cut off after {max_tokens} tokens")
    return reply.text  # a solver that doesn't end has answered, wrong as a rule


def _agrees(reply: str | Failed) -> bool | Failed:
    return reply if isinstance(reply, Failed) else rules.agrees(reply)


def _count(right: Sequence[bool | Failed]) -> int | Failed:
    """The number of right answers. One that failed is no wrong answer, so that there is no number then."""
    failed = next((one for one in right if isinstance(one, Failed)), None)
    return failed or sum(one is True for one in right)


def _filled(text: str, **fields: str) -> str:
    """The text with its fields. What is filled in is not searched for fields."""
    return re.sub(r"\{(\w+)\}", lambda match: fields[match[1]], text)
