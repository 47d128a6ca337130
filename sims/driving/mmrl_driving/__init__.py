"""A car among others at a crossing or on a motorway, simulated and rendered as one batch of tensors."""

from mmrl import SimulatorSpec, hookimpl
from mmrl.api.simulators.types import ActionSpec

MMRL_CONTRACT = 2

PARTS = ("progress", "centred", "aligned", "stable", "unharmed")
VARIANTS = ("semantic.instruction", "execution.dense-traffic", "vision.night")


@hookimpl
def mmrl_simulators() -> list[SimulatorSpec]:
    return [
        SimulatorSpec(
            id="driving/road",
            target="mmrl_driving.road:Road",
            summary="a car among others: tasks crossing, motorway",
            cameras=("top", "front"),
            action=ActionSpec(dims=2),
            control_hz=5.0,
            max_steps=80,
            parts=PARTS,
            capabilities=frozenset(
                ("partial-reset", "per-env-seed", "snapshot", "batched-gpu", "expert", "render-gpu", "render-cpu")
            ),
            variants=VARIANTS,
        )
    ]
