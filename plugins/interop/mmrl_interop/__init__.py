"""mmrl's tasks and verifiers in other trainers, and other trainers' rewards in mmrl. One module per peer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmrl import TaskSpec, VerifierSpec, hookimpl

if TYPE_CHECKING:
    import click

MMRL_CONTRACT = 2

MOST = 1e6
"""Bound of sums of rewards."""


__all__ = ["MmrlTaskset"]


def __getattr__(name: str) -> Any:
    """The class that verifiers looks for in this package, without importing verifiers before."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mmrl_interop.peers import peer

    peer("verifiers.v1", ">=0.4,<0.5", "mmrl_interop.taskset", "verifiers")
    from mmrl_interop.taskset import MmrlTaskset

    return MmrlTaskset


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [
        TaskSpec(
            id="interop/openenv",
            target="mmrl_interop.openenv_task:OpenEnvTask",
            verifiers={"interop/return": 0.0},
            summary="Episodes on an OpenEnv server, with its own rewards",
        ),
        TaskSpec(
            id="interop/table",
            target="mmrl_interop.table_task:TableTask",
            verifiers={"interop/answer": 1.0},
            summary="Tables in the forms of TRL, verl, EasyR1, ms-swift, LLaVA, LLaMA-Factory and The Cauldron",
        ),
        TaskSpec(
            id="interop/tools",
            target="mmrl_interop.tools_task:ToolsTask",
            verifiers={"interop/return": 0.0},
            summary="Tools, environments and reward functions of TRL, and tools of verl, in your own files",
        ),
        TaskSpec(
            id="interop/reasoning-gym",
            target="mmrl_interop.reasoning_gym:ReasoningGym",
            verifiers={"interop/reasoning-gym": 1.0},
            summary="The data sets of reasoning-gym, about a hundred, with its own scores",
        ),
        *_worlds(),
    ]


def _worlds() -> list[TaskSpec]:
    """Tasks that other programs' environments play."""

    def task(id: str, target: str, summary: str, **verifiers: float) -> TaskSpec:
        paid = {f"interop/{name}": weight for name, weight in verifiers.items()} or {"interop/return": 0.0}
        return TaskSpec(id=f"interop/{id}", target=f"mmrl_interop.{target}", verifiers=paid, summary=summary)

    return [
        task("game", "game_task:GameTask", "Games with texts as actions and pictures to see, as VAGEN's"),
        task("verifiers", "verifiers_task:VerifiersTask", "Tasksets and environments of verifiers, with their own rewards"),
        task("browsergym", "browsergym_task:BrowserGymTask", "Web pages of BrowserGym's benchmarks", success=0.0),
        task("lmms-eval", "lmms_task:LmmsTask", "Benchmarks of lmms-eval, with its own scores, to evaluate on"),
        task("frozen-lake", "game_task:FrozenLakeTask", "A walk over a frozen lake, as in VAGEN", success=0.0),
        task("sokoban", "game_task:SokobanTask", "Boxes pushed onto targets, as in VAGEN", success=0.0),
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    def spec(id: str, target: str, summary: str, **more: bool) -> VerifierSpec:
        whole = {"id": f"interop/{id}", "target": f"mmrl_interop.verifiers:{target}", "summary": summary, "timeout_s": 30.0}
        return VerifierSpec(**whole, low=-MOST, high=MOST, graded=True, **more)  # type: ignore[arg-type]

    return [
        spec("trl", "trl", "reward functions of TRL's trainers, in a file that the option functions names"),
        spec("trl-whole", "trl_whole", "the same, with the prompt, its images and the tokens", images=True, rollout=True),
        spec("verl", "verl", "reward functions in the form of verl's compute_score, in a file that the option functions names"),
        spec("easyr1", "easyr1", "reward functions in the form of EasyR1's compute_score, in such a file", rollout=True),
        VerifierSpec(
            id="interop/answer",
            target="mmrl_interop.table_task:answer",
            summary="The answer equals the ground truth, as text or as mathematics",
        ),
        VerifierSpec(
            id="interop/reasoning-gym",
            target="mmrl_interop.reasoning_gym:score",
            graded=True,
            timeout_s=20.0,
            summary="reasoning-gym's score of an answer",
        ),
        VerifierSpec(
            id="interop/success", target="mmrl_interop.game_task:success", outcome=True, summary="Whether a game was won"
        ),
        VerifierSpec(
            id="interop/return",
            target="mmrl_interop.openenv_task:total",
            low=-MOST,
            high=MOST,
            outcome=True,
            graded=True,
            summary="The sum of the rewards of another program's environment",
        ),
    ]


@hookimpl
def mmrl_commands(cli: click.Group) -> None:
    import click

    from mmrl_interop.commands import TRAINERS, export_to, serve

    cli.add_command(click.Group("export", {trainer: export_to(trainer) for trainer in TRAINERS}))
    cli.add_command(serve)
