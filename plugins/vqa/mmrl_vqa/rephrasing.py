"""The same questions in other words, for training without labels (Co-Reward): both must have the same answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmrl import Prompt

OTHERWISE: Sequence[tuple[re.Pattern[str], str]] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"How many (.+) are there\?", r"Count the \1. What is their number?"),
        (r"How many more (.+) are in the first picture than in the second\?", r"By how many \1 does the first picture lead?"),
        (r"How many (.+) are in the (two|three) pictures together\?", r"Add up the \1 of all \2 pictures. What is the sum?"),
        (r"Which picture has (more|the most) (.+)\?", r"In which picture would you count \1 \2?"),
        (r"Do the (two|three) pictures show the same (.+)\?", r"Are all \1 pictures alike in their \2?"),
        (r"Is there a (.+)\?", r"Can you find a \1 in the picture?"),
        (r"Is the (.+) left of the (.+)\?", r"Going from left to right, does the \1 come before the \2?"),
        (r"Is the (.+) above the (.+)\?", r"Going from top to bottom, does the \1 come before the \2?"),
        (r"Are there more (.+) than (.+)\?", r"Do the \1 outnumber the \2?"),
        (r"What colour is the shape nearest to the (.+)\?", r"Look for the shape that is closest to the \1. Name its colour."),
        (r"What shape is the shape nearest to the (.+)\?", r"Look for the shape that is closest to the \1. Name its form."),
        (r"What colour is the (.+)\?", r"Name the colour that the \1 has."),
        (r"What shape is (.+)\?", r"Name the form of what is \1."),
        (r"Which of these is in the picture\?", "One of these can be seen in the picture. Which is it?"),
        (r"In which part of the picture is the (.+)\?", r"Where in the picture would you look for the \1?"),
    )
)
"""Form of a drawn question -> its other words; the first that fits is taken."""


def otherwise(question: str) -> str | None:
    """A drawn question in other words; None for one of no known form."""
    return next((match.expand(words) for form, words in OTHERWISE if (match := form.fullmatch(question))), None)


def with_question(prompt: Prompt, question: str, other: str) -> Prompt:
    """The prompt with the other question in place of the first; options, instructions and pictures stay."""

    def changed(part: Mapping[str, Any]) -> Mapping[str, Any]:
        if part["type"] != "text" or not part["text"].startswith(question):
            return part
        return {**part, "text": other + part["text"][len(question) :]}

    return replace(prompt, messages=[{**m, "content": [changed(part) for part in m["content"]]} for m in prompt.messages])
