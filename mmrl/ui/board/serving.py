"""Listening: an address that only who may see the board reaches, until Ctrl-C."""

from __future__ import annotations

import errno
import re
import socket
from types import FrameType

import click
import uvicorn

from mmrl.api.errors import UserError
from mmrl.ui.board.app import app
from mmrl.ui.board.guard import is_loopback
from mmrl.ui.board.hub import Hub
from mmrl.ui.board.places import Places


def serve(places: Places, host: str, port: int, token: str, show: bool) -> None:
    """Serve the runs of a folder until Ctrl-C. show: open the browser. Raises UserError for an address that can't be had, or that
    others reach without a token."""
    if token and not re.fullmatch(r"[A-Za-z0-9._~-]{8,200}", token):
        raise UserError("--token must be 8 to 200 letters, digits, dots, dashes or underscores")
    if not is_loopback(host) and not token:
        raise UserError(f"--host {host} lets other machines see the runs: give a --token that they must bring, or leave it out")
    with _listening(host, port) as listening:
        at = listening.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{at}/" + (f"?token={token}" if token else "")
        click.echo(f"mmrl board: {places.folder}\n  {address}\n  Ctrl-C ends it")
        if show:
            click.launch(address)
        own = app(places, token)
        config = uvicorn.Config(own, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3)
        _Server(config, own.state.hub).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Ends the streams of open pages before it waits for them."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self.hub = hub

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.hub.end()
        super().handle_exit(sig, frame)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except UnicodeError:
        raise UserError(f"--host {host:.80} is no name of a machine: choose another") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use, maybe by another board: choose another --port; 0 takes a free one") from None
        raise UserError(f"can't listen on {host} port {port}: {error.strerror or error}: choose another") from None
    return found
