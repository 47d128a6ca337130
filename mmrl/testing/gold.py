"""Gold completions for the checks: tasks without gold completions, and episodes that go on after the first answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmrl.api.errors import NoGold
from mmrl.api.interfaces import Task
from mmrl.api.types import Prompt

TURNS = 50
"""Largest number of turns that gold completions play."""


def gold_or_none(task: Task, prompt: Prompt) -> str | None:
    """The gold completion of a prompt; None if the task raises NoGold."""
    try:
        return task.gold(prompt)
    except NoGold:
        return None


def with_gold(rows: Sequence[tuple[Task, Prompt]]) -> list[tuple[Task, Prompt]]:
    """The rows without NoGold: those with a gold completion, and those whose `gold` fails, which other checks report."""

    def has(task: Task, prompt: Prompt) -> bool:
        try:
            task.gold(prompt)
        except NoGold:
            return False
        except Exception:  # noqa: BLE001  the plugin's code may raise anything
            return True
        return True

    return [(task, prompt) for task, prompt in rows if has(task, prompt)]


def play_gold(task: Task, prompt: Prompt, gold: str, turns: int = TURNS) -> tuple[str, Mapping[str, float]]:
    """Play an episode with gold turns and return (the last completion, the outcome). For a task without environments these are
    the completion itself and {}.

    gold: the first completion; with `turns` = 1 any completion. turns: largest number of turns."""
    environment = task.environment(prompt)
    if environment is None:
        return gold, {}
    try:
        outcome: Mapping[str, float] = {}
        gold_turn = getattr(environment, "gold_turn", None)
        for turn in range(1, turns + 1):
            reply = environment.step(gold)
            outcome = reply.outcome or outcome
            following = None if reply.terminated or turn == turns or gold_turn is None else gold_turn()
            if following is None:
                break
            gold = following
        return gold, outcome
    finally:
        environment.close()
