"""Prompts of questions with options about a sound, in the styles of all tasks here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmrl import Prompt, user_message
from mmrl_audio import r1_aqa

STYLES = ("short", "plain", "r1-aqa", "r1-aqa-think")
THOUGHT = "I listen to the sound."


def posed(id: str, question: str, options: Sequence[str], right: str, style: str, sound: Any, **meta: Any) -> Prompt:
    """A prompt with its answer. right: the text of the right option. meta: more data of the prompt.

    The answer of R1-AQA's styles is the solution that its data handling writes, with a tag around it, since its accuracy reads
    both."""
    answer = f"<answer>{right}</answer>" if style in r1_aqa.PROMPTS else right
    about = {"style": style, "options": list(options), **meta}
    return Prompt(id=id, messages=[user_message(asked(question, options, style), sound)], answer=answer, meta=about)


def asked(question: str, options: Sequence[str], style: str) -> str:
    """The text of a prompt."""
    if style in r1_aqa.PROMPTS:
        return r1_aqa.asked(question, options, style)
    how = "with one of these and nothing else" if style == "plain" else "with one of these in <answer> </answer> tags"
    return f"{question} Answer {how}: {', '.join(options)}."


def written(right: str, style: str) -> str:
    """A completion with the right option in the form of a style."""
    if style == "plain":
        return right
    thought = f"<think>{THOUGHT}</think>\n" if style == "r1-aqa-think" else ""
    return f"{thought}<answer>{right}</answer>"
