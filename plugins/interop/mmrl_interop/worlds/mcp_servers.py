"""Servers of tools that speak the Model Context Protocol, in a process of `child`, by the protocol's own package `mcp`. Of its
versions 1.30, 2.0 and 2.3 were tried. Imports only the standard library where there are no servers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from mmrl_interop.worlds.child import Lost, Refused

CLOSE_S = 5.0
"""Seconds that a connection has to close: a server that was started has two of them before it is killed."""
PLACEHOLDER = re.compile(r"\$\{(\w+)\}")


class Server:
    """One server, and what it offers."""

    def __init__(self, name: str, where: Mapping[str, Any], seconds: float) -> None:
        """where: `command`, `args`, `env` and `cwd` of a program that is started, or `url` and `headers` of one that runs;
        `tools`, those that are offered, by default all; `shared`, whether all episodes of the process use one connection.
        `${NAME}` in texts is a variable of the environment. seconds: of a call. Raises Refused for a variable without a value."""
        self.name, self.seconds, self.shared = name, seconds, bool(where.get("shared"))
        self.where = _filled_in(name, {key: value for key, value in where.items() if key not in ("tools", "shared")})
        self.wanted: Sequence[str] | None = where.get("tools")
        self.tools: dict[str, dict[str, Any]] = {}
        """Name -> schema, in OpenAI's form."""
        self._spare: Connection | None = None
        """The connection of the first episode, by which the tools were listed, or of all; one that was lost is made anew."""

    async def begin(self) -> None:
        """Connect to it and ask for its tools. Raises Refused for a server that can't be used."""
        connection = Connection(self.where)
        try:
            listed = await asyncio.wait_for(connection.listed(), self.seconds)
        except Exception as error:
            await connection.close()
            raise Refused(
                f"mcp_servers.{self.name} can't be used ({_told(error)}): correct the option, or see that it runs"
            ) from error
        there = {tool["name"]: tool for tool in listed}
        for name in self.wanted or ():
            if name not in there:
                raise Refused(f"mcp_servers.{self.name}.tools has {name!r}, and it offers {', '.join(there)}: correct the name")
        self.tools = {name: _schema(tool) for name, tool in there.items() if self.wanted is None or name in self.wanted}
        self._spare = connection

    def connection(self, own: dict[str, Connection]) -> Connection:
        """The connection of an episode. own: those that it has, by their servers' names."""
        if self.shared:
            if self._spare is None:
                self._spare = Connection(self.where)
            return self._spare
        if self.name not in own:
            own[self.name], self._spare = self._spare or Connection(self.where), None
        return own[self.name]

    async def call(self, own: dict[str, Connection], tool: str, arguments: Mapping[str, Any]) -> Any:
        """What a tool gives, as the content of a message. Raises ValueError with the tool's own words for its error,
        TimeoutError, and Lost for a server that is gone."""
        connection = self.connection(own)
        try:
            await asyncio.wait_for(connection.opened(), self.seconds)
        except Exception as error:
            self._give_up(connection)
            raise Lost(f"mcp server {self.name!r} can't be reached for {tool}: {_told(error)}") from error
        try:
            result = await asyncio.wait_for(connection.called(tool, arguments), self.seconds)
        except TimeoutError:
            raise TimeoutError(f"{tool} took longer than {self.seconds:g} s") from None
        except Exception as error:
            if not await connection.answers(self.seconds):
                self._give_up(connection)
                raise Lost(f"mcp server {self.name!r} was lost in {tool}: {_told(error)}") from error
            raise
        content = _content(result)
        if result.get("isError"):
            raise ValueError(_text(content) or f"{tool} failed")
        return content

    def _give_up(self, connection: Connection) -> None:
        """The next episode gets another."""
        if connection is self._spare:
            self._spare = None
        connection.end()


