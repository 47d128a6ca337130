"""Options of a Diffusion Policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mmrl.api.specs import Bounds
from mmrl.policies.acting.lerobot_policy import LeRobotOptions
from mmrl.policies.acting.options import Spread

Steps = Annotated[int, Bounds(low=1, high=1000)]


@dataclass(frozen=True, kw_only=True)
class DiffusionOptions(LeRobotOptions):
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
