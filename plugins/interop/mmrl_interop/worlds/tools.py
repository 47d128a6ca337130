"""Users' functions and environments in a process, see `child`: `tools`, `environment_factory` and `reward_funcs` of TRL's
`GRPOTrainer`, with tools of other sources beside them. Imports only the standard library, and what the user's files import."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import io
import math
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from mmrl.api.processes.child import load
from mmrl_interop.worlds.child import Lost, Refused, from_json, loaded, picture

OWN = ("reset", "get_reward")
"""Methods of an environment that are no tools."""
MEDIA = ("image", "images")
"""Columns with a row's pictures, which `reset` and rewards get if they take them."""
IMAGE = "data:image/png;base64,"
LONGEST = 1_000_000
"""Largest number of characters of a result: a tokenizer takes seconds for more, and no context holds them."""


class Worlds:
    """Its facts are the schemas of the tools of each environment by its name ("" for the only one), the tools among which rows
    select, and whether anything pays."""

    def __init__(
        self,
        tools: list[str],
        environments: dict[str, str],
        rewards: dict[str, float],
        tool_config: str | None = None,
        most: int | None = None,
        side: str = "middle",
        servers: Mapping[str, Any] | None = None,
        seconds: float = 50.0,
    ) -> None:
        """tools, environments, rewards: `path.py:name` or `package.module:name`, in this order the functions, the class or
        factory of each environment, and the weight of each reward function. tool_config: path of verl's file. most, side: see
        `cut`. servers: name of an MCP server -> where it is, see `mcp_servers.Server`. seconds: of a call of theirs."""
        self.most, self.side = most, side
        self.loop = asyncio.new_event_loop()
        functions = [_function(name) for name in tools]
        self.sources: list[Source] = [Functions({function.__name__: function for function in functions})]
        if tool_config:
            self.sources.append(_beside("verl_tools:VerlTools")(tool_config))
        if servers:
            self.sources.append(self.done(_beside("mcp_servers:begun")(servers, seconds)))
        self.names = [[schema["function"]["name"] for schema in source.schemas] for source in self.sources]
        """Of each source's tools."""
        self.selectable = [name for names in self.names for name in names]
        if len(set(self.selectable)) < len(self.selectable) or len(self.sources[0].schemas) < len(tools):
            raise Refused("two tools have one name: rename one")
        self.rewards = {name: (loaded(name), weight) for name, weight in rewards.items()}
        self.factories = {name: loaded(factory) for name, factory in environments.items()}
        self.free: dict[str, list[Any]] = {name: [_made(factory, name)] for name, factory in self.factories.items()}
        common = [schema for source in self.sources for schema in source.schemas]
        own = {name: Functions(_methods(made[0])).schemas for name, made in self.free.items()}
        for name, schemas in own.items():
            if twice := {schema["function"]["name"] for schema in schemas} & set(self.selectable):
                raise Refused(f"environment {name!r} has a method {min(twice)}, as a tool is called: rename one")
        pays = {name: hasattr(made[0], "get_reward") for name, made in self.free.items()}
        self.facts = {
            "schemas": {name: common + schemas for name, schemas in own.items()} or {"": common},
            "selectable": self.selectable,
            "pays": bool(self.rewards) or (bool(pays) and all(pays.values())),
        }

    def open(self) -> Session:
        return Session(self)

    def done(self, found: Any) -> Any:
        """What a function of the user's returned, after waiting for it if it is async."""
        return self.loop.run_until_complete(found) if inspect.isawaitable(found) else found


class Source(Protocol):
    """Where tools come from."""

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Of its tools, in OpenAI's form."""

    def begin(self, session: Session) -> Tools:
        """Its tools in an episode."""


class Tools(Protocol):
    """The tools of a source in an episode."""

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[Any, float]:
        """(the result, what the tool gives as a reward). Raises what the policy is told, and Lost for what isn't its fault."""

    async def close(self) -> None: ...


