"""Addresses of servers in a run file."""

from __future__ import annotations

import re

ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})", re.ASCII)


def parse_address(address: str) -> tuple[str, int]:
    """(host, port) of `host:port` or `[::1]:port`. Raises ValueError."""
    found = ADDRESS.fullmatch(address)
    if not found or not 0 < int(found["port"]) < 65536:
        raise ValueError(f"{address!r:.200} is no address: write host:port, such as 10.0.0.2:7420")
    return found["six"] or found["host"], int(found["port"])
