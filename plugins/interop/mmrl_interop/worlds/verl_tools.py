"""The tools of verl's `tool_config_path`, in a process of `child`. Imports only the standard library, and what the file names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from mmrl_interop.worlds.child import Refused, loaded


class VerlTools:
    """A source of tools, see `tools.Source`."""

    def __init__(self, path: str) -> None:
        """path: of a list `tools` with `class_name`, `config` and `tool_schema`."""
        self.made = _made(path)
        self.schemas = [tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in self.made.values()]

    def begin(self, session: Any) -> EpisodeTools:
        return EpisodeTools(self.made, session)


class EpisodeTools:
    """The tools in an episode."""

    def __init__(self, made: dict[str, Any], session: Any) -> None:
        """session: the episode, with its row's `columns`, its `prompt`, and the `messages` after it."""
        self.made, self.session = made, session
        self.kept = SimpleNamespace(request_id=uuid4().hex, extra_fields={}, metrics={}, tool_rewards=[], turn_scores=[])
        """What tools know of the episode, and keep there."""

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[Any, float]:
        """(the response, its reward). A tool is created and released for each call."""
        tool = self.made[name]
        asked = (self.session.columns.get("tools_kwargs") or {}).get(name) or {}
        number, _ = await tool.create(create_kwargs=asked.get("create_kwargs", {}))
        try:
            response, reward, _ = await tool.execute(number, arguments, agent_data=self._agent_data())
        finally:
            await tool.release(number)
        return response, float(reward or 0.0)

    async def close(self) -> None:
        pass

    def _agent_data(self) -> SimpleNamespace:
        """`agent_data` of verl: what was said, and the pictures so far."""
        columns, messages = self.session.columns, self.session.messages
        parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
        pictures = [*columns.get("images", []), *(part["image"] for part in parts if part["type"] == "image")]
        self.kept.messages, self.kept.image_data = [*self.session.prompt, *messages], pictures or None
        self.kept.assistant_turns = sum(message["role"] == "assistant" for message in messages)
        self.kept.user_turns, self.kept.video_data = self.kept.assistant_turns - 1, None
        self.kept.tools_kwargs = columns.get("tools_kwargs") or {}
        return self.kept


def _made(path: str) -> dict[str, Any]:
    """The tools of the file, by their names."""
    try:
        import yaml
        from verl.tools.schemas import OpenAIFunctionToolSchema
    except ModuleNotFoundError as error:
        raise Refused(f"{path} needs {error.name}: set the option python to an interpreter that has verl") from None
    made = {}
    try:
        with open(path, encoding="utf-8") as file:
            listed = yaml.safe_load(file)["tools"]
        for one in listed:
            module, _, name = one["class_name"].rpartition(".")
            given = one.get("tool_schema")
            tool = loaded(f"{module}:{name}")(
                config=dict(one.get("config") or {}), tool_schema=given and OpenAIFunctionToolSchema.model_validate(given)
            )
            made[tool.name] = tool
    except Refused:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        raise Refused(f"{path} gives no tools ({type(error).__name__}: {why}): correct it") from error
    return made
