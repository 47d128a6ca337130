"""Which of two pictures is nearer to a goal, by a model behind an endpoint."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mmrl.api.endpoints.answers import NoAnswer
from mmrl.api.endpoints.client import ChatEndpoint, Question
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.errors import UserError
from mmrl_judge.asking import Unreadable
from mmrl_judge.pairwise import preferred

PROMPT = """You see two pictures of an episode, picture 1 and then picture 2. The goal is: {goal}

First say what each picture shows. Then say whether one of them is nearer to the goal. End with one line
Better: N
where N is 1, 2, or same where neither is nearer or you can't tell."""


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
) -> Verdicts:
    """pairs: uint8 [H, W, 3] twice each. endpoint: None in a smoke run, where labels are made of the bytes. Raises UserError if
    no answer came at all."""
    if endpoint is None:
        sums = [[zlib.crc32(side.numpy().tobytes()) for side in pair] for pair in pairs]
        return Verdicts([int(first < second) for first, second in sums], 0)
    from PIL import Image

    questions = []
    for pair, goal in zip(pairs, goals, strict=True):
        shown = [{"type": "image", "image": Image.fromarray(side.numpy())} for side in pair]
        messages, _ = encoder([{"role": "user", "content": [*shown, {"type": "text", "text": PROMPT.format(goal=goal)}]}])
        questions.append(Question(messages=messages, max_tokens=max_tokens))
    labels, failures = [], []
    for answer in endpoint.ask(questions):
        label = -1
        if isinstance(answer, NoAnswer):
            failures.append(str(answer))
        else:
            try:
                label = {1.0: 0, 0.0: 1, 0.5: -1}[preferred(answer.text)]
            except Unreadable as error:
                failures.append(f"the judge's answer can't be read: {error}")
        labels.append(label)
    if questions and len(failures) == len(questions):
        raise UserError(f"none of {len(questions)} comparisons has an answer: {failures[0]}")
    return Verdicts(labels, len(failures))
