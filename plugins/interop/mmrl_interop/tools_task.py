"""Functions and environments that were written for TRL's `tools`, `environment_factory` and `reward_funcs`, or as verl's tools,
as a task: they run in processes of their own, unchanged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrl import EnvironmentFailed, NoGold, Prompt, Reply, Task, UserError
from mmrl.api.errors import is_finite
from mmrl.api.media.images import load_image
from mmrl.api.seeds import derive
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_integer, check_split, check_type
from mmrl.api.tasks.quoting import quoted
from mmrl.api.verifiers import tool_calls
from mmrl.api.verifiers.parse import thought
from mmrl_interop.functions import check_function
from mmrl_interop.mcp_option import checked_servers
from mmrl_interop.observations import messages_of
from mmrl_interop.table_task import TableTask
from mmrl_interop.worlds.child import picture, to_json
from mmrl_interop.worlds.processes import Session, WorldProcesses
from mmrl_interop.worlds.task import World, check_worlds, seeds
from mmrl_interop.worlds.tools import LONGEST

SCHEMAS = ("text", "template")
SIDES = ("left", "middle", "right")
CALL_SHARE = 0.8
"""Share of the seconds of a turn that a call of an MCP server may take, so that the model can be told."""
NAMED = '"tools.py:search"'
BEGINNING = "_begun"
"""Key of `Prompt.meta` with what the prompt was before `reset`; rewards don't get what begins with an underscore."""


class Rows(TableTask):
    """The rows of environments, which may say themselves what is to be done: as in TRL they need no prompt."""

    needs_prompt = False


