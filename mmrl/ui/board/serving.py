"""The board's HTTP server: listens on an address until Ctrl-C."""

from __future__ import annotations

import contextlib
import errno
import html
import re
import socket
import tempfile
from collections.abc import Iterator
from types import FrameType

import click
import uvicorn

from mmrl.api.errors import UserError
from mmrl.ui.board.access import is_loopback
from mmrl.ui.board.app import app
from mmrl.ui.board.live_updates import UpdateHub
from mmrl.ui.board.run_paths import RunPaths


def serve(places: RunPaths, host: str, port: int, token: str, show: bool) -> None:
    """Serve the runs of a folder until Ctrl-C. show: open the browser. Raises UserError if the address is unavailable, or if
    other machines could reach it without a token."""
    if token and not re.fullmatch(r"[A-Za-z0-9._~-]{8,200}", token):
        raise UserError("the token must be 8 to 200 letters, digits, dots, dashes or underscores")
    if not is_loopback(host) and not token:
        raise UserError(
            f"--host {host} shows the runs to other machines: protect them with a token (MMRL_BOARD_TOKEN), or leave --host out"
        )
    with _listening(host, port) as listening, contextlib.ExitStack() as ended:
        at = listening.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{at}/" + (f"?token={token}" if token else "")
        click.echo(f"mmrl board: {places.folder}\n  {address}\n  Ctrl-C stops it")
        if show:
            click.launch(ended.enter_context(_page_that_leads_to(address)) if token else address)
        board = app(places, token)
        config = uvicorn.Config(board, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3)
        _Server(config, board.state.hub).run(sockets=[listening])


@contextlib.contextmanager
def _page_that_leads_to(address: str) -> Iterator[str]:
    """The path of a file that only this user may read, and that leads to an address: a browser's command line, which everybody
    may read, does not have the secret then."""
    with tempfile.NamedTemporaryFile("w", prefix="mmrl-board-", suffix=".html", encoding="utf-8") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(address)}"><title>mmrl board</title>')
        file.flush()
        yield file.name


class _Server(uvicorn.Server):
    """A server that ends the event streams of open pages first, since a shutdown waits for open connections."""

    def __init__(self, config: uvicorn.Config, hub: UpdateHub) -> None:
        super().__init__(config)
        self.hub = hub

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.hub.end()
        super().handle_exit(sig, frame)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with contextlib.ExitStack() as failed:
            listening = failed.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            failed.pop_all()  # it stays open
    except UnicodeError:
        raise UserError(f"--host {host:.80} is not a host name: choose another") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use, maybe by another board: choose another --port; 0 picks a free one") from None
        raise UserError(f"can't listen on {host} port {port}: {error.strerror or error}: choose another") from None
    return listening
