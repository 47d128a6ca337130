"""OpenEnv, both ways: a task served over HTTP and WebSocket, and an OpenEnv environment as an environment of a task.

A session plays an episode: `reset(split=, index=)` shows a prompt, `step({"text": ...})` answers it. The observation has the
messages that the policy reads next, in OpenAI's form with images as data URLs, and at the end the judge's score as `reward`, with
what the task's own environment gave; before the end there is none, so the sum over steps is the score, too. A score that is
missing (a verifier or an environment failed) is `reward` None with `metadata["missing"]`; it is never 0.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Any

from mmrl import EnvironmentFailed, OpenTask, Reply, UserError
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.errors import is_finite, shorten
from mmrl.api.serving import Prompts
from mmrl.api.types import Prompt, Score
from mmrl_interop.observations import messages_of
from mmrl_interop.peers import peer

VERSIONS = ">=0.10,<0.11"
MAX_PREVIEW = 100
"""Largest number of tasks that `list_tasks` describes."""


def app(task: OpenTask, *, max_sessions: int = 64, max_turns: int = 8) -> Any:
    """The ASGI application that serves a task: `uvicorn.run(app(task))`. `OpenTask` stays the caller's. Raises UserError for a
    task that acts in a simulator."""
    if task.acts:
        raise UserError(f"task {task.id!r} acts in a simulator: serve it with to_gymnasium instead")
    server = peer("openenv.core.env_server", VERSIONS, "mmrl serve", "openenv")
    action, observation = _messages(server)
    environment = _environment(server, task, max_turns, observation)
    name = task.id.replace("/", "-")
    return server.create_fastapi_app(environment, action, observation, max_concurrent_envs=max_sessions, env_name=name)


def run(served: Any, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until a signal. ready: is called with the address. Raises UserError if the port is taken."""
    uvicorn = peer("uvicorn", "", "mmrl serve")
    with contextlib.closing(socket.socket()) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            raise UserError(f"can't listen on {host}:{port}: {error.strerror or error}: choose another --port") from error
        ready(f"http://{host}:{listening.getsockname()[1]}")
        uvicorn.Server(uvicorn.Config(served, log_level="warning")).run(sockets=[listening])


def _messages(server: Any) -> tuple[Any, Any]:
    """(action, observation): OpenEnv's classes of what goes over the wire."""

    class Completion(server.Action):  # type: ignore[name-defined, misc]
        """What the policy wrote."""

        text: str
        tokens: int | None = None

    class Turn(server.Observation):  # type: ignore[name-defined, misc]
        """What the policy reads next; at the end the score."""

        messages: list[dict[str, Any]] = []
        prompt_id: str = ""
        parts: dict[str, float] = {}
        status: str = ""
        detail: str = ""

    return Completion, Turn


