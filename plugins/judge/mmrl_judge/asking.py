"""The common part of the verifiers: a case becomes questions to the endpoint, and its answers become a score.

What the policy wrote may try to instruct the judge. It stands between two lines that it can't contain, and only the
last lines of the judge's own answer are read. An answer that can't be read is a failure, and never a score of zero.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl.api.endpoints.answers import Answer, NoAnswer
from mmrl.api.endpoints.client import Question
from mmrl.api.endpoints.judges import judge_endpoint
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.endpoints.options import AnswerOptions, Count
from mmrl.api.errors import UserError
from mmrl.api.types import Case, Score

FIELD = re.compile(r"\{(question|reference|answer|criteria|first|second)\}")


class Unreadable(Exception):
    """The judge's answer doesn't have the form that was asked for. The message is one line."""


@dataclass(kw_only=True)
class AskingOptions(AnswerOptions):
    prompt: str | None = None
    """Text with the fields `{question}`, `{reference}`, `{answer}`; of a rubric `{criteria}`, of a comparison `{first}` and
    `{second}`. Unset: the verifier's own."""
    images: bool = True
    """Show the question's images to the judge."""
    max_pixels: Count | None = None
    """Size to which larger images are shrunk. Unset: no limit."""


class AskingVerifier:
    """Asks an endpoint about several cases at once. A subclass gives the prompt, its own fields, and reads the answers."""

    options_class: ClassVar[type[AskingOptions]] = AskingOptions
    prompt: str
    """The instruction. {question}, {reference} and the subclass's own fields are replaced."""

    def __init__(self, **options: Any) -> None:
        """options: see `AskingOptions`. Raises UserError for options that can't work."""
        own = self.options_class(**options)
        self.images, self.encoder = own.images, ChatEncoder(max_pixels=own.max_pixels)
        self.max_tokens, self.temperature = own.max_tokens, own.temperature
        self.prompt = self.prompt if own.prompt is None else own.prompt
        self.endpoint = judge_endpoint(own)

    @classmethod
    def check(cls, cameras: Mapping[str, Sequence[str]], **options: Any) -> None:
        """Raise UserError for options that can't work; nothing is asked."""
        cls(**options)

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        if self.endpoint is None:
            return [
                Score(zlib.crc32(case.completion.encode()) % 11 / 10, {}, "no endpoint is asked in a smoke run") for case in cases
            ]
        asked: list[list[Question] | str] = [self._questions(case) for case in cases]
        answers = iter(self.endpoint.ask([q for own in asked if not isinstance(own, str) for q in own]))
        return [
            Score(None, {}, own) if isinstance(own, str) else self._score(case, [next(answers) for _ in own])
            for case, own in zip(cases, asked, strict=True)
        ]

    def _score(self, case: Case, answers: Sequence[Answer | NoAnswer]) -> Score:
        read: list[str] = []
        for answer in answers:
            if isinstance(answer, NoAnswer):
                return Score(None, {}, str(answer))
            if not answer.finished:
                return Score(None, {}, f"the judge's answer was cut off after {self.max_tokens} tokens: raise max_tokens")
            read.append(answer.text)
        try:
            return self.read(case, read)
        except Unreadable as error:
            return Score(None, {}, f"the judge's answer can't be read: {error}")

    def _questions(self, case: Case) -> list[Question] | str:
        """The questions about a case; the reason if it can't be asked about."""
        try:
            texts = [self.fill(case, fields) for fields in self.fields(case)]
        except UserError as error:
            return str(error)
        shown = shown_parts(case) if self.images else []
        try:
            both = [self.encoder([{"role": "user", "content": [*shown, {"type": "text", "text": text}]}]) for text in texts]
        except UserError as error:
            return str(error)
        return [Question(messages=m, max_tokens=self.max_tokens, temperature=self.temperature) for m, _ in both]

    def fill(self, case: Case, fields: Mapping[str, str]) -> str:
        """The prompt with its fields. Texts that are filled in are not searched for fields."""
        known = {"question": question_of(case), "reference": reference_of(case), **fields}
        return FIELD.sub(lambda match: known.get(match[1], match[0]), self.prompt)

    def fields(self, case: Case) -> list[dict[str, str]]:
        """The subclass's own fields, once for each question about a case."""
        raise NotImplementedError

    def read(self, case: Case, answers: Sequence[str]) -> Score:
        """The score by the answers to the questions about a case. Raises Unreadable."""
        raise NotImplementedError


def shown_parts(case: Case) -> list[Mapping[str, Any]]:
    """The images, videos and sounds of the prompt, as parts of a message; those of the case if it has no episode."""
    if case.rollout is None:
        return [{"type": "image", "image": image} for image in case.media]
    contents = [m["content"] for m in case.rollout.prompt.messages if not isinstance(m["content"], str)]
    return [part for content in contents for part in content if part["type"] in ("image", "video", "audio")]


def question_of(case: Case) -> str:
    """The text that the policy was asked: of the episode, or `meta["question"]` for a case without one."""
    return case.rollout.prompt.text if case.rollout is not None else str(case.meta.get("question", ""))


def reference_of(case: Case) -> str:
    """The reference answer as text: `meta["reference"]`, or the prompt's answer."""
    reference = case.meta.get("reference", case.answer)
    return "(none)" if reference is None else str(reference)
