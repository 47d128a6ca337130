"""The option `mcp_servers` of `interop/tools`: servers of tools that speak the Model Context Protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.errors import did_you_mean

STARTED = ("command", "args", "env", "cwd")
RUNNING = ("url", "headers")
OWN = ("tools", "shared")
EXAMPLE = '{shop = {command = "python", args = ["shop.py"]}}'
KINDS = {"stdio": "command", "http": "url", "streamable-http": "url", "streamableHttp": "url"}
"""Value of `type` in the files of other programs -> the key that such a server has."""


def checked_servers(given: str | Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Server -> where it is, see `mmrl_interop.worlds.mcp_servers.Server`. given: a table of servers, or the path of a file with
    `mcpServers`, as editors and assistants have it; there, servers with `disabled` are left out. Raises UserError for a table or
    file that can't be read, for unknown keys and values of other kinds, and for servers that are reached by SSE."""
    if given is None:
        return {}
    if isinstance(given, str):
        given = _file(given)
    if not isinstance(given, Mapping) or not all(isinstance(where, Mapping) for where in given.values()):
        raise UserError(f"mcp_servers = {given!r:.100} must be a table of servers, such as {EXAMPLE}, or the path of a file")
    enabled = {name: where for name, where in given.items() if not where.get("disabled")}
    return {str(name): _checked(f"mcp_servers.{name}", where) for name, where in enabled.items()}


def _file(path: str) -> Any:
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        return found["mcpServers"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise UserError(f'mcp_servers = {path!r:.100} can\'t be read ({why:.200}): give a JSON file with "mcpServers"') from None


def _checked(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    server = {key: value for key, value in given.items() if key not in ("type", "disabled")}
    kind = given.get("type")
    if kind is not None and kind not in KINDS:
        raise UserError(f"{where}.type = {kind!r:.40} can't be used: start it by a command, or serve it by Streamable HTTP (url)")
    if ("command" in server) == ("url" in server) or (kind and KINDS[kind] not in server):
        raise UserError(f"{where} must have either a command, which starts it, or a url, by which it is reached")
    known = (*(STARTED if "command" in server else RUNNING), *OWN)
    for key, value in server.items():
        if key not in known:
            raise UserError(f"{where} has no key {key!r}: it has {', '.join(known)}.{did_you_mean(key, known)}")
        if not _fits(key, value):
            raise UserError(f"{where}.{key} = {value!r:.60} must be {WANTED[key]}")
    return server


def _fits(key: str, value: Any) -> bool:
    if key in ("args", "tools"):
        return isinstance(value, list) and all(isinstance(text, str) for text in value) and (key == "args" or bool(value))
    if key in ("env", "headers"):
        return isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())
    return isinstance(value, bool) if key == "shared" else isinstance(value, str) and bool(value)


WANTED = {
    "command": "the name or path of a program",
    "args": "a list of texts",
    "env": "a table of texts",
    "cwd": "the path of a folder",
    "url": "an address, such as http://127.0.0.1:8000/mcp",
    "headers": "a table of texts",
    "tools": "a list of the names of tools",
    "shared": "true or false",
}