def _environment(server: Any, task: OpenTask, max_turns: int, observation: Any) -> Any:
    """OpenEnv's class of a task's sessions."""
    encode, splits = ChatEncoder(), {split: task.prompts(split, answers=False) for split in task.splits}

    class TaskEnvironment(server.Environment):  # type: ignore[name-defined, misc]
        """One session: an episode of the task at a time."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.episode: Any = None
            self._state = server.State()

        def list_splits(self) -> list[str]:
            return list(task.splits)

        def num_tasks(self, split: str) -> int:
            return len(_split(splits, split))

        def list_tasks(self, split: str) -> list[dict[str, Any]]:
            return [self.get_task(split, index) for index in range(min(MAX_PREVIEW, self.num_tasks(split)))]

        def get_task(self, split: str, index: int) -> dict[str, Any]:
            prompts = _split(splits, split)
            if not 0 <= index < len(prompts):
                raise IndexError(f"split {split!r} has tasks 0 to {len(prompts) - 1}, not {index}")
            return {"id": prompts[index].id, "index": index}

        def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Any:
            """split, index: the prompt to play; without `index`, `seed` picks one."""
            split = options.get("split") or task.splits[0]
            prompts = _split(splits, split)
            index = options.get("index")
            number = (seed or 0) % len(prompts) if index is None else int(index)
            prompt: Prompt = prompts[number] if self.get_task(split, number) else prompts[0]
            self.close()
            self.episode = task.episode(prompt, max_turns=max_turns)
            self._state = server.State(episode_id=episode_id or prompt.id, step_count=0)
            return observation(messages=encode(self.episode.messages)[0], prompt_id=prompt.id)

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            episode = self.episode
            if episode is None:
                raise ValueError("there is no episode: reset first")
            reply = episode.step(action.text, action.tokens)
            self._state.step_count += 1
            if not episode.done:
                shown = encode(reply.messages)[0]
                return observation(messages=shown, prompt_id=episode.prompt.id)  # what the turn earned is in the score
            score: Score = episode.score()
            missing = {"missing": score.detail or episode.failure} if score.value is None else {}
            return observation(
                done=True,
                reward=score.value,
                messages=encode(reply.messages)[0],
                prompt_id=episode.prompt.id,
                parts=dict(score.parts),
                status=str(episode.status),
                detail=score.detail,
                metadata=missing,
            )

        def close(self) -> None:
            if self.episode is not None:
                self.episode.close()
                self.episode = None

        @property
        def state(self) -> Any:
            return self._state

        def get_metadata(self) -> Any:
            meta = peer("openenv.core.env_server.types", VERSIONS, "mmrl serve", "openenv").EnvironmentMetadata
            summary = (type(task.task).__doc__ or "").partition("\n")[0]
            return meta(name=task.id, description=f"{summary} Verified by {', '.join(task.verifiers)}.", version="1.0.0")

    return TaskEnvironment


def _split(splits: Mapping[str, Prompts], split: str) -> Prompts:
    if split not in splits:
        raise ValueError(f"there is no split {split!r}: choose one of {', '.join(splits)}")
    return splits[split]


class OpenEnvEnvironment:
    """A session with an OpenEnv server as a `mmrl.Environment`: each turn is a step.

    The server is untrusted. A server that dies, stalls, sends too much, or sends what is no observation loses the episode, which
    is counted and left out.
    """

    waits = True

    def __init__(
        self, base_url: str, *, action_key: str = "text", timeout_s: float = 60.0, max_bytes: int = 32 * 2**20, **reset: Any
    ) -> None:
        """action_key: the field of the action that gets the completion. timeout_s: seconds that a message may take. reset:
        arguments of the server's reset, such as split and index. Raises EnvironmentFailed if the server can't be reached."""
        client = peer("openenv", VERSIONS, "an OpenEnv environment").GenericEnvClient
        self.action_key, self._total = action_key, 0.0
        try:
            self._client = client(base_url=base_url, message_timeout_s=timeout_s, max_message_size_mb=max_bytes / 2**20).sync()
            self._client.connect()
            self.messages = messages_of(self._client.reset(**reset).observation)
        except Exception as error:
            self.close()
            raise EnvironmentFailed(f"{base_url}: {type(error).__name__}: {shorten(error, 200)}") from error

    def step(self, completion: str) -> Reply:
        """Raises EnvironmentFailed if the server fails."""
        try:
            found = self._client.step({self.action_key: completion})
            messages = [] if found.done else messages_of(found.observation)
        except Exception as error:
            raise EnvironmentFailed(f"{type(error).__name__}: {shorten(error, 200)}") from error
        reward = 0.0 if found.reward is None else found.reward
        if not is_finite(float(reward) if isinstance(reward, bool) else reward):
            raise EnvironmentFailed(f"the server's reward is {found.reward!r:.40} and no number")
        self._total += float(reward)
        return Reply(messages=messages, reward=float(reward), terminated=bool(found.done), outcome={"return": self._total})

    def close(self) -> None:
        """End the session; may be called twice."""
        client, self._client = getattr(self, "_client", None), None
        if client is not None:
            client.close()
