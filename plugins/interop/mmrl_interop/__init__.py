"""mmrl's tasks and verifiers in other trainers, and other trainers' rewards in mmrl. One module per peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl import hookimpl

if TYPE_CHECKING:
    import click

MMRL_CONTRACT = 2


@hookimpl
def mmrl_commands(cli: click.Group) -> None:
    from mmrl_interop.commands import export

    cli.add_command(export)
