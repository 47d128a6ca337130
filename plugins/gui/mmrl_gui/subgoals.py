"""Sub-goals of an instruction, each judged by a vision-language model on the screens before and after a turn.

VSC-RL (Wu et al. 2025, Variational Subgoal-Conditioned Reinforcement Learning) trains on the sub-goals of a task instead of its
end alone. They are those that the policy is told (`mmrl_gui.planning`), or else the instruction is divided at words such as
"then".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import Case, Conversation, Score, UserError, user_message
from mmrl.api.services import Dtype, check_vision_language, vision_language
from mmrl.api.simulators.gui import Element
from mmrl_gui.actions import read, write
from mmrl_gui.coordinates import Numbers, numbers_of
from mmrl_gui.filmstrip import seen_in
from mmrl_gui.names import NoAction
from mmrl_gui.programs import read_program

QUESTION = (
    "The first picture shows a screen, and the second the same screen after this action: {action}. Did that do the following: "
    "{subgoal}? Answer with yes or no."
)
MOST = 8
"""Maximum of sub-goals of one instruction; the last one contains the rest."""
LONGEST = 100
"""Maximum of characters of an action in a question."""
UNREAD = "none that could be read"
"""An action in a question, where a turn has none."""
_QUOTED = re.compile(r'"[^"]*"')
_DO = "click|press|tap|select|choose|pick|enter|type|write|fill|submit|open|close|scroll|drag|move|check|find|search|go|hit|set"
_NEXT = re.compile(
    rf"\s*(?:;|\.)\s+(?:and\s+)?(?:then\s+)?|,?\s+(?:and\s+)?then,?\s+|(?<!\bfind),?\s+and\s+(?=(?:{_DO})\b)", re.IGNORECASE
)
"""Separators of sub-goals: a full stop or a semicolon, `then`, `and` before a verb."""


class Subgoals:
    """The share of an instruction's sub-goals that were reached; each is rewarded at the turn that first reached it.

    Sub-goals are reached in their order. A turn reaches one if the model says so, given the screens before and after and the
    action. The final screen of an episode is not available: if the episode succeeded, its last turn reached the remaining
    sub-goals. Actions are described in mmrl's own words, so that no other text of the policy is read.

    Known exploits: the model reads typed texts, up to 100 characters; its mistakes are rewarded.
    """

    def __init__(
        self,
        *,
        model: str,
        above: float = 0.5,
        question: str = "",
        device: str = "auto",
        dtype: Dtype = "auto",
        batch_size: int = 16,
        max_pixels: int | None = None,
    ) -> None:
        """model: a folder, a hub name, or tiny. above: a sub-goal is reached if the probability of yes, among yes and no, is
        higher. question: a yes/no question with {subgoal} in it, and {action} for the action; mmrl's own when empty.
        device: auto, cpu, cuda. dtype: auto, float32, bfloat16 or float16. batch_size: questions answered at once. max_pixels:
        larger pictures are reduced."""
        self.check({}, model=model, above=above, question=question, device=device, batch_size=batch_size)
        self.question, self.above = question or QUESTION, above
        self.model = vision_language(model, device=device, dtype=dtype, batch_size=batch_size, max_pixels=max_pixels)

    @staticmethod
    def check(
        cameras: Mapping[str, Sequence[str]],
        *,
        model: str,
        above: float = 0.5,
        question: str = "",
        device: str = "auto",
        batch_size: int = 16,
        **others: Any,
    ) -> None:
        check_vision_language(model, device=device, batch_size=batch_size)
        if isinstance(above, bool) or not isinstance(above, int | float) or not 0 <= above <= 1:
            raise UserError(f"above = {above!r} must be a number from 0 to 1")
        if question:
            asked(question, "", "")

    def __call__(self, cases: Sequence[Case]) -> list[Score]:
        plans = [(goals_of(case), moves(case)) for case in cases]
        questions = [
            [user_message(asked(self.question, action, goal), before, after)]
            for goals, moved in plans
            for before, after, action in moved
            for goal in goals
        ]
        chances = iter(self.model.answer_probabilities(questions, ("yes", "no"))[:, 0].tolist() if questions else ())
        scores = []
        for case, (goals, moved) in zip(cases, plans, strict=True):
            table = [[next(chances) > self.above for _ in goals] for _ in moved]
            reached = first_reached(table, len(goals), last_of(case) if case.outcome.get("success", 0.0) > 0.5 else None)
            scores.append(_score(goals, reached, case.rollout.num_calls if case.rollout else 0))
        return scores


def goals_of(case: Case) -> list[str]:
    """The sub-goals that the policy was told, or else those of the instruction's words."""
    return list(case.meta.get("subgoals") or subgoals(instruction(case)))


