"""verl: episodes of a task's environments, as an agent loop. verl imports this file, `agent_loop.yaml` names it.

In a run: `actor_rollout_ref.rollout.agent.agent_loop_config_path=$(python -m mmrl_interop.verl)`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.utils.profiler import simple_timer

from mmrl import EnvironmentFailed, Episode, Score, UserError
from mmrl_interop.rows import read_stored
from mmrl_interop.scoring import STAND_INS
from mmrl_interop.stored_episodes import begin

MAX_TURNS = 8
"""Turns of an episode where verl's `multi_turn.max_assistant_turns` is not set."""
HEAD, OPENED = 16, re.compile(r"<think>\s*$")
"""How many of the last tokens of a prompt are read, and the thinking that it opens."""


class EpisodeLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays an exported row's episode and scores it.

    A turn may take what is left of `response_length`. The episode is truncated where a reply of its environment leaves no room
    for another turn. A score that is missing gets a stand-in, as in `mmrl_interop.verl.compute_score`.
    """

    async def run(self, sampling_params: dict[str, Any], **columns: Any) -> AgentLoopOutput:
        """columns: of verl's data set: `raw_prompt`, and `extra_info` as `mmrl export TASK --to verl` wrote it. Raises UserError
        for another row, and for a reply that shows a video."""
        info = columns["extra_info"] or {}
        stored, turns = info.get("mmrl"), self.rollout_config.multi_turn.max_assistant_turns or MAX_TURNS
        if not isinstance(stored, str):
            raise UserError("the row has no extra_info.mmrl: write it with mmrl export TASK --to verl")
        played = _Tokens(self, sampling_params)
        await played.show(list(columns["raw_prompt"]))
        try:
            episode = await asyncio.to_thread(begin, info.get("episode"), turns)
        except EnvironmentFailed as error:
            score = Score(None, {}, str(error), lost=True)
        else:
            with episode:
                await played.play(episode)
            score = await episode.score_async()
        [value] = STAND_INS.fill([stored], [score])
        acc = score.parts.get(read_stored(stored).metric, value)
        return played.output(value, {"score": value, "acc": acc, "missing": float(score.failed or score.value is None)})


class _Tokens:
    """An episode as verl's tokens: the prompt, and then turns of the policy and replies."""

    def __init__(self, loop: EpisodeLoop, sampling: Mapping[str, Any]) -> None:
        self.loop, self.sampling = loop, dict(sampling)
        self.room = loop.rollout_config.response_length
        self.messages: list[dict[str, Any]] = []
        self.media: dict[str, list[Any]] = {}
        self.ids: list[int] = []
        self.mask: list[int] = []
        """1 for a token that the policy sampled, 0 for one of a reply; of the tokens after the prompt."""
        self.logprobs: list[float] | None = None
        self.turns = 1
        self.request = uuid4().hex
        self.metrics: dict[str, Any] = {}
        self.extra: dict[str, Any] = {}

    async def show(self, messages: list[dict[str, Any]]) -> None:
        """Begin with the prompt."""
        self.messages, self.media = messages, await self.loop.process_multi_modal_info(messages)
        self.loop._assert_mm_supported(bool(self.media))
        self.ids = await self.loop.ct_build_initial_tokens(messages, **{k: self.media.get(k) for k in ("images", "videos")})

    async def play(self, episode: Episode) -> None:
        """Sample turns until the episode is over or `response_length` is full."""
        while not episode.done and len(self.mask) < self.room:
            text, count = await self._sample()
            with simple_timer("tool_calls", self.metrics):
                await episode.step_async(text, count)
            if not episode.done and not await self._reply([_filled(message) for message in episode.messages]):
                return

    async def _sample(self) -> tuple[str, int]:
        """A turn of the policy: its text, with thinking that the prompt has opened, and its number of tokens."""
        opening = OPENED.search(self.loop.tokenizer.decode(self.ids[-HEAD:]))
        with simple_timer("generate_sequences", self.metrics):
            sampled = await self.loop.server_manager.generate(
                request_id=self.request,
                prompt_ids=self.ids,
                sampling_params={**self.sampling, "max_tokens": self.room - len(self.mask)},
                image_data=self.media.get("images"),
                video_data=self.media.get("videos"),
            )
        merged, self.mask, self.logprobs = await self.loop.ct_merge_assistant_token(
            self.ids,
            sampled.token_ids,
            self.mask,
            self.logprobs or ([] if sampled.log_probs else None),
            sampled.log_probs or None,
        )
        self.ids, self.extra, self.turns = merged.token_ids, self.extra | sampled.extra_fields, self.turns + 1
        text = self.loop.tokenizer.decode(sampled.token_ids, skip_special_tokens=True)
        self.messages = [*self.messages, {"role": "assistant", "content": text}]
        return (opening[0] if opening else "") + text, len(sampled.token_ids)

    async def _reply(self, messages: list[dict[str, Any]]) -> bool:
        """Append a reply of the environment; False if it leaves no room for a turn."""
        shown = await self.loop.process_multi_modal_info(messages)
        if shown.get("videos"):
            raise UserError("the environment shows a video, which verl's agent loops can't take: play it in mmrl")
        self.loop._assert_mm_supported(bool(shown))
        merged, mask, logprobs = await self.loop.ct_merge_context_msg(
            self.messages, [*self.messages, *messages], self.ids, self.mask, self.logprobs
        )
        if len(mask) >= self.room:
            return False
        self.ids, self.mask, self.logprobs = merged.token_ids, mask, logprobs
        self.messages, self.turns = [*self.messages, *messages], self.turns + 1
        if images := shown.get("images"):
            self.media = {**self.media, "images": [*self.media.get("images", ()), *images]}
        return True

    def output(self, reward: float, info: Mapping[str, float]) -> AgentLoopOutput:
        if not self.mask:  # its environment didn't start: verl takes no empty response
            self.ids, self.mask = [*self.ids, self.loop.tokenizer.eos_token_id], [0]
            self.logprobs = [0.0] if self.sampling.get("logprobs") else None
        split = len(self.ids) - len(self.mask)
        return AgentLoopOutput(
            prompt_ids=self.ids[:split],
            response_ids=self.ids[split:][: self.room],
            response_mask=self.mask[: self.room],
            response_logprobs=self.logprobs[: self.room] if self.logprobs else None,
            multi_modal_data=self.media,
            reward_score=reward,
            num_turns=self.turns,
            metrics=AgentLoopMetrics(**self.metrics),
            extra_fields={**self.extra, "turn_scores": [], "tool_rewards": [], "reward_extra_info": dict(info)},
        )


def _filled(message: Mapping[str, Any]) -> dict[str, Any]:
    """An environment's message with decoded images, as verl's processors take them."""
    from mmrl.api.media.images import load_image

    def part(p: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "image", "image": load_image(p["image"])} if p["type"] == "image" else dict(p)

    content = message["content"]
    return {"role": message["role"], "content": content if isinstance(content, str) else [part(p) for p in content]}