class ToolsTask(Task):
    """The rows of a table, which `interop/table` reads too, or episodes that the environment begins itself. A turn without a call
    ends the episode. Rewards are those of `get_reward` and of `reward_funcs`, which see the environment and the whole
    conversation; verifiers are added."""

    def __init__(
        self,
        path: str | None = None,
        tools: Sequence[str] = (),
        environment_factory: str | Mapping[str, str] | None = None,
        reward_funcs: str | Sequence[str] | Mapping[str, float] = (),
        tool_config_path: str | None = None,
        mcp_servers: str | Mapping[str, Any] | None = None,
        max_tool_response_length: int | None = None,
        tool_response_truncate_side: str = "middle",
        form: str = "hermes",
        schemas: str = "text",
        table: Mapping[str, Any] | None = None,
        train: int = 10_000,
        test: int = 200,
        python: str | None = None,
        variables: Mapping[str, str] | None = None,
        processes: int = 2,
        timeout_s: float = 60.0,
    ) -> None:
        """path: of the table. Functions and classes are path.py:name or package.module:name. tools: functions with types and a
        docstring in Google's form; they may be async. environment_factory: a class or function without arguments, which makes
        an object with `reset(**columns)` whose other public methods are tools; or a table of several, of which a row's column
        `environment` names its own. reward_funcs: of TRL, with weights as a table. tool_config_path: verl's file of tools.
        mcp_servers: servers of the Model Context Protocol, see `mmrl_interop.mcp_option`.
        max_tool_response_length, tool_response_truncate_side: how many characters of a result are told, by default all, and where
        the others are cut out: left, middle, right, as in verl's `multi_turn`. form: how calls are written: hermes, qwen-xml,
        json. schemas: where they are shown: text (before the question), template (by the model's chat template). table: more
        options of `interop/table`. train, test: numbers of episodes without a table. python: another interpreter, without mmrl.
        variables: of its environment. processes: how many at most, and one plays many episodes. timeout_s: seconds of a turn's
        calls."""
        check_choice("form", form, tool_calls.FORMS)
        check_choice("schemas", schemas, SCHEMAS)
        check_choice("tool_response_truncate_side", tool_response_truncate_side, SIDES)
        if max_tool_response_length is not None:
            check_integer("max_tool_response_length", max_tool_response_length, 1, LONGEST)
        self.form, self.schemas = form, schemas
        named = _names("tools", tools)
        self.factories = _factories(environment_factory)
        rewards = _weights(reward_funcs)
        servers = checked_servers(mcp_servers)
        if not (named or self.factories or tool_config_path or servers):
            raise UserError(f"nothing can be called: set tools = [{NAMED}], environment_factory, tool_config_path or mcp_servers")
        if path is None and not self.factories:
            raise UserError('there are no prompts: set path = "rows.jsonl", or an environment_factory that shows what to do')
        if path is None and "" not in self.factories:
            raise UserError("several environments need a table whose column environment names that of each row: set path")
        if tool_config_path is not None and not Path(tool_config_path).is_file():
            raise UserError(f"tool_config_path = {tool_config_path!r:.100} does not exist: give verl's file of tools")
        check_worlds(timeout_s, train=train, test=test)
        self.sizes = {"train": train, "test": test}
        check_type("table", table or {}, Mapping, '{form = "verl"}')
        rows = Rows if self.factories else TableTask
        self.table = rows(path=path, **(table or {})) if path is not None else None
        if self.table:
            self.splits = self.table.splits  # type: ignore[misc]
        self.worlds = WorldProcesses(
            "tools",
            "mmrl_interop.worlds.tools:Worlds",
            {
                "tools": [_absolute(name) for name in named],
                "environments": {name: _absolute(factory) for name, factory in self.factories.items()},
                "rewards": {_absolute(name): weight for name, weight in rewards.items()},
                "tool_config": tool_config_path and str(Path(tool_config_path).absolute()),
                "most": max_tool_response_length,
                "side": tool_response_truncate_side,
                "servers": servers,
                "seconds": CALL_SHARE * timeout_s,
            },
            python=python,
            processes=processes,
            environment=dict(variables or {}),
            timeout_s=timeout_s,
            guard=bool(servers),  # what they start ends with them
        )
        self.rewards, self.has_tool_rewards = rewards, tool_config_path is not None

    @property
    def scored_by(self) -> str:
        return "" if self.rewards or self.factories else "interop/answer"

    def check_verifiers(self, verifiers: Collection[str]) -> None:
        if set(verifiers) <= {"interop/return"} and not self.worlds.facts["pays"]:
            raise UserError(
                "nothing is paid: set reward_funcs, give each environment a get_reward, "
                'or set verifiers, such as {"interop/answer" = 1.0}'
            )

    def prompts(self, split: str, seed: int) -> Sequence[Prompt]:
        check_split(split, self.splits)
        if self.table is None:
            known = seeds(split, self.sizes["train"], self.sizes["test"])
            own = Prompt(messages=[], meta={})
            return LazyPrompts(known, lambda number: self._begun(replace(own, id=f"{split}-{number}")))
        rows = self.table.prompts(split, seed)
        return LazyPrompts(range(len(rows)), lambda index: self._begun(rows[index]))

    def gold(self, prompt: Prompt) -> str:
        raise NoGold("no row says which tools are to be called")

    def environment(self, prompt: Prompt) -> ToolEpisode:
        return ToolEpisode(self, prompt)

    def start(self, prompt: Prompt) -> dict[str, Any]:
        """The arguments of a session's `start`. Raises UserError for columns that no process can be given."""
        columns = {name: value for name, value in prompt.meta.items() if name != BEGINNING}
        name = self._environment_of(columns)
        if self._several:
            columns.pop("environment", None)
        begun = prompt.meta[BEGINNING]
        columns |= {"prompt": begun["prompt"]} if any(message["content"] for message in begun["prompt"]) else {}
        for column, value in columns.items():
            try:
                columns[column] = to_json(value)
            except (TypeError, RecursionError) as error:
                raise UserError(f"column {column} can't be given to tools ({error}): leave it out") from None
        images = [picture(load_image(image)) for image in prompt.images[: begun["images"]]]
        return {"columns": columns, "images": images, "seed": derive(0, prompt.id), "environment": name}

    def _begun(self, row: Prompt) -> Prompt:
        """A row as the prompt that the policy reads: what `reset` shows stands behind its last message, and the schemas of the
        tools before the first of the user, or in the chat template."""
        plain = [{"role": m["role"], "content": _without_media(m["content"])} for m in row.messages]
        beginning: dict[str, Any] = {"prompt": plain, "images": len(row.images), "shown": ""}
        prompt = replace(row, meta={**row.meta, BEGINNING: beginning})
        parts = self._shown(prompt) if self.factories else []
        beginning["shown"] = _text(parts)
        messages = [{**m, "content": _parts(m["content"])} for m in row.messages] or [{"role": "user", "content": []}]
        messages[-1]["content"] += parts
        if not messages[-1]["content"]:
            raise UserError(f"{row.id}: reset shows nothing, and there is no prompt: return what is to be done")
        schemas = self._schemas(row)
        if self.schemas == "template":
            return replace(prompt, messages=messages, tools=tuple(schemas))
        first = next((n for n, message in enumerate(messages) if message["role"] == "user"), 0)
        told = {"type": "text", "text": f"{tool_calls.instructions(schemas, self.form)}\n\n"}
        messages[first]["content"] = [told, *messages[first]["content"]]
        return replace(prompt, messages=messages)

    def _shown(self, prompt: Prompt) -> list[dict[str, Any]]:
        session = None
        try:
            session = self.worlds.open()
            return shown_by(session, self.start(prompt))
        except (EnvironmentFailed, ValueError) as error:
            raise UserError(f"{prompt.id} can't be shown: {error}") from error
        finally:
            if session is not None:
                session.close()

    def _schemas(self, row: Prompt) -> list[dict[str, Any]]:
        """The schemas of a row's tools: those that it selects, as in verl, and what its environment has. Raises UserError for a
        selection that can't be."""
        facts = self.worlds.facts
        known = {schema["function"]["name"]: schema for schema in facts["schemas"][self._environment_of(row.meta)]}
        selected = row.meta.get("tool_selection")
        if not selected:
            return [*known.values()]
        if not isinstance(selected, list) or not all(isinstance(name, str) for name in selected):
            raise UserError(f"tool_selection is {selected!r:.60} and no list of names of tools: correct the row")
        if lost := [name for name in selected if name not in facts["selectable"]]:
            there = ", ".join(facts["selectable"])
            raise UserError(f"tool_selection has {lost[0]!r:.60}, and the tools are {there}: correct the row, or add the tool")
        own = [name for name in known if name not in facts["selectable"]]
        return [known[name] for name in dict.fromkeys([*selected, *own])]

    def _environment_of(self, columns: Mapping[str, Any]) -> str:
        return str(columns.get("environment", "")) if self._several else ""

    @property
    def _several(self) -> bool:
        """Whether each row names its environment."""
        return bool(self.factories) and "" not in self.factories


