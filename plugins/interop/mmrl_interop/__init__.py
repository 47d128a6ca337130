"""mmrl's tasks and verifiers in other trainers, and other trainers' rewards in mmrl. One module per peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl import VerifierSpec, hookimpl

if TYPE_CHECKING:
    import click

MMRL_CONTRACT = 2


@hookimpl
def mmrl_commands(cli: click.Group) -> None:
    from mmrl_interop.commands import export

    cli.add_command(export)


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    def spec(id: str, target: str, summary: str, **more: bool) -> VerifierSpec:
        whole = {"id": f"interop/{id}", "target": f"mmrl_interop.verifiers:{target}", "summary": summary, "timeout_s": 30.0}
        return VerifierSpec(**whole, graded=True, **more)  # type: ignore[arg-type]

    return [
        spec("trl", "trl", "reward functions of TRL's trainers, in a file that the option functions names"),
        spec("trl-whole", "trl_whole", "the same, with the prompt, its images and the tokens", images=True, rollout=True),
        spec("verl", "verl", "reward functions in the form of verl's compute_score, in a file that the option functions names"),
    ]
