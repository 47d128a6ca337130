"""A task's rules of episodes in a simulator: what a step earns, and when an episode ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrl.api.simulators.types import Simulation, Transition, potential
from mmrl.api.transfer import download

if TYPE_CHECKING:  # torch would make `import mmrl` slow
    import torch


SEEN = "seen_success"
"""The part of `Simulation.sees_success`."""


@dataclass(frozen=True, slots=True)
class RuledStep:
    """What a step means for N episodes. Rows of inactive environments mean nothing; all tensors are on the CPU."""

    rewards_N: torch.Tensor
    """float32; 0 in environments that are inactive or lost."""
    terminated_N: torch.Tensor
    """bool: the episode ended by itself, or by a rule of the task."""
    truncated_N: torch.Tensor
    """bool: a limit cut it off. Where `terminated_N` holds too, that counts."""
    lost_N: torch.Tensor
    """bool: the environment failed; its episode is void. `unstable_N` are among them."""
    unstable_N: torch.Tensor
    """bool: its state has a number that is not finite, as of a simulation that has become unstable."""
    success_N: torch.Tensor
    """bool: the task is solved in the state after the step."""
    parts: Mapping[str, torch.Tensor]
    """Name -> float32 [N], `success` among them."""


class EpisodeRules:
    """Applies `Simulation` to the steps of N environments, and counts each episode's steps."""

    def __init__(self, simulation: Simulation, num_envs: int, max_steps: int) -> None:
        """max_steps: steps after which an episode is cut off."""
        import torch

        self.simulation, self.max_steps = simulation, max_steps
        self.elapsed_N = torch.zeros(num_envs, dtype=torch.int64)
        """Steps of each episode so far."""
        self._potential_N = torch.zeros(num_envs)

    def begin(self, envs: list[int]) -> None:
        """Episodes begin in these environments."""
        self.elapsed_N[envs], self._potential_N[envs] = 0, 0.0

    def __call__(self, found: Transition, active_N: torch.Tensor) -> RuledStep:
        """active_N: bool: environments in which an episode goes on."""
        import torch

        self.elapsed_N += active_N
        names = ("reward_N", "success_N", "terminated_N", "truncated_N", "lost_N")
        own = {name: rows for name in names if (rows := getattr(found, name)) is not None}
        if found.observation.state is not None:
            own["sound_N"] = found.observation.state.isfinite().all(1)
        # all at once, since each copy waits for the device
        told = download(own | {f"part {name}": rows for name, rows in found.parts.items()})
        never_N = torch.zeros_like(active_N)
        success_N, unstable_N = told["success_N"], active_N & ~told.get("sound_N", ~never_N) & ~told.get("lost_N", never_N)
        lost_N = told.get("lost_N", never_N) | unstable_N
        parts = {name: told[f"part {name}"].float() for name in found.parts} | {"success": success_N.float()}
        seen_N = torch.zeros_like(active_N)
        if self.simulation.sees_success is not None:
            going = (active_N & ~lost_N).nonzero()[:, 0]
            if len(going):
                seen_N[going] = self.simulation.sees_success(found.observation.rows(going)).cpu()
            parts[SEEN] = seen_N.float()
        late_N = self.elapsed_N >= self.max_steps
        terminated_N = (
            told["terminated_N"]
            | seen_N
            | (success_N & self.simulation.terminate_on_success)
            | (late_N & self.simulation.time_limit_terminates)
        )
        return RuledStep(
            rewards_N=self._rewards(told["reward_N"].float(), parts, active_N & ~lost_N),
            terminated_N=terminated_N,
            truncated_N=told["truncated_N"] | late_N,
            lost_N=lost_N,
            unstable_N=unstable_N,
            success_N=success_N,
            parts=parts,
        )

    def _rewards(self, own_N: torch.Tensor, parts: Mapping[str, torch.Tensor], sound_N: torch.Tensor) -> torch.Tensor:
        import torch

        rule = self.simulation
        if rule.reward == "none":
            return torch.zeros_like(own_N)
        if rule.reward == "own":
            return torch.where(sound_N, own_N, 0.0)
        potential_N = potential(rule.stages, parts)
        paid_N = potential_N - self._potential_N if rule.potential_based else potential_N
        self._potential_N = torch.where(sound_N, potential_N, self._potential_N)
        return torch.where(sound_N, paid_N, 0.0)


def step_limit(simulation: Simulation, simulator: object, spec_limit: int) -> int:
    """Steps after which an episode is cut off: the task's, else the instance's, else the spec's; 0 if none is known."""
    return int(simulation.max_steps or getattr(simulator, "max_steps", 0) or spec_limit)