class ToolEpisode(World):
    """One episode. Its outcome has each reward by its name, `return`, their weighted sum, `calls`, `failed`, the calls that
    failed, and with verl's tools `tool_reward`, the sum of what they gave."""

    def __init__(self, task: ToolsTask, prompt: Prompt) -> None:
        super().__init__(task.worlds, prompt)
        self.task = task
        self.used = self.failed = 0
        self.tool_reward = 0.0

    def step(self, completion: str) -> Reply:
        """Carry out the calls of a turn. An error of a call is its result, as in TRL. Raises EnvironmentFailed if `reset` or a
        reward raises, or what they run in hangs or dies."""
        thinking, said = thought(completion)
        said = said if said.strip() else completion  # some models call tools within their thinking
        try:
            calls = tool_calls.read(said, self.task.form)
        except tool_calls.CallError as error:
            self.used, self.failed = self.used + 1, self.failed + 1
            why = str({"error": str(error)})
            self._started().call("say", messages=[_assistant(thinking, said, []), {"role": "tool", "name": "", "content": why}])
            return self._told([{"name": "", "parts": [{"type": "text", "text": why}]}])
        message = _assistant(thinking, said, calls)
        if not calls:
            return self._ended(message, terminated=True)
        results = self._started().call("use", message=message, calls=[call._asdict() for call in calls])
        results = [self._checked(number - len(results), result) for number, result in enumerate(results)]
        self.used += len(results)
        self.failed += sum(result["failed"] for result in results)
        self.tool_reward += sum(result["reward"] for result in results)
        return self._told(results)

    def truncate(self) -> Reply:
        return self._ended(None, terminated=False)

    def _ended(self, message: Mapping[str, Any] | None, terminated: bool) -> Reply:
        """The reply to the end of an episode, with its rewards. message: the last turn, unless it is known."""
        pays = self.task.rewards or self.task.factories
        found: Any = self._started().call("finish", message=message) if pays else {"reward": 0.0, "outcome": {}}
        reward = float(found["reward"])
        return Reply(terminated=terminated, reward=reward, outcome={**self._outcome(), **found["outcome"], "return": reward})

    def _checked(self, number: int, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a call gave; where that can't be shown, such as a picture without pixels, why. number: of its message, from the
        end."""
        try:
            _read(result)
        except (ValueError, UserError) as error:
            why = str({"error": str(error)})
            self._started().call("correct", number=number, content=why)
            return {**result, "parts": [{"type": "text", "text": why}], "failed": True}
        return result

    def _told(self, results: Sequence[Mapping[str, Any]]) -> Reply:
        """What calls gave, as messages of the role `tool`, or within the form's tags in one of the user."""
        given = [_read(result) for result in results]
        if self.task.schemas == "template":
            messages = [{**m, "name": r["name"], "content": _quoted(m["content"])} for m, r in zip(given, results, strict=True)]
        else:
            written = [tool_calls.reply_parts(_text(m["content"]), _images(m["content"]), self.task.form) for m in given]
            messages = [{"role": "user", "content": [part for parts in written for part in parts]}]
        return Reply(messages=messages, outcome=self._outcome())

    def _outcome(self) -> dict[str, float]:
        counts = {"calls": float(self.used), "failed": float(self.failed)}
        return counts | ({"tool_reward": self.tool_reward} if self.task.has_tool_rewards else {})

    def _start(self, session: Session) -> None:
        if _text(shown_by(session, self.task.start(self.prompt))) != self.prompt.meta[BEGINNING]["shown"]:
            raise ValueError("reset showed something else than before: what it shows must depend on the row alone")


def shown_by(session: Session, start: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Start a session; returns the parts that `reset` showed. Raises EnvironmentFailed, and ValueError for what is no content."""
    parts = session.call("start", **start)["parts"]
    return [dict(part) for part in messages_of({"messages": [{"role": "user", "content": parts}]})[0]["content"]]


def _read(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a call gave, as a message. Raises ValueError and UserError, as `messages_of` does."""
    return messages_of({"messages": [{"role": "tool", "content": result["parts"]}]})[0]


def _assistant(thinking: str, said: str, calls: Sequence[tool_calls.Call]) -> dict[str, Any]:
    """A turn as TRL's rewards get it: its thinking and its calls stand apart."""
    message: dict[str, Any] = {"role": "assistant", "content": said.partition(tool_calls.OPEN)[0].strip() if calls else said}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = [{"type": "function", "function": call._asdict()} for call in calls]
    return message


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else [dict(part) for part in content]


def _without_media(content: Any) -> Any:
    """Content with places in the stead of media: those are passed as columns."""
    return content if isinstance(content, str) else [p if p["type"] == "text" else {"type": p["type"]} for p in content] or ""


def _quoted(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Parts in whose text nothing stands for a picture or a turn: it may repeat what the policy wrote."""
    return [{**part, "text": quoted(part["text"])} if part["type"] == "text" else dict(part) for part in parts]


def _text(parts: Sequence[Mapping[str, Any]]) -> str:
    return "".join(part["text"] for part in parts if part["type"] == "text")


def _images(parts: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [part["image"] for part in parts if part["type"] == "image"]


# -- options ----------------------------------------------------------------------------------------------------------------


def _names(option: str, given: Any) -> list[str]:
    """Names of functions. Raises UserError for what is no list of them, and for a file that has none of the name."""
    named = [given] if isinstance(given, str) else given
    if not isinstance(named, list | tuple) or not all(isinstance(name, str) for name in named):
        raise UserError(f"{option} = {given!r:.100} must be a list of names such as {NAMED}")
    for name in named:
        check_function(name)
    return [*named]


def _factories(given: Any) -> dict[str, str]:
    """Name of an environment -> its class; the name of the only one is empty."""
    if given is None:
        return {}
    named = {"": given} if isinstance(given, str) else given
    if not isinstance(named, Mapping) or not named or not all(isinstance(name, str) for name in named):
        raise UserError(f'environment_factory = {given!r:.100} must be "game.py:Game", or a table {{game = "game.py:Game"}}')
    _names("environment_factory", [*named.values()])
    return dict(named)


def _weights(given: Any) -> dict[str, float]:
    """Reward function -> weight."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(_names("reward_funcs", given), 1.0)
    _names("reward_funcs", [*given])
    for name, weight in given.items():
        if not is_finite(weight):
            raise UserError(f"reward_funcs: the weight of {name} is {weight!r:.40} and no number")
    return {name: float(weight) for name, weight in given.items()}


def _absolute(name: str) -> str:
    """A name whose file is found from any folder."""
    place, _, own = name.rpartition(":")
    return f"{Path(place).absolute()}:{own}" if place.endswith(".py") else name
