"""Options of a Diffusion Policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from mmrl.api.specs import Bounds
from mmrl.policies.acting.options import Actions, CameraOptions, Spread, StatisticsOptions, Width

Steps = Annotated[int, Bounds(low=1, high=1000)]


@dataclass(frozen=True, kw_only=True)
class DiffusionOptions(StatisticsOptions, CameraOptions):
    cameras: Sequence[str] = ()
    """The simulator's cameras that are looked through, in the order of the network's. Empty: those of the checkpoint's names;
    the first one for a checkpoint with a single camera that has no name."""
    dims: Actions | None = None
    """Numbers of an action. Unset: as the checkpoint says; 7 for a tiny one."""
    chunk: Actions | None = None
    """Actions of a call that are carried out. Unset: the checkpoint's `n_action_steps`; 8 for a tiny one."""
    state: Width | None = None
    """Numbers of the simulator's state at a moment: those of the robot, then those of LeRobot's `environment_state`. Unset: as
    the checkpoint says; for a tiny one it must be said."""
    steps: Steps | None = None
    """Steps from noise to actions. Unset: the checkpoint's `num_inference_steps`, or all times with which it was trained."""
    scheduler: Literal["", "DDPM", "DDIM"] = ""
    """What a step is. Empty: the checkpoint's."""
    tuned_steps: Steps | None = None
    """The last steps, which reinforcement trains; the earlier ones are sampled without a likelihood. Unset: all."""
    exploration_std: Spread = 0.1
    """Least standard deviation of a step's noise while it learns, in the policy's normalised numbers."""
    likelihood_std: Spread = 0.1
    """Least standard deviation with which the likelihood of a step is computed."""
    eta: Annotated[float, Bounds(low=0, high=1)] = 1.0
    """Share of DDPM's noise that a step of DDIM has while it learns."""
    likelihood: Literal["sum", "mean"] = "sum"
    """A step's log-probability: the sum over the numbers of the actions that are carried out, or the mean, as in DPPO's code."""

    def completed(self, **said: Any) -> DiffusionOptions:
        """The options with what the checkpoint says where one is unset. Raises UserError for a checkpoint that says what no
        option may."""
        asked = vars(self)
        return replace(self, **{name: value for name, value in said.items() if asked[name] in (None, "")})
