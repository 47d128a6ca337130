"""The current sub-goal of an episode: a model behind an endpoint says after each turn whether it was reached, and the policy is
told the next one.

VSC-RL (Wu et al. 2025, Variational Subgoal-Conditioned Reinforcement Learning, arXiv 2502.07949) conditions the policy in each
turn on one sub-goal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import EnvironmentFailed, UserError, user_message
from mmrl.api.simulators.gui import Action
from mmrl_gui.actions import write
from mmrl_gui.endpoints import answer_of, endpoint_of
from mmrl_gui.subgoals import LONGEST, QUESTION, UNREAD, asked

_SAYS = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)


class Tracker:
    """Asks a model whether a turn reached a sub-goal, in the words of the verifier `gui/subgoals`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """options: those of `mmrl.api.endpoints.client.ChatEndpoint`. Raises UserError for others."""
        if not isinstance(options, Mapping):
            raise UserError(f'tracker = {options!r:.60} must be a table such as {{ model = "...", base_url = "..." }}')
        self.endpoint = endpoint_of("tracker", options)

    def reached(self, goal: str, before: Any, after: Any, action: str) -> bool:
        """before, after: the screens around the turn. action: what it did, in mmrl's words. Raises EnvironmentFailed if the
        endpoint has no answer, or one that is neither yes nor no."""
        try:
            answer = answer_of(self.endpoint, [user_message(asked(QUESTION, action, goal), before, after)], "tracker", goal)
        except UserError as error:
            raise EnvironmentFailed(str(error)) from error
        if (match := _SAYS.match(answer)) is None:
            raise EnvironmentFailed(f"tracker: {self.endpoint.model} said {answer!r:.80} and not yes or no about {goal!r:.100}")
        return match[1].lower() == "yes"


class Course:
    """The sub-goals of one episode, of which the first that is not yet reached is the current one."""

    def __init__(self, tracker: Tracker, goals: Sequence[str], screen: Any) -> None:
        """screen: the picture before the first turn."""
        self.tracker, self.goals, self.screen, self.reached = tracker, goals, screen, 0

    def after(self, actions: Sequence[Action], screen: Any) -> str:
        """What the policy reads after a turn. actions: what the turn did; empty if it couldn't be read. screen: the picture after
        it. A turn may reach several sub-goals, in their order."""
        said = "; ".join(write(action, "brief") for action in actions)[:LONGEST] or UNREAD
        while self.reached < len(self.goals) and self.tracker.reached(self.goals[self.reached], self.screen, screen, said):
            self.reached += 1
        self.screen = screen
        return told_current(self.goals, self.reached)


def told_current(goals: Sequence[str], reached: int = 0) -> str:
    """What the policy reads of the current sub-goal. reached: how many of the sub-goals were reached."""
    if reached == len(goals):
        return "All sub-goals are reached."
    return f"Current sub-goal: {reached + 1}. {goals[reached]}"