class Connection:
    """A session with a server. A task of its own opens and closes it, since both must happen in one."""

    def __init__(self, where: Mapping[str, Any]) -> None:
        self._where, self._closing = where, asyncio.Event()
        self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep_open())

    async def opened(self) -> Any:
        """The session, once there is one. Raises Lost if there can be none."""
        return await asyncio.shield(self._opened)

    async def listed(self) -> list[dict[str, Any]]:
        """The tools as the protocol writes them."""
        from mcp.types import PaginatedRequestParams

        session = await self.opened()
        found, following = list[dict[str, Any]](), None
        while True:
            page = _plain(await session.list_tools(params=PaginatedRequestParams(cursor=following)))
            found += page["tools"]
            following = page.get("nextCursor")
            if not following:
                return found

    async def called(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result as the protocol writes it."""
        session = await self.opened()
        return _plain(await session.call_tool(tool, dict(arguments)))

    async def answers(self, seconds: float) -> bool:
        """Whether the server is still there."""
        if self._task.done():
            return False
        try:
            await asyncio.wait_for((await self.opened()).send_ping(), seconds)
        except Exception:  # noqa: BLE001  whatever it is, no answer came
            return False
        return True

    def end(self) -> None:
        """Have it closed, as soon as the loop runs on; nobody waits."""
        self._closing.set()
        if not self._opened.done():
            self._task.cancel()

    async def close(self) -> None:
        self.end()
        _, late = await asyncio.wait([self._task], timeout=CLOSE_S)
        for task in late:
            task.cancel()

    async def _keep_open(self) -> None:
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            try:
                async with contextlib.AsyncExitStack() as stack:
                    session = await _opened(stack, self._where, log)
                    self._opened.set_result(session)
                    await self._closing.wait()
            except BaseException as error:  # noqa: BLE001  of what has ended since, the next call tells
                if not self._opened.done():
                    why = "; ".join(filter(None, [_told(error), _last_line(log)]))
                    self._opened.set_exception(Lost(why))
                    self._opened.exception()  # whoever waits is told, and it may be nobody


async def _opened(stack: contextlib.AsyncExitStack, where: Mapping[str, Any], log: TextIO) -> Any:
    """A session with a server, which the stack closes. log: gets what a server that is started writes beside its answers."""
    from mcp import ClientSession, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    if "url" in where:
        client = await stack.enter_async_context(create_mcp_http_client(headers=where.get("headers")))
        streams = await stack.enter_async_context(streamable_http_client(where["url"], http_client=client))
    else:
        started = {key: where[key] for key in ("command", "args", "env", "cwd") if where.get(key)}
        streams = await stack.enter_async_context(stdio_client(StdioServerParameters(**started), log))
    session = await stack.enter_async_context(ClientSession(*streams[:2]))
    await session.initialize()
    return session


class McpServers:
    """A source of tools, see `tools.Source`."""

    def __init__(self, by_tool: dict[str, Server]) -> None:
        """by_tool: the server of each tool."""
        self.by_tool = by_tool
        self.schemas = [server.tools[tool] for tool, server in by_tool.items()]

    def begin(self, session: Any) -> McpTools:
        return McpTools(self.by_tool)


class McpTools:
    """The tools in an episode."""

    def __init__(self, by_tool: dict[str, Server]) -> None:
        self.by_tool = by_tool
        self.connections: dict[str, Connection] = {}
        """Those of the episode, by their servers' names."""

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[Any, float]:
        return await self.by_tool[name].call(self.connections, name, arguments), 0.0

    async def close(self) -> None:
        for connection in self.connections.values():
            await connection.close()


async def begun(servers: Mapping[str, Mapping[str, Any]], seconds: float) -> McpServers:
    """The servers, after asking each for its tools. Raises Refused for one that can't be used, and for two tools of one name."""
    try:
        import mcp  # noqa: F401
    except ModuleNotFoundError:
        raise Refused("mcp_servers need mcp: pip install mcp, or set the option python to an interpreter that has it") from None
    made = [Server(name, where, seconds) for name, where in servers.items()]
    await asyncio.gather(*(server.begin() for server in made))
    found: dict[str, Server] = {}
    for server in made:
        for tool in server.tools:
            if tool in found:
                raise Refused(f"mcp_servers.{found[tool].name} and {server.name} both offer {tool}: choose by their key tools")
            found[tool] = server
    return McpServers(found)


def _filled_in(server: str, value: Any) -> Any:
    """A value in whose texts the variables of the environment stand."""
    if isinstance(value, str):
        for name in PLACEHOLDER.findall(value):
            if name not in os.environ:
                raise Refused(f"mcp_servers.{server} names ${{{name}}}, which the environment doesn't have: set it")
        return PLACEHOLDER.sub(lambda found: os.environ[found[1]], value)
    if isinstance(value, Mapping):
        return {key: _filled_in(server, own) for key, own in value.items()}
    return [_filled_in(server, own) for own in value] if isinstance(value, list) else value


def _plain(found: Any) -> dict[str, Any]:
    """A message under the names of the protocol, which the versions of the package have in common."""
    return dict(found.model_dump(mode="json", by_alias=True, exclude_none=True))


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {key: value for key, value in tool["inputSchema"].items() if key != "$schema"}
    return {
        "type": "function",
        "function": {"name": tool["name"], "description": tool.get("description", ""), "parameters": parameters},
    }


def _content(result: Mapping[str, Any]) -> Any:
    """A result as a text, or as parts if it has pictures. Structured content repeats the texts; alone, it is told."""
    parts = [_part(block) for block in result.get("content", [])]
    if not parts and result.get("structuredContent") is not None:
        return json.dumps(result["structuredContent"], ensure_ascii=False)
    return parts if any(part["type"] == "image" for part in parts) else "\n".join(part["text"] for part in parts)


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    kind = block["type"]
    if kind == "image":
        from PIL import Image

        return {"type": "image", "image": Image.open(io.BytesIO(base64.b64decode(block["data"])))}
    own = block.get("resource", block)
    if kind in ("text", "resource") and "text" in own:
        return {"type": "text", "text": own["text"]}
    what = own.get("uri") or own.get("mimeType") or kind
    return {"type": "text", "text": f"[{kind} {what}]"}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if part["type"] == "text")


def _last_line(log: TextIO) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def _told(error: BaseException) -> str:
    """The first cause of an error, which a group may hold, in one line."""
    while isinstance(getattr(error, "exceptions", None), tuple) and error.exceptions:  # type: ignore[attr-defined]
        error = error.exceptions[0]  # type: ignore[attr-defined]
    why = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {why}" if why and not isinstance(error, Lost) else why or type(error).__name__
