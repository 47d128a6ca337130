"""Tasksets and environments of verifiers 0.4 in a process, see `child`: verifiers plays the episode, and asks mmrl's policy where
it would ask a model. Imports only the standard library, and verifiers when it is used."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import math
import sys
import types
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mmrl_interop.worlds.child import Refused

CURE = 'pip install "verifiers>=0.4,<0.5", or set the option python to an interpreter that has it'
HERE = "http://policy.mmrl"
"""The address of the client that stands for mmrl's policy."""
HARNESS = "mmrl_chat_harness"
"""The module by whose name verifiers finds the harness below."""


class Worlds:
    """A taskset, with the environment that plays it. Its facts are the keys of the tasks of each split."""

    def __init__(
        self, taskset: str, config: dict[str, Any], test_config: dict[str, Any] | None, env: dict[str, Any], num_tasks: int
    ) -> None:
        """taskset: its id. config: of the taskset, under `--env.taskset`. test_config: what differs for the split test; None if
        it has no split of its own. env: of the environment, under `--env`, with its `id`. num_tasks: the most that are read."""
        self.vf = _imported()
        self.loop, self.episodes = asyncio.new_event_loop(), dict[str, Session]()
        _put_in_place(self)
        configs = {"train": config} | ({} if test_config is None else {"test": {**config, **test_config}})
        self.envs, self.tasks = dict[str, Any](), dict[str, list[Any]]()
        for split, own in configs.items():
            made = self._made(taskset, own, env)
            self.envs[split], self.tasks[split] = made, list(itertools.islice(made.taskset, num_tasks))
            self.loop.run_until_complete(made.serving().__aenter__())
        keys = {split: [str(task.data.id or task.key) for task in tasks] for split, tasks in self.tasks.items()}
        self.facts = {"keys": keys}

    def open(self) -> Session:
        return Session(self)

    def _made(self, taskset: str, config: dict[str, Any], env: dict[str, Any]) -> Any:
        """The environment. Every agent whose client isn't set is mmrl's policy."""
        try:
            roles = self.vf.env_config_type(taskset, env.get("id", "")).model_fields
            whole: dict[str, Any] = {**env, "taskset": {**config, "id": taskset}}
            for role, field in roles.items():
                if isinstance(field.default, self.vf.AgentConfig):
                    own = dict(env.get(role, {}))
                    chat = {} if own.get("client") else {"harness": {"id": HARNESS}}
                    whole[role] = {**chat, "runtime": {"type": "subprocess"}, **own}
            return self.vf.load_environment(self.vf.resolve_env_config(whole))
        except (Exception, SystemExit) as error:
            why = " ".join(str(error).split())[:300]
            raise Refused(f"taskset {taskset!r} can't be made ({type(error).__name__}: {why})") from error


