"""Gold completions as the kit looks at them: where a task has none, and what comes of them where an answer isn't the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmrl.api.errors import NoGold
from mmrl.api.interfaces import Task
from mmrl.api.types import Prompt

TURNS = 50
"""Turns of an episode at most that gold completions play."""


def gold_or_none(task: Task, prompt: Prompt) -> str | None:
    """The gold completion of a prompt; None where the task can't say what would be right."""
    try:
        return task.gold(prompt)
    except NoGold:
        return None


def with_gold(rows: Sequence[tuple[Task, Prompt]]) -> list[tuple[Task, Prompt]]:
    """The rows that have a gold completion, or whose task fails when it is asked for one, which is for others to find."""

    def has(task: Task, prompt: Prompt) -> bool:
        try:
            task.gold(prompt)
        except NoGold:
            return False
        except Exception:  # noqa: BLE001  the author's code may raise anything
            return True
        return True

    return [(task, prompt) for task, prompt in rows if has(task, prompt)]


def play_gold(task: Task, prompt: Prompt, gold: str, turns: int = TURNS) -> tuple[str, Mapping[str, float]]:
    """(what is said last, the outcome) of an episode that begins with a gold completion and goes on as its world says; of a task
    without worlds the completion itself. turns: at most; with 1 the completion may be any."""
    world = task.environment(prompt)
    if world is None:
        return gold, {}
    try:
        outcome: Mapping[str, float] = {}
        for turn in range(1, turns + 1):
            reply = world.step(gold)
            outcome = reply.outcome or outcome
            more = None if reply.terminated or turn == turns or not hasattr(world, "gold_turn") else world.gold_turn()
            if more is None:
                break
            gold = more
        return gold, outcome
    finally:
        world.close()
