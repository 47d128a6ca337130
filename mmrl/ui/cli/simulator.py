"""`mmrl simulator serve ID...`: simulators of this machine for learners on other machines or outside of a container."""

from __future__ import annotations

import os
import secrets
import signal
from typing import Any

import click

from mmrl.api.errors import UserError
from mmrl.api.settings import key_values
from mmrl.ui.cli.complete import ids


@click.group()
def command() -> None:
    """Serve this machine's simulators to learners elsewhere."""


@command.command()
@click.argument("simulators", nargs=-1, required=True, metavar="ID...", shell_complete=ids("simulators"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all of this machine's.")
@click.option(
    "--port", default=7420, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on; 0 picks a free one."
)
@click.option(
    "--most",
    default=16,
    show_default=True,
    type=click.IntRange(1, 4096),
    help="Most simulators at once: each lane of a learner has one, in a process of its own.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Option of the simulators, which overrides the learner's."
)
def serve(simulators: tuple[str, ...], host: str, port: int, most: int, settings: tuple[str, ...]) -> None:
    """Serve the simulators ID... until Ctrl-C.

    A run file names this server in simulate.address, and the learner's environment has the same MMRL_SIMULATOR_TOKEN. Without
    that variable a token is made and printed. Data is neither encrypted nor signed after the greeting: across a network that
    others can read, use a tunnel (ssh -L 7420:127.0.0.1:7420 HOST).
    """
    from mmrl.registry import plugins
    from mmrl.rollout.simulators.wire.handshake import VARIABLE, token_of_environment
    from mmrl.rollout.simulators.wire.server import Server

    for simulator in simulators:
        if plugins.registry().get("simulators", simulator).screens:
            raise UserError(f"simulator {simulator!r} has screens, for policies that write text: it runs beside its learner")
    given = bool(os.environ.get(VARIABLE, "").strip())
    token = token_of_environment() if given else secrets.token_hex(16)
    known = [plugins.registry().get("simulators", simulator).id for simulator in simulators]
    server = Server(known, token, host=host, port=port, options=key_values(settings), most=most, say=click.echo)
    click.echo(f"serving {', '.join(known)} at {server.address}")
    if not given:
        click.echo(f"export {VARIABLE}={token}")

    def end(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        server.serve()
    except KeyboardInterrupt:
        click.echo("stopped")
    finally:
        server.close()
