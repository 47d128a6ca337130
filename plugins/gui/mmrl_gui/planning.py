"""Sub-goals of an instruction that the policy is told: by the words of the instruction, or as a model behind an endpoint proposes
them when it sees the first screen.

VSC-RL (Wu et al. 2025, Variational Subgoal-Conditioned Reinforcement Learning, section 4.3, arXiv 2502.07949).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmrl import UserError, user_message
from mmrl_gui.endpoints import answer_of, endpoint_of
from mmrl_gui.subgoals import MOST, subgoals

WORDS = "words"
"""The option that divides the instruction where it says what comes next."""
ASKS = (
    "The picture shows a screen, on which somebody is to do this: {instruction}\n"
    "Divide it into sub-goals that are reached one after the other, as few as possible and at most {most}. "
    "Answer with a numbered list, one sub-goal a line, and nothing else."
)
LONGEST = 200
"""Maximum of characters of a sub-goal."""
_NUMBERED = re.compile(r"[ \t]*\d{1,2}[.):][ \t]+(\S.*)")
Plan = Callable[[str, Any], list[str]]
"""(instruction, first screen) -> its sub-goals, in order."""


def plan_of(option: str | Mapping[str, Any]) -> Plan | None:
    """What the task's option `subgoals` says: empty for none, `words`, or a table with the options of an endpoint. Raises
    UserError for anything else."""
    if isinstance(option, Mapping):
        return Planner(option)
    if option not in ("", WORDS):
        raise UserError(f'subgoals = {option!r:.60} must be "{WORDS}", or a table such as {{ model = "...", base_url = "..." }}')
    return (lambda instruction, _: subgoals(instruction)) if option else None


class Planner:
    """Asks a model for the sub-goals of an instruction on a screen, once in a run; with `cache` the answers are kept on disk, so
    that a resumed run tells the policy the same."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """options: those of `mmrl.api.endpoints.client.ChatEndpoint`."""
        self.endpoint = endpoint_of("subgoals", options)
        self.known: dict[tuple[str, bytes], list[str]] = {}
        """(instruction, hash of the screen) -> its sub-goals; the screens of a long run would take gigabytes."""

    def __call__(self, instruction: str, screen: Any) -> list[str]:
        """Raises UserError if the endpoint has no answer, or one without a list."""
        key = (instruction, b"" if screen is None else hashlib.sha256(screen.tobytes()).digest())
        if key not in self.known:
            text = ASKS.format(instruction=instruction, most=MOST)
            message = user_message(text, *([] if screen is None else [screen]))
            answer = answer_of(self.endpoint, [message], "subgoals", instruction)
            if not (goals := listed_goals(answer)):
                raise UserError(
                    f"subgoals: {self.endpoint.model} gave no numbered list for {instruction!r:.100}: {answer!r:.100}"
                )
            self.known[key] = goals
        return self.known[key]


def listed_goals(text: str) -> list[str]:
    """The lines of a numbered list, at most `MOST`; other lines are left out."""
    found = [match[1].strip()[:LONGEST] for line in text.splitlines() if (match := _NUMBERED.match(line))]
    return found[:MOST]


def told_goals(goals: Sequence[str]) -> str:
    """What the policy reads of its sub-goals."""
    return "\n".join(["Sub-goals, one after the other:", *(f"{n}. {goal}" for n, goal in enumerate(goals, 1))])
