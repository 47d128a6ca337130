"""MuJoCo Playground's tasks: a whole batch of environments is one JAX program, in an interpreter of its own."""

from mmrl import SimulatorSpec, hookimpl
from mmrl.api.simulators.types import ActionSpec
from mmrl_playground.tasks import MAX_STEPS, TASKS

MMRL_CONTRACT = 2

CAMERAS = ("camera",)
ABILITIES = frozenset(("partial-reset", "per-env-seed", "snapshot", "batched-gpu", "render-cpu", "render-gpu"))
TARGET, DOCTOR = "mmrl_playground.simulator:Playground", "mmrl_playground.diagnosis:findings"


@hookimpl
def mmrl_simulators() -> list[SimulatorSpec]:
    suite = [
        SimulatorSpec(
            id=f"playground/{name}",
            target=TARGET,
            options={"task": task.name, "instruction": task.instruction},
            summary=f"{task.name}: {task.instruction}; needs MuJoCo Playground, so set the option python",
            cameras=CAMERAS,
            action=ActionSpec(dims=task.dims),
            control_hz=task.control_hz,
            max_steps=MAX_STEPS,
            doctor=DOCTOR,
            capabilities=ABILITIES,
        )
        for name, task in TASKS.items()
    ]
    return [
        *suite,
        SimulatorSpec(
            id="playground/env",
            target=TARGET,
            summary="any task of MuJoCo Playground's registry: options task, instruction; robots want the option menagerie",
            cameras=CAMERAS,
            action=ActionSpec(dims=1),
            max_steps=MAX_STEPS,
            doctor=DOCTOR,
            capabilities=ABILITIES | {"needs-assets"},
        ),
    ]
