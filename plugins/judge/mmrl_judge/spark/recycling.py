"""Which judgements and reflections are made of a step's rollouts.

Liu et al. 2025, SPARK: Synergistic Policy And Reward Co-Evolving Framework, arXiv 2509.22624; its code,
github.com/InternLM/Spark, commit bc47b93 (`openrlhf/trainer/ppo_utils/new_data_gen.py`), whose choices and draws these are, one
for one (`plugins/judge/tests/test_spark.py`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mmrl_judge.spark import words

POINTWISE_SHARE = 0.3
"""How often a question with right and wrong answers asks about one of them; else about a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question and its rollouts."""

    question: str
    completions: Sequence[str]
    answers: Sequence[str | None]
    """The answer in each completion; None if it has none."""
    right: Sequence[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recycled:
    """A prompt that is made of a question's rollouts."""

    number: int
    """Index of the question."""
    kind: Literal["pointwise", "pairwise", "reflection"]
    text: str
    verdict: str = ""
    """The right verdict; empty for a reflection, whose answer is that of the question."""
    wrong: str = ""


def judgements(answered: Sequence[Answered], draw: random.Random) -> list[Recycled]:
    """At most one prompt for a judge by question: about its first answer if all are right, about one that is given if all are
    wrong, else about one answer (in 3 of 10) or a right one and a wrong one in either order. None where the answer that was
    drawn is missing, or if none of a question's answers is there."""
    found = []
    for number, one in enumerate(answered):
        if all(one.right):
            made = _pointwise(number, one, 0, draw)
        elif not any(one.right):
            given = [n for n, answer in enumerate(one.answers) if answer is not None]
            made = _pointwise(number, one, draw.choice(given), draw) if given else None
        elif draw.random() < POINTWISE_SHARE:
            target = draw.choice([False, True])
            made = _pointwise(number, one, draw.choice(_those(one, target)), draw)
        else:
            right, wrong = draw.choice(_those(one, True)), draw.choice(_those(one, False))
            made = _pairwise(number, one, right, wrong, draw)
        if made is not None:
            found.append(made)
    return found


def reflections(answered: Sequence[Answered], draw: random.Random) -> list[Recycled]:
    """A prompt to think again about a wrong rollout, at most one by question: with its whole reasoning in the first half of the
    questions, with its answer in the second."""
    found = []
    for number, one in enumerate(answered):
        whole = number < len(answered) / 2
        wrong = [n for n in _those(one, False) if whole or one.answers[n] is not None]
        if not wrong:
            continue
        said = (one.completions if whole else one.answers)[draw.choice(wrong)]
        wording, place = (words.REFLECT_REASONING, "{cot}") if whole else (words.REFLECT_ANSWER, "{answer}")
        text = draw.choice(wording).replace("{question}", one.question).replace(place, str(said))
        found.append(Recycled(number=number, kind="reflection", text=text))
    return found


def recycled(answered: Sequence[Answered], draw: random.Random, most: int) -> list[Recycled]:
    """Judgements and then reflections, at most `most` of each; more are drawn from."""
    judged, reflected = judgements(answered, draw), reflections(answered, draw)
    return [one for made in (judged, reflected) for one in (draw.sample(made, most) if len(made) > most else made)]


def _those(one: Answered, right: bool) -> list[int]:
    return [n for n, value in enumerate(one.right) if value == right]


def _pointwise(number: int, one: Answered, chosen: int, draw: random.Random) -> Recycled | None:
    wording, answer = draw.choice(words.POINTWISE), one.answers[chosen]
    if answer is None:
        return None
    text = wording.text.replace("{question}", one.question).replace("{answer}", answer)
    verdict, wrong = (wording.right, wording.wrong) if one.right[chosen] else (wording.wrong, wording.right)
    return Recycled(number=number, kind="pointwise", text=text, verdict=verdict, wrong=wrong)


def _pairwise(number: int, one: Answered, right: int, wrong: int, draw: random.Random) -> Recycled | None:
    first = draw.random() < 0.5
    wording = draw.choice(words.PAIRWISE)
    a, b = (one.answers[n] for n in ((right, wrong) if first else (wrong, right)))
    if a is None or b is None:
        return None
    text = wording.replace("{question}", one.question).replace("{answer_a}", a).replace("{answer_b}", b)
    verdict, other = ("A", "B") if first else ("B", "A")
    return Recycled(number=number, kind="pairwise", text=text, verdict=verdict, wrong=other)
