"""ms-swift: episodes of a task's environments, as the gym environment `mmrl`.

In a run: `--multi_turn_scheduler gym_scheduler --use_gym_env true`, and `--external_plugins $(python -m mmrl_interop.swift)`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import EnvironmentFailed, Episode, Score, UserError
from mmrl_interop.scoring import STAND_INS
from mmrl_interop.stored_episodes import begin

MAX_TURNS = 8
"""Turns of an episode where a row's `env_config` has no `max_turns`. ms-swift's own limit must not be lower: an episode that it
ends is never scored."""


class EpisodeEnv:
    """An episode of an exported row, with the methods of ms-swift's `Env`. Its rewards sum up to the episode's score.

    A score that is missing gets a stand-in, as in `mmrl_interop.swift.reward`.
    """

    def __init__(self, env_config: Mapping[str, Any]) -> None:
        """env_config: of the row: `episode`, `mmrl`, and perhaps `max_turns`. Raises UserError for another row."""
        self.stored, self.place = env_config.get("mmrl"), env_config.get("episode")
        self.max_turns = int(env_config.get("max_turns") or MAX_TURNS)
        if not isinstance(self.stored, str):
            raise UserError("the row has no env_config.mmrl: write it with mmrl export TASK --to swift")
        self._episode: Episode | None = None
        self._lost = ""
        self._paid = 0.0

    async def reset(self, config: Any) -> tuple[str, dict[str, Any], str]:
        """(the prompt's text, with <image> in the place of images; nothing; its system message, or "")."""
        try:
            self._episode = await asyncio.to_thread(begin, self.place, self.max_turns)
        except EnvironmentFailed as error:  # the prompt is answered once, and its score is missing
            self._lost = str(error)
        system, user = prompt_texts(config.messages)
        return user, {}, system

    async def step(self, action: Sequence[Mapping[str, Any]]) -> tuple[str, float, bool, dict[str, Any]]:
        """Play a turn, the last of `action`: (what follows, its reward, whether the episode is over, whether its score is
        missing). Raises UserError for a reply with pictures, which ms-swift's environments can't show."""
        if self._episode is None:
            return "", *self._end(Score(None, {}, self._lost, lost=True), self._lost)
        reply = await self._episode.step_async(_text(action[-1]["content"]))
        if self._episode.done:
            return "", *self._end(await self._episode.score_async(), self._episode.failure)
        self._paid += float(reply.reward)
        return "\n\n".join(_text(message["content"]) for message in reply.messages), float(reply.reward), False, {}

    async def close(self) -> None:
        if self._episode:
            await asyncio.to_thread(self._episode.close)

    def _end(self, score: Score, failure: str) -> tuple[float, bool, dict[str, Any]]:
        assert self.stored is not None
        [value] = STAND_INS.fill([self.stored], [score])
        detail = failure or json.dumps(score.detail, default=str)
        return value - self._paid, True, {"missing": float(score.value is None), "detail": detail}


def prompt_texts(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """(system message or "", user message) of a prompt. Raises UserError for another form of prompt."""
    roles = [message["role"] for message in messages]
    if roles not in (["user"], ["system", "user"]):
        raise UserError(f"a prompt of the roles {', '.join(roles)} can't begin an episode in ms-swift: a user's message does")
    return ("" if len(roles) == 1 else _text(messages[0]["content"])), _text(messages[-1]["content"])


def _text(content: Any) -> str:
    """The text of a message."""
    if isinstance(content, str):
        return content
    if other := next((part["type"] for part in content if part["type"] != "text"), ""):
        raise UserError(f"the environment shows a part {other!r}, which ms-swift's gym environments can't take: train it in mmrl")
    return "".join(part["text"] for part in content)
