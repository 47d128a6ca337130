"""LeRobot's environments, in LeRobot's own interpreter."""

from mmrl import SimulatorSpec, hookimpl
from mmrl.api.simulators.types import ActionSpec

MMRL_CONTRACT = 2


@hookimpl
def mmrl_simulators() -> list[SimulatorSpec]:
    return [
        SimulatorSpec(
            id="lerobot/env",
            target="mmrl_lerobot.simulator:LeRobot",
            summary="any environment of LeRobot 0.6, or of a hub repository: options env, config, python",
            cameras=("image",),
            action=ActionSpec(dims=1),
            capabilities=frozenset(("partial-reset", "per-env-seed", "snapshot", "render-cpu")),
        )
    ]
