"""Rewards of DeepEyes as in the released code, faults included (github.com/Visual-Agent/DeepEyes, commit 6c5e796,
`verl/utils/reward_score/vl_agent.py`).

Zheng et al. 2025, "DeepEyes: Incentivizing Thinking with Images via Reinforcement Learning", arXiv 2505.14362, section 3.2: the
reward of accuracy, that of the format, and one for tools that is paid only where the answer is right. A model judges answers
there; here a rule does, or a model with `mmrl_tools.deepeyes_judge`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from mmrl import Case, Conversation, Score
from mmrl.api.verifiers.mathematics import parse_math, verify_parsed
from mmrl.api.verifiers.parse import MAX_LENGTH, first_tag
from mmrl_tools.verifiers import matches

ACCURACY, FORMAT, TOOL = 0.8, 0.2, 1.2
MATH_ACCURACY, MATH_FORMAT = 1.2, 0.4
LONG = 1000
"""Characters from which on an answer is worth nothing: long ones persuade the judge."""
BEFORE, AFTER = "<|vision_start|><|image_pad|>", "<|image_pad|><|vision_end|>"
"""What stands at the beginning and the end of a picture in the text of an episode."""
_BOXED = re.compile(r"\\boxed\{([^}]+)\}")


class Episode(NamedTuple):
    """What the rewards read of an episode."""

    text: str
    """All that the policy wrote."""
    pictures: int
    """Pictures that tools gave back."""
    torn: bool = False
    """A picture is cut off."""


class Parts(NamedTuple):
    """The parts of a reward before the answer is judged."""

    answer: str | None
    """The answer to be judged; None for one that is worth nothing."""
    sound: bool
    """The format is right."""


def episode_of(case: Case) -> Episode:
    """The episode of a case. Without a rollout, its completion is the whole text, with the signs of pictures in it."""
    if isinstance(case.rollout, Conversation):
        text = "".join(turn.text for turn in case.rollout.turns)
        shown = [m for turn in case.rollout.turns[1:] for m in turn.messages if not isinstance(m["content"], str)]
        pictures = sum(part["type"] == "image" for message in shown for part in message["content"])
        return Episode(text[: MAX_LENGTH + 1], max(pictures, int(case.outcome.get("pictures", 0))))
    text = case.completion[: MAX_LENGTH + 1]
    return Episode(text, text.count(BEFORE), text.count(BEFORE) != text.count(AFTER))


def reward(case: Case) -> Score:
    """0.8 for the right answer, -0.2 for a format that is wrong, and 1.2 more if the answer is right and a picture came back:
    -0.2 to 2.

    The answer is what stands behind the last `<answer>`, or everything without one. The format is right if there are as many
    opening as closing tags, think tags everywhere and answer tags behind the last `</think>`, and the answer has less than a
    thousand characters.
    Known exploits, as published: the format reward is never asked for a tag at all; any zoom pays, also one that shows nothing
    of use.
    """
    return _score(case, perception(episode_of(case)), judged_by_rule(case))


def reasoning_reward(case: Case) -> Score:
    """As `reward`, but the answer must be between the first pair of answer tags behind the last `</think>`, or else the format
    is wrong and the answer, too. Known exploits: those of `reward`."""
    return _score(case, reasoning(episode_of(case)), judged_by_rule(case))


def math_reward(case: Case) -> Score:
    """1.2 for a right formula in the last box behind the last `</think>`, and -0.4 if there isn't exactly one box or think tags
    don't pair: -0.4 to 1.2. Formulas are compared by math-verify. Known exploits: those of math-verify."""
    episode = episode_of(case)
    text, sound = episode.text, _pair(episode.text, "think")
    answer = text.split("</think>")[-1] if len(text) <= MAX_LENGTH else ""
    found = _BOXED.findall(answer[: answer.rfind("}") + 1])  # what no bracket closes behind it takes quadratic time
    right = bool(found) and verify_parsed(parse_math(str(case.answer)), parse_math(found[-1]))
    value = MATH_ACCURACY * right - MATH_FORMAT * (not sound or len(found) != 1)
    return Score(value, parts={"accuracy": float(right), "format": -float(not sound or len(found) != 1)})


def perception(episode: Episode) -> Parts:
    """The parts of `reward`."""
    text = episode.text
    behind = text.split("</think>")[-1].strip()
    sound = _pair(text, "think") and not episode.torn and behind.count("<answer>") == behind.count("</answer>")
    answer = text.split("<answer>")[-1].split("</answer>")[0].strip()
    return Parts(None, False) if len(answer) >= LONG else Parts(answer, sound)


def reasoning(episode: Episode) -> Parts:
    """The parts of `reasoning_reward`."""
    text = episode.text
    behind = text.split("</think>")[-1].strip()
    sound = _pair(text, "think") and not episode.torn and behind.count("<answer>") == behind.count("</answer>")
    answer = (first_tag(behind) or "").strip()
    return Parts(answer, sound) if 0 < len(answer) < LONG else Parts(None, False)


def judged_by_rule(case: Case) -> Callable[[str], bool]:
    """Whether an answer is right, by `verifiers.matches`."""
    return lambda answer: matches(answer, case.answer, case.meta.get("options", ()))


def total(right: bool, sound: bool, pictures: int) -> Score:
    """The reward of its parts."""
    used = right and pictures > 0
    parts = {"accuracy": float(right), "format": -float(not sound), "tool": float(used)}
    return Score(ACCURACY * right - FORMAT * (not sound) + TOOL * used, parts=parts)


def _score(case: Case, parts: Parts, judge: Callable[[str], bool]) -> Score:
    right = parts.answer is not None and judge(parts.answer)
    return total(right, parts.sound, episode_of(case).pictures)


def _pair(text: str, tag: str) -> bool:
    return text.count(f"<{tag}>") == text.count(f"</{tag}>")
