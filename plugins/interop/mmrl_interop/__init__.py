"""mmrl's tasks and verifiers in other trainers, and other trainers' rewards in mmrl. One module per peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl import TaskSpec, VerifierSpec, hookimpl

if TYPE_CHECKING:
    import click

MMRL_CONTRACT = 2

MOST = 1e6
"""Bound of sums of rewards."""


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [
        TaskSpec(
            id="interop/openenv",
            target="mmrl_interop.openenv_task:OpenEnvTask",
            verifiers={"interop/return": 0.0},
            summary="Episodes on an OpenEnv server, with its own rewards",
        )
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [
        VerifierSpec(
            id="interop/return",
            target="mmrl_interop.openenv_task:total",
            low=-MOST,
            high=MOST,
            graded=True,
            summary="The sum of the rewards of another program's environment",
        )
    ]


@hookimpl
def mmrl_commands(cli: click.Group) -> None:
    from mmrl_interop.commands import export, serve

    cli.add_command(export)
    cli.add_command(serve)
