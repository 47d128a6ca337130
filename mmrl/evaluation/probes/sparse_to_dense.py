"""Answers to videos from few frames where they agree, and from more where they don't: the test-time scaling of Video-RTS (Wang et
al., section 3.3), from sparse to dense."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mmrl.algorithms.labels import majority
from mmrl.api.types import Case, Prompt
from mmrl.rollout.generate.sampling import Sampling

TEMPERATURE, WARMER = 0.8, 0.15
"""Of the first answer, and how much higher that of each further one is."""
TOP_P = (0.7, 0.95)
"""Of the first and of the last answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What a prompt was answered in the end, and from how many frames."""

    case: Case
    frames: int


def climb(
    prompts: Sequence[Prompt],
    rungs: Sequence[int],
    agree: int,
    ask: Callable[[Sequence[Prompt], int, int], Sequence[Case]],
    read: Callable[[Case], str],
) -> list[Decided]:
    """Each prompt's answer: that of the first number of frames from which all answers are the same, else the majority's of the
    last.

    rungs: numbers of frames, rising. agree: answers to a prompt from each. ask: (prompts, frames, number of the answer) -> an
    answer to each prompt. read: what an answer says; blank where it says nothing, which agrees with nothing.
    """
    found: dict[int, Decided] = {}
    for frames in rungs:
        left = [i for i in range(len(prompts)) if i not in found]
        given = [ask([prompts[i] for i in left], frames, number) for number in range(agree)] if left else []
        for i, cases in zip(left, zip(*given, strict=True), strict=True):
            answers = [read(case) for case in cases]
            winner = majority(answers)
            if frames == rungs[-1] or (winner and set(answers) == {winner}):
                found[i] = Decided(case=cases[answers.index(winner)], frames=frames)
    return [found[i] for i in range(len(prompts))]


def sampling(number: int, agree: int, max_tokens: int, seed: int) -> Sampling:
    """How the answer with this number is sampled, of so many."""
    low, high = TOP_P
    top_p = low + (high - low) * number / max(agree - 1, 1)
    return Sampling(max_tokens=max_tokens, temperature=TEMPERATURE + WARMER * number, top_p=top_p, seed=seed)


def figures(decided: Sequence[Decided], rungs: Sequence[int]) -> dict[str, float]:
    """`frames/mean`, those of the last answers; `frames/all`, of all answers, as a share of the most frames for each;
    `frames/agreed_share`, the prompts that needed no more than the fewest."""
    looked_at = [sum(r for r in rungs if r <= one.frames) for one in decided]
    return {
        "frames/mean": statistics.fmean(one.frames for one in decided),
        "frames/all": statistics.fmean(looked_at) / rungs[-1],
        "frames/agreed_share": statistics.fmean(one.frames == rungs[0] for one in decided),
    }
