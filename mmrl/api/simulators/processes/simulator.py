"""A `mmrl.Simulator` with one environment per process; a base for plugins with such simulators."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmrl.api.errors import warns_of_loss
from mmrl.api.simulators.checks import check_states, check_variant, checked_actions, checked_ids, checked_seeds
from mmrl.api.simulators.processes import EnvironmentProcesses
from mmrl.api.simulators.types import ActionSpec, Observation, Transition
from mmrl.api.transfer import upload

if TYPE_CHECKING:
    import torch


class ProcessSimulator:
    """N environments in processes (see `mmrl.api.simulators.processes`) with these arrays:

    `camera/NAME` uint8 [H, W, 3]; optionally `state` float32 [S]; `reward` float32; `terminated`, `truncated`, `success` bool;
    `part/NAME` float32; and optionally `intervention` float32 [A], see `Transition.interventions_NA`. An environment also has
    `render()`, which returns (H, W, the bytes of a picture uint8 [H, W, 3]), `snapshot()` and `restore(state)`.
    """

    own_deadlines = True
    """Each call has a deadline (`EnvironmentProcesses`), so the engine's `simulate.timeout_s` doesn't apply."""

    def __init__(
        self,
        workers: EnvironmentProcesses,
        *,
        instruction: str,
        action: ActionSpec,
        max_steps: int,
        device: str | torch.device,
        variants: Sequence[str] = (),
    ) -> None:
        """device: of the returned tensors; the environments are on the CPU. variants: those that the environments' `reset`
        knows."""
        import torch

        self.workers, self.num_envs = workers, workers.num_envs
        self.instructions, self.variants = [instruction] * self.num_envs, tuple(variants)
        """The goal of each environment's episode: a subclass with several tasks changes them."""
        self.action = action
        """The action space of this instance."""
        self.max_steps = max_steps
        """Steps after which an episode should be truncated."""
        self.device = torch.device(device)

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        """See `mmrl.Simulator.reset`."""
        envs = self._ids(env_ids_n)
        check_variant(self.workers.what, variant, self.variants)
        seeds_n = checked_seeds(seeds_n, len(envs), "cpu")
        self.workers.reset(dict(zip(envs, seeds_n.tolist(), strict=True)), variant)
        return self._observe(envs)

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        """See `mmrl.Simulator.step`. Environments whose process died, raised or hung are in `lost_N`; a warning gives the
        reason."""
        import torch

        actions_NA, active_N = checked_actions(actions_NA, active_N, self.num_envs, self.action.dims, "cpu")
        active = active_N.nonzero()[:, 0].tolist()
        lost_earlier, before = {env for env in active if self.workers.pid(env) is None}, self.workers.lost
        lost = self.workers.step(actions_NA.numpy(), active)
        self._warn({env: why for env, why in lost.items() if env not in lost_earlier}, before)
        lost_N = torch.zeros(self.num_envs, dtype=torch.bool)
        lost_N[list(lost)] = True
        every = list(range(self.num_envs))
        rows = self._rows(every, list(self.workers.rows), lost=lost_N)
        return Transition(
            observation=self._observation(every, rows),
            reward_N=rows["reward"],
            terminated_N=rows["terminated"],
            truncated_N=rows["truncated"],
            success_N=rows["success"],
            lost_N=rows["lost"],
            interventions_NA=rows.get("intervention"),
            parts={name.removeprefix("part/"): row for name, row in rows.items() if name.startswith("part/")},
        )

    def snapshot(self, env_ids_n: torch.Tensor) -> list[Any]:
        """See `mmrl.Simulator.snapshot`. One state per environment, plain data."""
        return self.workers.call(self._ids(env_ids_n), "snapshot")

    def restore(self, env_ids_n: torch.Tensor, state: Sequence[Any]) -> Observation:
        """See `mmrl.Simulator.restore`."""
        envs = self._ids(env_ids_n)
        check_states(self.workers.what, len(envs), len(state))
        self.workers.restore(dict(zip(envs, state, strict=True)))
        return self._observe(envs)

    def render(self, env_ids_n: torch.Tensor) -> torch.Tensor:
        """Images for people, uint8 [n, H, W, 3]."""
        import torch

        shown = self.workers.call(self._ids(env_ids_n), "render")
        return torch.stack(
            [torch.frombuffer(bytearray(data), dtype=torch.uint8).view(height, width, 3) for height, width, data in shown]
        ).to(self.device)

    def close(self) -> None:
        self.workers.close()

    def _expert(self) -> torch.Tensor:
        """float32 [N, A]: what the environments' own `expert()` would do now, for a subclass whose environments have that method.
        0 in those that are lost, or are lost now, which a warning tells; their next step has them in `lost_N`."""
        import torch

        before, actions_NA = self.workers.lost, torch.zeros(self.num_envs, self.action.dims)
        told, lost = self.workers.call_going("expert")
        self._warn(lost, before)
        for env, action in told.items():
            actions_NA[env] = torch.tensor(action)
        return actions_NA.to(self.device)

    def _observe(self, envs: Sequence[int]) -> Observation:
        seen = [name for name in self.workers.rows if name.startswith("camera/") or name == "state"]
        return self._observation(envs, self._rows(envs, seen))

    def _observation(self, envs: Sequence[int], rows: Mapping[str, torch.Tensor]) -> Observation:
        return Observation(
            images={name.removeprefix("camera/"): row for name, row in rows.items() if name.startswith("camera/")},
            state=rows.get("state"),
            instructions=[self.instructions[env] for env in envs],
        )

    def _rows(self, envs: Sequence[int], names: Sequence[str], **others: torch.Tensor) -> dict[str, torch.Tensor]:
        """Copies of the rows of these arrays, since the next step overwrites the shared memory, and of other tensors. On a GPU
        the copy on the host is pinned memory, from which all come over at once and nobody waits."""
        import torch

        whole = list(envs) == list(range(self.num_envs))
        shared = {name: self.workers.rows[name] if whole else self.workers.rows[name][list(envs)] for name in names}
        if whole and self.device.type == "cpu":
            shared = {name: rows.copy() for name, rows in shared.items()}
        return upload({name: torch.from_numpy(rows) for name, rows in shared.items()} | others, self.device)

    def _warn(self, lost: Mapping[int, str], before: int) -> None:
        """Warn of environments that were just lost, less often the more there are. before: number of earlier losses."""
        for number, (env, why) in enumerate(lost.items(), before + 1):
            if warns_of_loss(number):
                warnings.warn(f"{self.workers.what}: environment {env} was lost (loss number {number}): {why}", stacklevel=3)

    def _ids(self, env_ids_n: torch.Tensor | None) -> list[int]:
        envs: list[int] = checked_ids(env_ids_n, self.num_envs, "cpu").tolist()
        return envs
