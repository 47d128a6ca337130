"""An episode that another program plays in a task's environment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from mmrl.api.cases import make_turn
from mmrl.api.errors import EnvironmentFailed, NoGold, UserError
from mmrl.api.serving import OpenTask
from mmrl.api.types import Case, Message, Prompt, Reply, Score, Status, Turn, add_part
from mmrl.rollout.environments import close_environment, gold_turn, make_environment, step_environment, truncate_environment


class OpenEpisode:
    """See `mmrl.api.serving.Episode`."""

    def __init__(self, task: OpenTask, prompt: Prompt, max_turns: int) -> None:
        if max_turns < 1:
            raise UserError(f"max_turns = {max_turns} must be at least 1")
        self.prompt, self.max_turns, self._task = prompt, max_turns, task
        self.messages: Sequence[Message] = prompt.messages
        self.done, self.status, self.reward = False, Status.FINISHED, 0.0
        self.turns: Sequence[Turn] = []
        self.failure = ""
        """Why its environment failed; empty if it didn't."""
        self._outcome: Mapping[str, float] = {}
        self._environment = make_environment(task.task, prompt)

    def step(self, completion: str, tokens: int | None = None) -> Reply:
        if self.done:
            raise UserError(f"the episode of prompt {self.prompt.id!r} is over: start another")
        following = self.messages if self.turns else ()
        turn = make_turn(completion, tokens, messages=following)
        if self._environment is None:
            self.turns = [*self.turns, turn]
            self._end(Status.FINISHED)
            return Reply(terminated=True)
        try:
            reply = step_environment(self._environment, completion, self.prompt.task)
            if len(self.turns) + 1 == self.max_turns and not reply.terminated:
                reply = truncate_environment(self._environment, reply, self.prompt.task)
        except EnvironmentFailed as error:
            self.turns = [*self.turns, turn]
            self.failure = str(error)
            self._end(Status.ENVIRONMENT_ERROR)
            return Reply(terminated=True)
        except BaseException:
            self._end(Status.ENVIRONMENT_ERROR)
            raise
        self.turns = [*self.turns, replace(turn, reward=float(reply.reward), terminated=bool(reply.terminated))]
        self.reward += float(reply.reward)
        self._outcome, self.messages = reply.outcome, reply.messages
        if reply.terminated:
            self._end(Status.FINISHED)
        elif len(self.turns) == self.max_turns:  # as in a run, a last turn holds the reply that nobody answers
            self.turns = [*self.turns, make_turn("", 0, messages=reply.messages)]
            self._end(Status.TRUNCATED_TURNS)
        return reply

    async def step_async(self, completion: str, tokens: int | None = None) -> Reply:
        return await asyncio.to_thread(self.step, completion, tokens)

    def gold_turn(self) -> str | None:
        if self.done:
            return None
        if not self.turns:
            try:
                return self._task.gold(self.prompt)
            except NoGold:
                pass
        if self._environment is None or not hasattr(self._environment, "gold_turn"):
            return None
        try:
            return gold_turn(self._environment, self.prompt.task)
        except EnvironmentFailed as error:
            self.failure = str(error)
            self._end(Status.ENVIRONMENT_ERROR)
            return None

    def case(self) -> Case:
        several = self._environment is not None
        completion = next((turn.text for turn in reversed(self.turns) if turn.token_ids), "")
        turns = self.turns if several else ()
        return self._task.case(self.prompt, completion, status=self.status, turns=turns, outcome=self._outcome)

    def score(self) -> Score:
        return with_reward(self._task.score(self.case()), self.reward)

    async def score_async(self) -> Score:
        return with_reward(await self._task.score_async(self.case()), self.reward)

    def close(self) -> None:
        self._end(self.status if self.done else Status.TRUNCATED_TURNS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _end(self, status: Status) -> None:
        """Close the environment, once."""
        if not self.done and self._environment is not None:
            close_environment(self._environment, self.prompt.task)
        self.done, self.status = True, status


def with_reward(score: Score, reward: float) -> Score:
    """The judge's score of an episode, with the sum of its environment's rewards."""
    return add_part(score, "environment", reward) if reward else score
