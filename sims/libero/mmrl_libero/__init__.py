"""LIBERO's suites of language-conditioned manipulation, one process per environment, with LIBERO-Pro's changed environments."""

from mmrl import SimulatorSpec, hookimpl
from mmrl_libero.suites import CAMERAS, CONTROL_HZ, PANDA, SUITES

MMRL_CONTRACT = 2

ABILITIES = frozenset(("partial-reset", "per-env-seed", "snapshot", "render-cpu", "render-gpu", "needs-assets"))


@hookimpl
def mmrl_simulators() -> list[SimulatorSpec]:
    suites = [
        SimulatorSpec(
            id=f"libero/{name}",
            target="mmrl_libero.simulator:Libero",
            options={"suite": suite.name, "max_steps": suite.max_steps, "variants": suite.variants},
            summary=f"{suite.tasks} tasks: {suite.about}; needs LIBERO, so set the option python",
            cameras=tuple(CAMERAS),
            action=PANDA,
            control_hz=CONTROL_HZ,
            max_steps=suite.max_steps,
            parts=("goals",),
            variants=suite.variants,
            doctor="mmrl_libero.diagnosis:findings",
            capabilities=ABILITIES | ({"expert"} if suite.expert else set()),
        )
        for name, suite in SUITES.items()
    ]
    return [
        *suites,
        SimulatorSpec(
            id="libero/env",
            target="mmrl_libero.simulator:Libero",
            options={"max_steps": 400},
            summary="a task of your own in LIBERO's form: options bddl, states",
            cameras=tuple(CAMERAS),
            action=PANDA,
            control_hz=CONTROL_HZ,
            max_steps=400,
            parts=("goals",),
            doctor="mmrl_libero.diagnosis:findings",
            capabilities=ABILITIES,
        ),
    ]
