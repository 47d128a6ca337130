"""Who may connect: both ends prove that they know the token, which itself is never sent.

The server sends a random challenge, the client answers with what it wants and an HMAC-SHA256 (RFC 2104) over both, and with a
challenge of its own. What follows is neither encrypted nor signed: across a network that others can read or write, use a tunnel.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
import time
from typing import Any

from mmrl import __version__
from mmrl.api.errors import UserError
from mmrl.rollout.simulators.wire.frames import Broken, receive_frame, send_frame

VARIABLE = "MMRL_SIMULATOR_TOKEN"
"""Environment variable with the token, on both machines. It stands in no run file, as run files are kept with their runs."""
PATIENCE_S = 10.0
"""Seconds for the other end's part of the handshake."""
MOST_HELLO = 1 << 16
"""Largest message of a client that hasn't proved yet that it knows the token, in bytes."""
LEAST_TOKEN = 16
"""Characters of a token."""


class Refused(UserError):
    """The server doesn't serve this client, and says why."""


def token_of_environment() -> str:
    """The token. Raises UserError without one, or for one that could be guessed."""
    token = os.environ.get(VARIABLE, "").strip()
    if not token:
        raise UserError(f"simulate.address needs the server's token: set {VARIABLE} to what `mmrl simulator serve` uses")
    if len(token) < LEAST_TOKEN:
        raise UserError(
            f"{VARIABLE} has {len(token)} characters: take one of {LEAST_TOKEN} or more, such as of `openssl rand -hex 16`"
        )
    return token


def challenge(channel: socket.socket, token: str) -> dict[str, Any]:
    """The server's side: what a client wants, once it has proved that it knows the token. Raises Broken."""
    nonce, deadline = secrets.token_hex(16), time.monotonic() + PATIENCE_S
    send_frame(channel, {"mmrl": __version__, "nonce": nonce}, deadline=deadline)
    hello, _ = receive_frame(channel, deadline, MOST_HELLO, 0)
    if not isinstance(hello, dict) or not isinstance(hello.get("wants"), dict) or not isinstance(hello.get("nonce"), str):
        raise Broken("its first message is no greeting")
    if not hmac.compare_digest(_proof(token, "client", nonce, hello["wants"]), str(hello.get("proof"))):
        refuse(channel, f"the token is wrong: set {VARIABLE} to what `mmrl simulator serve` uses")
        raise Broken("it has another token")
    return {**hello["wants"], "proof": _proof(token, "server", hello["nonce"], {})}


def refuse(channel: socket.socket, why: str) -> None:
    """Tell a client why it isn't served. Raises Broken if it is gone."""
    send_frame(channel, {"refused": why}, deadline=time.monotonic() + PATIENCE_S)


def accept(channel: socket.socket, proof: str) -> None:
    """Tell a client that it is served. proof: that of `challenge`."""
    send_frame(channel, {"proof": proof}, deadline=time.monotonic() + PATIENCE_S)


def greet(channel: socket.socket, token: str, wants: dict[str, Any]) -> None:
    """The client's side. Raises Refused, and Broken if the server doesn't answer or has another token."""
    deadline, own = time.monotonic() + PATIENCE_S, secrets.token_hex(16)
    said, _ = receive_frame(channel, deadline, MOST_HELLO, 0)
    if not isinstance(said, dict) or not isinstance(said.get("nonce"), str):
        raise Broken("its first message is no challenge")
    send_frame(channel, {"wants": wants, "nonce": own, "proof": _proof(token, "client", said["nonce"], wants)}, deadline=deadline)
    said, _ = receive_frame(channel, deadline, MOST_HELLO, 0)
    if not isinstance(said, dict) or "refused" in said:
        raise Refused(str(said.get("refused") if isinstance(said, dict) else said)[:500])
    if not hmac.compare_digest(_proof(token, "server", own, {}), str(said.get("proof"))):
        raise Refused(f"the server doesn't know the token in {VARIABLE}: it is another one")


def _proof(token: str, side: str, nonce: str, wants: dict[str, Any]) -> str:
    said = json.dumps([side, nonce, wants], sort_keys=True, separators=(",", ":"))
    return hmac.new(token.encode(), said.encode(), hashlib.sha256).hexdigest()