class Functions:
    """Functions of the user's, and methods of environments."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self.functions = functions

    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [_schema(function) for function in self.functions.values()]

    def begin(self, session: Session) -> Functions:
        return self

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[Any, float]:
        result = self.functions[name](**arguments)
        return await result if inspect.isawaitable(result) else result, 0.0

    async def close(self) -> None:
        pass


class Session:
    """One episode."""

    def __init__(self, worlds: Worlds) -> None:
        self.worlds, self.name = worlds, ""
        self.environment: Any = None
        self.columns: dict[str, Any] = {}
        self.tools: dict[str, Tools] = {}
        """Those that its row selects, by their names."""
        self.prompt: list[dict[str, Any]] = []
        """The row's, with what `reset` showed behind it, as rewards of TRL get it."""
        self.messages: list[dict[str, Any]] = []
        """What was said after the prompt, as TRL's completions are."""
        self.carrying_out: asyncio.Future[Any] | None = None
        self.whole = False
        """Whether its last call came to an end, so that its environment can be used again."""

    def start(self, columns: dict[str, Any], images: Sequence[str], seed: int, environment: str = "") -> dict[str, Any]:
        """Reset the environment, if there is one. columns: of the row, as `to_json` writes them. images: its pictures, data URLs.
        seed: of the global generators while it is reset, so that every episode of a prompt begins alike. Returns what `reset`
        showed."""
        self.columns, self.name = from_json(columns), environment
        self.columns |= _pictures([_decoded(url) for url in images])
        self.prompt = self.columns.get("prompt") or [{"role": "user", "content": ""}]
        selected = self.columns.get("tool_selection") or self.worlds.selectable
        for names, source in zip(self.worlds.names, self.worlds.sources, strict=True):
            begun = source.begin(self)
            self.tools |= {name: begun for name in names if name in selected}
        if not self.worlds.factories:
            return {"parts": []}
        if environment not in self.worlds.factories:
            known = ", ".join(map(repr, self.worlds.factories))
            raise Refused(f"a row has environment = {environment!r}, and there are {known}: correct the column or the option")
        free = self.worlds.free[environment]
        self.environment = free.pop() if free else _made(self.worlds.factories[environment], environment)
        methods = _methods(self.environment)
        self.tools |= dict.fromkeys(methods, Functions(methods))
        with _seeded(seed):
            shown = self.worlds.done(_call(self.environment.reset, self.columns))
        self.whole = True
        content = _content("" if shown is None else shown)
        self.prompt = [*self.prompt[:-1], {**self.prompt[-1], "content": _joined(self.prompt[-1]["content"], content)}]
        return {"parts": _written(content)}

    def say(self, messages: list[dict[str, Any]]) -> None:
        """Take note of what was said."""
        self.messages += messages

    def correct(self, number: int, content: str) -> None:
        """Take note that something else was said. number: of the message, from the end."""
        self.messages[number]["content"] = content

    def use(self, message: dict[str, Any], calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Carry out the calls of a turn, {name, arguments} each, those of async tools side by side. Returns {name, parts, failed,
        reward} of each, in their order; reward: what verl's tools give."""
        self.whole = False
        self.messages.append(message)

        async def carried_out() -> list[dict[str, Any]]:
            return await asyncio.gather(*(self._carried_out(call["name"], call["arguments"]) for call in calls))

        self.carrying_out = self.worlds.loop.create_task(carried_out())
        results = self.worlds.done(self.carrying_out)
        self.messages += [{"role": "tool", "name": result["name"], "content": result.pop("content")} for result in results]
        self.whole = True
        return results

    def finish(self, message: dict[str, Any] | None) -> dict[str, Any]:
        """The rewards by their names, and their weighted sum. message: the last turn, if it isn't known. A reward of None is left
        out. Raises ValueError where nothing else is left."""
        if message is not None:
            self.messages.append(message)
        environment, found, self.whole = self.environment, dict[str, Any](), False
        if environment is not None and hasattr(environment, "get_reward"):
            found[type(environment).__name__] = (self.worlds.done(environment.get_reward()), 1.0)
        columns: dict[str, Any] = {name: [value] for name, value in self.columns.items()}
        columns |= {"completions": [self.messages], "prompts": [self.prompt], "completion_ids": [None]}
        columns |= {"environments": [environment], "trainer_state": None, "log_extra": _ignore, "log_metric": _ignore}
        for name, (function, weight) in self.worlds.rewards.items():
            values = self.worlds.done(_call(function, columns))
            if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__len__") or len(values) != 1:
                raise ValueError(f"{name} returned {str(values)[:60]!r} and no list of one reward for one completion")
            found[name.rpartition(":")[2]] = (values[0], weight)
        paid = {name: (float(value), weight) for name, (value, weight) in found.items() if value is not None}
        for name, (value, _) in paid.items():
            if not math.isfinite(value):
                raise ValueError(f"{name} returned {value}")
        if found and not paid:
            raise ValueError(f"{' and '.join(found)} returned None: there is no reward")
        self.whole = True
        return {
            "reward": sum(value * weight for value, weight in paid.values()),
            "outcome": {name: value for name, (value, _) in paid.items()},
        }

    def close(self) -> None:
        """The environment is used again, as TRL does: it is made once and reset often."""
        if self.carrying_out is not None:
            self.carrying_out.cancel()
        if self.environment is not None and self.whole:
            self.worlds.free[self.name].append(self.environment)
        self.environment = None
        for begun in set(self.tools.values()):
            self.worlds.done(begun.close())
        self.tools.clear()

    async def _carried_out(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        reward, failed = 0.0, False
        try:
            if name not in self.tools:
                raise ValueError(f"Tool {name} not found.")
            result, reward = await self.tools[name].call(name, arguments)
            content = cut(_content(result), self.worlds.most, self.worlds.side)
            parts = _written(content)
        except Lost:
            raise
        except Exception as error:  # noqa: BLE001  the policy is told, as in TRL and verl
            content, failed = str({"error": str(error)}), True
            parts = _written(content)
        return {"name": name, "content": content, "parts": parts, "failed": failed, "reward": reward}


def _content(result: Any) -> Any:
    """What a tool gives, as the content of a message: a list of parts as in TRL, a response of verl with text and images, or
    anything else as a text."""
    if isinstance(result, tuple) and result and hasattr(result[0], "text"):  # of verl's functions, with a reward
        result = result[0]
    if hasattr(result, "text") and hasattr(result, "image"):
        shown = [{"type": "image", "image": image} for image in result.image or [] if image is not None]
        return [*shown, {"type": "text", "text": result.text or ""}] if shown else result.text or ""
    is_parts = isinstance(result, list) and all(isinstance(part, dict) and "type" in part for part in result)
    return result if is_parts else str(result)


def cut(content: Any, most: int | None, side: str) -> Any:
    """Content whose texts have at most so many characters, and a mark where some were cut out, as verl's `ToolAgentLoop` does.
    most: None for all. side: where they are cut: left, middle, right, in the sense of verl 0.9: left keeps the end."""
    if most is None:
        return content
    if not isinstance(content, str):
        return [{**part, "text": cut(part["text"], most, side)} if part["type"] == "text" else part for part in content]
    if len(content) <= most:
        return content
    head, tail = {"left": (0, most), "right": (most, 0)}.get(side, (most // 2, most // 2))
    dots = "..." if head else "", "..." if tail else ""
    return f"{content[:head]}{dots[0]}(truncated){dots[1]}{content[len(content) - tail :]}"


def _joined(*contents: Any) -> Any:
    """Contents as one: a text, or parts where one of them has parts."""
    if all(isinstance(content, str) for content in contents):
        return "".join(contents)
    return [part for one in contents for part in ([{"type": "text", "text": one}] if isinstance(one, str) else one)]


def _written(content: Any) -> list[dict[str, Any]]:
    """Content as plain data: pictures are data URLs. Raises ValueError for a text that is too long."""
    if isinstance(content, str):
        if len(content) > LONGEST:
            raise ValueError(f"the result has {len(content):,} characters, more than {LONGEST:,}")
        return [{"type": "text", "text": content}] if content else []
    return [
        {"type": "image_url", "image_url": {"url": picture(part["image"])}} if part["type"] == "image" else dict(part)
        for part in content
    ]


def _beside(name: str) -> Any:
    """What is called `module:name` in this folder, loaded by its path, since an interpreter without mmrl has no such module."""
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name.partition(':')[0]}.py")
    return load(f"mmrl_interop.worlds.{name}", file)


def _function(name: str) -> Callable[..., Any]:
    found = loaded(name)
    if inspect.isclass(found) or not hasattr(found, "__name__"):
        raise Refused(f"{name} is no function: give a class as environment_factory")
    return found


def _made(factory: Any, name: str) -> Any:
    try:
        made = factory()
    except Exception as error:
        raise Refused(f"environment {name!r} can't be made ({type(error).__name__}: {str(error)[:200]}): correct it") from error
    if not callable(getattr(made, "reset", None)):
        raise Refused(f"environment {name!r} has no method reset: define it")
    return made


def _methods(environment: Any) -> dict[str, Callable[..., Any]]:
    """The tools of an environment: its public methods."""
    named = inspect.getmembers(type(environment), predicate=inspect.isfunction)
    return {name: getattr(environment, name) for name, _ in named if name not in OWN and not name.startswith("_")}


def _schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema that transformers reads from types and from a docstring in Google's form, as TRL and verl do."""
    try:
        from transformers.utils import get_json_schema
    except ModuleNotFoundError:
        raise Refused("tools need transformers, which reads their schemas: pip install transformers") from None
    try:
        return get_json_schema(function)
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        raise Refused(
            f"tool {function.__name__} has no schema ({why}): give it types and a docstring in Google's form"
        ) from error


def _call(function: Callable[..., Any], columns: Mapping[str, Any]) -> Any:
    """Call a function with columns, of the pictures' those that it takes."""
    try:
        taken = inspect.signature(function).parameters
    except ValueError:  # a function without a signature, such as one in C
        return function(**columns)
    every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    return function(**{name: value for name, value in columns.items() if every or name in taken or name not in MEDIA})


def _pictures(images: Sequence[Any]) -> dict[str, Any]:
    if not images:
        return {}
    return {"images": list(images), **({"image": images[0]} if len(images) == 1 else {})}


def _decoded(url: str) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(url.removeprefix(IMAGE)))).convert("RGB")


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Python's and numpy's global generators begin with a seed, and go on behind it as before."""
    numpy = sys.modules.get("numpy")
    state, arrays = random.getstate(), numpy and numpy.random.get_state()
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(arrays)


def _ignore(*args: Any, **columns: Any) -> None:
    """In the place of functions by which TRL's rewards log."""
