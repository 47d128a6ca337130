"""Which of two pictures is nearer to a goal, by a model behind an endpoint."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmrl.api.endpoints.answers import Answer, NoAnswer
from mmrl.api.endpoints.client import ChatEndpoint, Question
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.errors import UserError
from mmrl_judge.asking import Unreadable
from mmrl_judge.pairwise import preferred

PROMPT = """You see two pictures of an episode, picture 1 and then picture 2. The goal is: {goal}

First say what each picture shows. Then say whether one of them is nearer to the goal. End with one line
Better: N
where N is 1, 2, or same where neither is nearer or you can't tell."""
DESCRIBE = """The goal is: {goal}

Say what picture 1 shows, then what picture 2 shows, and then how they differ as to this goal."""
SUMMARISE = """Somebody described two pictures of an episode, of which the goal is: {goal}

{description}

By this description, which of them is nearer to the goal? The first line of your answer is one number and nothing else: 0 for
picture 1, 1 for picture 2, -1 where neither is nearer or the description isn't sure."""
BY_VALUE = {1.0: 0, 0.0: 1, 0.5: -1}


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What was said about P pairs."""

    labels: list[int]
    """0: the first is preferred; 1: the second; -1: neither, or there is no answer that can be read."""
    failed: int
    """Answers that are missing or can't be read."""


def compare(
    endpoint: ChatEndpoint | None,
    encoder: ChatEncoder,
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    goals: Sequence[str],
    max_tokens: int,
    questions: int = 1,
) -> Verdicts:
    """pairs: uint8 [H, W, 3] twice each. endpoint: None in a smoke run, where labels are made of the bytes. questions: 1, or 2 to
    have the pictures described first and then the description judged, without the pictures. Raises UserError if no answer came
    at all."""
    if endpoint is None:
        sums = [[zlib.crc32(side.numpy().tobytes()) for side in pair] for pair in pairs]
        return Verdicts([int(first < second) for first, second in sums], 0)
    first = PROMPT if questions == 1 else DESCRIBE
    asked = [_of_pictures(encoder, pair, first.format(goal=goal)) for pair, goal in zip(pairs, goals, strict=True)]
    answers = endpoint.ask([Question(messages=own, max_tokens=max_tokens) for own in asked])
    if questions == 2:
        answers = _summaries(endpoint, answers, goals, max_tokens)
    labels, failures = [], []
    for answer in answers:
        label = -1
        if isinstance(answer, NoAnswer):
            failures.append(str(answer))
        else:
            try:
                label = label_of(answer.text) if questions == 2 else BY_VALUE[preferred(answer.text)]
            except Unreadable as error:
                failures.append(f"the judge's answer can't be read: {error}")
        labels.append(label)
    if pairs and len(failures) == len(pairs):
        raise UserError(f"none of {len(pairs)} comparisons has an answer: {failures[0]}")
    return Verdicts(labels, len(failures))


def label_of(text: str) -> int:
    """0, 1 or -1 of a summary's first line, as in RL-VLM-F's code (yufeiwang63/RL-VLM-F @febe2f2: `gemini_query_2`, and
    `RewardModel.get_label` for `gemini_free_form`). Raises Unreadable where that code takes -1."""
    line = text.split("\n")[0].strip()
    try:
        if (label := int(line)) in (0, 1, -1):
            return label
    except ValueError:
        pass
    raise Unreadable(f"its first line is {line[:80]!r} and not 0, 1 or -1")


def _of_pictures(encoder: ChatEncoder, pair: tuple[torch.Tensor, torch.Tensor], text: str) -> Sequence[Mapping[str, Any]]:
    from PIL import Image

    shown = [{"type": "image", "image": Image.fromarray(side.numpy())} for side in pair]
    return encoder([{"role": "user", "content": [*shown, {"type": "text", "text": text}]}])[0]


def _summaries(
    endpoint: ChatEndpoint, descriptions: Sequence[Answer | NoAnswer], goals: Sequence[str], max_tokens: int
) -> list[Answer | NoAnswer]:
    """What each description comes to; a pair without one isn't asked about again."""
    texts = [
        SUMMARISE.format(goal=goal, description=answer.text)
        for answer, goal in zip(descriptions, goals, strict=True)
        if isinstance(answer, Answer)
    ]
    messages = [[{"role": "user", "content": text}] for text in texts]
    left = iter(endpoint.ask([Question(messages=own, max_tokens=max_tokens) for own in messages]))
    return [next(left) if isinstance(answer, Answer) else answer for answer in descriptions]
