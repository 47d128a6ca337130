"""An OpenEnv server as a task: its prompts come from the server's Task API, and its own rewards count."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from mmrl import Environment, EnvironmentFailed, Prompt, Task, UserError
from mmrl.api.errors import is_finite, shorten
from mmrl.api.tasks.option_checks import LazyPrompts, check_integer
from mmrl_interop.openenv import OpenEnvEnvironment

MAX_REPLY = 2**20
"""Largest number of bytes of a reply of the Task API."""


class OpenEnvTask(Task):
    """Episodes on an OpenEnv server. The reward is the server's; evaluations report `interop/return`."""

    def __init__(self, base_url: str, action_key: str = "text", timeout_s: float = 60.0, max_prompts: int | None = None) -> None:
        """base_url: such as http://localhost:8000. action_key: the field of an action that gets the completion. timeout_s:
        seconds that the server has for each reply. max_prompts: use only so many of a split."""
        if urlsplit(base_url).scheme not in ("http", "https") or not urlsplit(base_url).hostname:
            raise UserError(f"base_url = {base_url!r:.100} is no address: write one such as http://localhost:8000")
        if not is_finite(timeout_s) or timeout_s <= 0:
            raise UserError(f"timeout_s = {timeout_s!r:.40} must be a number above 0")
        if max_prompts is not None:
            check_integer("max_prompts", max_prompts, 1)
        self.base_url, self.action_key, self.timeout_s = base_url.rstrip("/"), action_key, timeout_s
        self.max_prompts = max_prompts
        names = self._asked("list_environments")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise UserError(f"{base_url} is no OpenEnv server with a Task API: it lists {names!r:.60} as environments")
        self.name = names[0]
        found = self._asked(f"{quote(self.name, safe='')}/splits")
        listed = [s.get("name") for s in found if isinstance(s, dict)] if isinstance(found, list) else []
        splits = tuple(name for name in listed if isinstance(name, str))
        if not splits:
            raise UserError(f"{base_url}: environment {self.name!r} lists no splits: {found!r:.60}")
        self.splits = splits  # type: ignore[misc]

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        """A prompt for each of the server's tasks; what it shows is asked for when the prompt is read."""
        reply = self._asked(f"{quote(self.name, safe='')}/num_tasks", {"split": split})
        count = reply.get("num_tasks") if isinstance(reply, dict) else None
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise UserError(f"{self.base_url}: the number of tasks of split {split!r} is {reply!r:.60}")
        return LazyPrompts(range(min(count, self.max_prompts or count)), lambda index: self._prompt(split, index))

    def environment(self, prompt: Prompt) -> Environment:
        """A new session, reset to the prompt's task. Raises EnvironmentFailed if the server fails."""
        return self._session(prompt.meta["split"], prompt.meta["index"])

    def _prompt(self, split: str, index: int) -> Prompt:
        try:
            session = self._session(split, index)
        except EnvironmentFailed as error:
            raise UserError(f"task {index} of split {split!r}: {error}") from error
        session.close()
        return Prompt(id=f"{split}-{index}", messages=session.messages, meta={"split": split, "index": index})

    def _session(self, split: str, index: int) -> OpenEnvEnvironment:
        return OpenEnvEnvironment(self.base_url, action_key=self.action_key, timeout_s=self.timeout_s, split=split, index=index)

    def _asked(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON of a reply of the Task API. Raises UserError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.base_url}/{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as reply:
                content = reply.read(MAX_REPLY + 1)
        except (OSError, ValueError) as error:  # HTTPError and URLError are OSErrors
            raise UserError(f"{self.base_url}/{path}: {shorten(error, 200) or type(error).__name__}") from error
        if len(content) > MAX_REPLY:
            raise UserError(f"{self.base_url}/{path}: the reply is longer than {MAX_REPLY:,} bytes")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise UserError(f"{self.base_url}/{path}: the reply is no JSON: {content[:40]!r}") from None


def total(case: Any) -> float:
    """The sum of the server's rewards in the episode."""
    return float(case.outcome["return"])