class Session:
    """One episode, which verifiers plays in the background until it asks the policy."""

    def __init__(self, worlds: Worlds) -> None:
        self.worlds, self.loop, self.traces = worlds, worlds.loop, list[Any]()
        self.asked: asyncio.Queue[list[Any]] = asyncio.Queue()
        self.answers: asyncio.Queue[str] = asyncio.Queue()
        self.history: list[Any] = []
        self.playing: asyncio.Task[Any] | None = None

    def start(self, split: str, index: int) -> dict[str, Any]:
        vf, env = self.worlds.vf, self.worlds.envs[split]
        client = vf.EvalClientConfig(base_url=HERE, api_key_var="MMRL")
        context = vf.ModelContext(model="mmrl", client=client)
        episode = env.run_episode(self.worlds.tasks[split][index], context, on_trace=self._begins)
        self.playing = self.loop.create_task(episode)
        messages = self.loop.run_until_complete(self._next())
        if messages is None:
            self._ended()
            raise ValueError("the episode ended before it asked the policy")
        return {"messages": self._new(messages)}

    def step(self, completion: str) -> dict[str, Any]:
        self.history.append({"role": "assistant", "content": completion})
        self.answers.put_nowait(completion)
        messages = self.loop.run_until_complete(self._next())
        if messages is None:
            reward, outcome = self._ended()
            return {"reward": reward, "terminated": True, "outcome": outcome}
        return {"reward": 0.0, "terminated": False, "outcome": {}, "messages": self._new(messages)}

    async def ask(self, messages: list[Any]) -> str:
        """The policy's answer."""
        self.asked.put_nowait(messages)
        return await self.answers.get()

    def close(self) -> None:
        for trace in self.traces:
            self.worlds.episodes.pop(trace.id, None)
        if self.playing is not None and not self.playing.done():
            self.playing.cancel()
            self.loop.run_until_complete(asyncio.wait([self.playing]))

    def _begins(self, trace: Any) -> None:
        self.traces.append(trace)
        self.worlds.episodes[trace.id] = self

    async def _next(self) -> list[Any] | None:
        """The messages of the next call of the model; None if the episode ended."""
        assert self.playing is not None
        asked = asyncio.ensure_future(self.asked.get())
        await asyncio.wait({asked, self.playing}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        asked.cancel()
        return None

    def _new(self, messages: list[Any]) -> list[dict[str, Any]]:
        """What the policy hasn't read. Raises ValueError if that isn't all that is different."""
        known = len(self.history)
        said = [(m["role"], m.get("content")) for m in self.history]
        if [(m.get("role"), m.get("content")) for m in messages[:known]] != said or len(messages) == known:
            raise ValueError("a call of the model doesn't go on with the conversation: set a client for all agents but one")
        self.history = list(messages)
        return [{"role": m.get("role"), "content": m.get("content")} for m in messages[known:]]

    def _ended(self) -> tuple[float, dict[str, float]]:
        """The reward of the policy's part, and each reward and metric. Raises ValueError for one that is missing."""
        assert self.playing is not None
        episode = self.playing.result()
        played = [trace for trace in episode.traces if self.worlds.episodes.get(trace.id) is self and _is_policy(trace)]
        for error in [*(error for trace in episode.traces for error in trace.errors), *episode.errors]:
            raise ValueError(f"{error.type}: {' '.join(error.message.split())[:300]}")
        missing = [name for trace in played for name, reward in trace.rewards.items() if reward is None]
        if missing or not played:
            raise ValueError(f"there is no reward {', '.join(missing) or 'of the policy'}: scoring didn't end in its time")
        metrics = {name: value for trace in played for name, value in trace.metrics.items() if value is not None}
        scores = {name: reward.score for trace in played for name, reward in trace.rewards.items()}
        known = {name: value for name, value in {**metrics, **scores}.items() if math.isfinite(value)}
        return sum(trace.reward for trace in played), known


def _is_policy(trace: Any) -> bool:
    return trace.agent is None or trace.agent.config.client is None or trace.agent.config.client.base_url == HERE


def _imported() -> Any:
    """verifiers.v1. Raises Refused if it is missing or of another version."""
    try:
        found = version("verifiers")
    except PackageNotFoundError:
        raise Refused(f"verifiers is not installed: {CURE}") from None
    if found.split(".")[:2] != ["0", "4"]:
        raise Refused(f"it works with verifiers >=0.4,<0.5, and {found} is installed: {CURE}")
    return importlib.import_module("verifiers.v1")


def _put_in_place(worlds: Worlds) -> None:
    """Give verifiers a client that asks mmrl's policy, and a harness that is a plain chat in this process."""
    import httpx
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.interception import server

    vf = worlds.vf

    class Policy(vf.Client):  # type: ignore[name-defined, misc]
        """The policy, as the client of a model."""

        async def get_response(self, dialect: Any, body: Any, sampling: Any, session_id: Any = None, **more: Any) -> Any:
            text = await worlds.episodes[session_id].ask(body["messages"])
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            raw = {"id": "mmrl", "object": "chat.completion", "created": 0, "model": "mmrl", "choices": [choice]}
            response = dialect.parse_response(dialect.validate_response(raw))
            response.raw = raw
            return response

    class Chat(vf.Harness[vf.HarnessConfig]):  # type: ignore[name-defined, misc]
        """Asks the model once a turn, without tools."""

        APPENDS_SYSTEM_PROMPT, SUPPORTS_RESUME, EXECUTES_CODE, NEEDS_CONTAINER = True, True, False, False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any, **more: Any
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            told = [{"role": "system", "content": system}] if system else []
            shown = (
                [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [message_to_wire(m) for m in prompt or []]
            )
            async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
                reply = await client.post(
                    f"{endpoint}/chat/completions",
                    json={"model": ctx.model, "messages": [*told, *shown]},
                    headers={"Authorization": f"Bearer {secret}"},
                )
            return vf.ProgramResult(int(reply.is_error), "", reply.text[-2000:] if reply.is_error else "")

    module = types.ModuleType(HARNESS)
    module.__all__, module.Chat = ["Chat"], Chat  # type: ignore[attr-defined]
    sys.modules[HARNESS] = module
    resolve = server.resolve_client
    server.resolve_client = lambda config: Policy() if config.base_url == HERE else resolve(config)
