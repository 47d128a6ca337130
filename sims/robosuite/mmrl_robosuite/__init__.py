"""robosuite's manipulation tasks, one process per environment, and demonstrations in robomimic's files."""

from mmrl import SimulatorSpec, hookimpl
from mmrl_robosuite.tasks import CONTROL_HZ, TASKS

MMRL_CONTRACT = 2

TARGET, DOCTOR = "mmrl_robosuite.simulator:Robosuite", "mmrl_robosuite.diagnosis:findings"
ABILITIES = frozenset(("partial-reset", "per-env-seed", "snapshot", "render-cpu", "render-gpu"))


@hookimpl
def mmrl_simulators() -> list[SimulatorSpec]:
    return [
        *(
            SimulatorSpec(
                id=f"robosuite/{name}",
                target=TARGET,
                options={"task": name, "max_steps": task.max_steps},
                summary=f"{task.instruction}; needs robosuite, so set the option python",
                cameras=task.cameras,
                action=task.action,
                max_steps=task.max_steps,
                capabilities=ABILITIES | ({"expert"} if task.expert else set()),
                control_hz=CONTROL_HZ,
                doctor=DOCTOR,
            )
            for name, task in TASKS.items()
        ),
        SimulatorSpec(
            id="robosuite/recorded",
            target=TARGET,
            options={"max_steps": 500},
            summary="a task with the demonstrations of a file of robomimic as its expert: options task, demonstrations",
            cameras=TASKS["transport"].cameras,
            action=TASKS["lift"].action,
            max_steps=500,
            capabilities=ABILITIES | {"expert"},
            control_hz=CONTROL_HZ,
            doctor=DOCTOR,
        ),
    ]