def subgoals(text: str) -> list[str]:
    """The sub-goals of an instruction, in order, without full stops; text in double quotes is never divided."""
    quotes = _QUOTED.findall(text)
    hidden = _QUOTED.sub("\0", text)
    parts = [part.strip(" .;,") for part in _NEXT.split(hidden)]
    parts = [part for part in parts if part] or [hidden.strip() or "what is to be done"]
    if len(parts) > MOST:
        parts[MOST - 1 :] = [", then ".join(parts[MOST - 1 :])]
    left = iter(quotes)
    return [re.sub("\0", lambda _: next(left), part) for part in parts]


def moves(case: Case) -> list[tuple[Any, Any, str]]:
    """(the screen before, the screen after, the action) of each turn that is followed by a screen. Raises UserError if the
    episode has no pictures."""
    rollout = case.rollout
    assert isinstance(rollout, Conversation), "the spec asks for it"
    shown = [seen_in(rollout.prompt.messages), *(seen_in(turn.messages) for turn in rollout.turns[1:])]
    if any(one.picture is None for one in shown):
        raise UserError('the episode has no pictures: set observe = "picture" or "both" in the task\'s options')
    numbers = numbers_of(case)
    turns = zip(shown, shown[1:], rollout.turns, strict=False)
    return [(a.picture, b.picture, _said(turn.text, numbers, a.elements)) for a, b, turn in turns]


def first_reached(table: Sequence[Sequence[bool]], count: int, won: int | None) -> list[int | None]:
    """The turn that first reached each of `count` sub-goals, None if none did. A sub-goal can't be reached before the one before
    it.

    table: whether a turn did a sub-goal, [turn][sub-goal]. won: the last turn of a successful episode, which reached the rest.
    """
    found: list[int | None] = []
    earliest: int | None = 0
    for goal in range(count):
        if earliest is not None:
            earliest = next((turn for turn in range(earliest, len(table)) if table[turn][goal]), won)
        found.append(earliest)
    return found


def last_of(case: Case) -> int:
    """The number of the last turn with a completion."""
    assert isinstance(case.rollout, Conversation)
    return max(n for n, turn in enumerate(case.rollout.turns) if turn.token_ids)


def instruction(case: Case) -> str:
    """The instruction. Raises UserError for a task without it."""
    found = case.meta.get("instruction")
    if not isinstance(found, str):
        raise UserError('the prompt has no meta["instruction"]: this verifier is for gui/episodes')
    return found


def _score(goals: Sequence[str], reached: Sequence[int | None], turns: int) -> Score:
    steps = [0.0] * turns
    for turn in reached:
        if turn is not None:
            steps[turn] += 1 / len(goals)
    done = [goal for goal, turn in zip(goals, reached, strict=True) if turn is not None]
    left = [goal for goal, turn in zip(goals, reached, strict=True) if turn is None]
    detail = f"{len(done)} of {len(goals)}" + (f"; not: {left[0]}" if left else "")
    return Score(len(done) / len(goals), detail=detail[:200], steps=tuple(steps))


def _said(completion: str, numbers: Numbers, elements: Sequence[Element]) -> str:
    """The action of a turn, or those of its program, described by mmrl as `mmrl_gui.tracking` does."""
    try:
        actions = [read(completion, numbers, elements, tags="<answer>" in completion)]
    except NoAction:
        try:
            actions = [call.action for call in read_program(completion, numbers, elements)]
        except NoAction:
            return UNREAD
    return "; ".join(write(action, "brief") for action in actions)[:LONGEST]


def asked(question: str, action: str, subgoal: str) -> str:
    """The question with its values. Raises UserError for unknown braces."""
    if "{subgoal}" not in question:
        raise UserError("question must contain {subgoal}, which the sub-goal replaces")
    try:
        return question.format(action=action, subgoal=subgoal)
    except (KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"question = {question[:60]!r}: only {{action}} and {{subgoal}} are allowed in braces ({error})"
        ) from None
