"""What a question with tools says of the answer."""

from __future__ import annotations

from mmrl.api.verifiers import tool_calls as calls

STYLES = ("short", "think", "plain")
ANSWER = {
    "short": "Give the final answer in <answer> </answer>.",
    "think": "In each turn think in <think> </think> first. Give the final answer in <answer> </answer>.",
    "plain": "",
}
"""Style -> what is asked for; `plain` asks for nothing, and a turn without a call is the answer."""


def question(text: str, style: str) -> str:
    """The question with what is asked of the answer."""
    return f"{text} {ANSWER[style]}".strip()


def written(answer: str, style: str) -> str:
    """An answer in a style, as gold completions have it."""
    if style == "plain":
        return answer
    thought = "<think>This shows it.</think>" if style == "think" else ""
    return f"{thought}<answer>{answer}</answer>"


def called(call: calls.Call, form: str, style: str) -> str:
    """A turn with a call in a style, as gold completions have it."""
    return ("<think>I need to look closer.</think>" if style == "think" else "") + calls.write(call, form)
