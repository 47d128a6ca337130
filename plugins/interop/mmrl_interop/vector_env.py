"""A task that acts in a simulator as a `gymnasium.vector.VectorEnv`; `mmrl_interop.gymnasium` makes one.

The task's own rules apply: rewards by stages, success, time limits. Episodes begin in the starts of the task's prompts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mmrl import OpenTask, UserError
from mmrl.api.simulators.rules import EpisodeRules, RuledStep, step_limit
from mmrl.api.simulators.types import Observation

if TYPE_CHECKING:
    from mmrl.api.types import Prompt

STATE = "state"


class TaskVectorEnv(VectorEnv[Any, Any, Any]):
    """N environments of a task. `OpenTask` stays the caller's: close it after the environments.

    Observations are a dict of cameras (uint8 [N, H, W, 3]) and `state` (float32 [N, S]), or one of them alone, as `observe` says.
    Actions are float32 [N, A] in [-1, 1]. `infos` has `instruction` and `prompt_id`, after a step `success` and `lost`, and for
    episodes that ended `return` and `length`. An environment that fails truncates its episode and sets `lost`.

    autoreset: `next-step` (Gymnasium's default) or `same-step`, with `final_obs`.
    """

    def __init__(
        self,
        task: OpenTask,
        num_envs: int,
        *,
        split: str = "train",
        seed: int = 0,
        observe: str | Sequence[str] | None = None,
        autoreset: str = "next-step",
        device: str = "cpu",
    ) -> None:
        """observe: a camera's name or `state` for that alone, or a list for a dict of them; None for all there are. Raises
        UserError for a task or simulator that can't be used so."""
        spec = task.simulator_spec
        if spec.action is None or "partial-reset" not in spec.capabilities:
            lacking = "an action space" if spec.action is None else "resets of single environments"
            raise UserError(f"simulator {spec.id!r} has not {lacking}, which a vector environment needs")
        modes = {"next-step": AutoresetMode.NEXT_STEP, "same-step": AutoresetMode.SAME_STEP}
        if autoreset not in modes:
            raise UserError(f"autoreset = {autoreset!r:.40} must be {' or '.join(modes)}")
        simulation = task.task.simulation
        assert simulation is not None
        self.task, self.num_envs = task, num_envs
        self._prompts, self._order = task.prompts(split, seed), random.Random(seed)
        self._simulator = task.simulator(num_envs, device)
        limit = step_limit(simulation, self._simulator, spec.max_steps)
        if limit < 1:
            raise UserError(f"simulator {spec.id!r} has no max_steps: set it in the task's simulation")
        self._rules, self.max_steps = EpisodeRules(simulation, num_envs, limit), limit
        self.metadata = {"autoreset_mode": modes[autoreset], "render_fps": spec.control_hz or 10}
        self.render_mode = "rgb_array" if spec.capabilities & {"render-cpu", "render-gpu"} else None
        action = getattr(self._simulator, "action", None) or spec.action  # the task's options may have changed it
        self.single_action_space = gymnasium.spaces.Box(-1.0, 1.0, (action.dims,), np.float32)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._playing: list[Prompt | None] = [None] * num_envs
        self._over_N = torch.zeros(num_envs, dtype=torch.bool)
        """Episodes that ended in the last step, to be reset by the next one."""
        self._return_N = np.zeros(num_envs, np.float64)
        self._seen = self._begin(list(range(num_envs)))
        self._observe = self._chosen(observe)
        self.single_observation_space = self._space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    # -- Gymnasium's interface ------------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in each environment. seed: draws which prompts are played, from here on. options: `prompts`, the
        places in the split of the prompts that are played now."""
        if seed is not None:
            self._order = random.Random(seed)
        self._over_N[:] = False
        self._seen = self._begin(list(range(self.num_envs)), (options or {}).get("prompts"))
        return self._shown(), self._told({})

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step. Raises UserError for actions of a wrong shape or NaN."""
        active_N, restarted = ~self._over_N, self._over_N.nonzero()[:, 0].tolist()
        found = self._simulator.step(torch.as_tensor(np.asarray(actions), dtype=torch.float32), active_N)
        self._seen = found.observation
        ruled = self._rules(found, active_N)
        terminated_N = (active_N & ruled.terminated_N & ~ruled.lost_N).numpy()
        truncated_N = (active_N & (ruled.truncated_N | ruled.lost_N)).numpy() & ~terminated_N
        rewards_N = ruled.rewards_N.numpy().astype(np.float64)
        self._return_N += rewards_N
        infos = self._outcomes(ruled, terminated_N | truncated_N)
        self._over_N = torch.from_numpy(terminated_N | truncated_N)
        if restarted:  # those that ended one step ago
            self._begin(restarted)
        if self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP and self._over_N.any():
            infos |= {"final_obs": self._shown(), "_final_obs": self._over_N.numpy().copy()}
            self._begin(self._over_N.nonzero()[:, 0].tolist())
            self._over_N[:] = False
        return self._shown(), rewards_N, terminated_N, truncated_N, self._told(infos)

    def render(self) -> tuple[np.ndarray, ...]:
        """Images for people, one for each environment. Raises UserError for a simulator that can't render."""
        if self.render_mode is None:
            raise UserError(
                f"simulator {self.task.simulator_spec.id!r} has no capability `render-cpu` or `render-gpu`: don't render it"
            )
        return tuple(self._simulator.render(torch.arange(self.num_envs)).cpu().numpy())

    def close_extras(self, **kwargs: Any) -> None:
        """Close the simulator."""
        self._simulator.close()

    # -- episodes ---------------------------------------------------------------------------------------------------------

    def _begin(self, envs: list[int], places: Sequence[int] | np.ndarray | None = None) -> Observation:
        """Begin episodes in these environments; the observations of all are updated. places: of their prompts; by default they
        are drawn."""
        for variant, own in self._drawn(envs, places).items():
            seeds = torch.tensor([prompt.seed for _, prompt in own], dtype=torch.int64)
            ids = torch.tensor([env for env, _ in own], dtype=torch.int64)
            fresh = self._simulator.reset(seeds, ids, variant)
            self._seen = fresh if len(own) == self.num_envs else _placed(getattr(self, "_seen", None), fresh, ids, self.num_envs)
        self._rules.begin(envs)
        self._return_N[envs] = 0
        return self._seen

    def _drawn(self, envs: list[int], places: Sequence[int] | np.ndarray | None) -> Mapping[str | None, list[tuple[int, Prompt]]]:
        """Variant -> [(environment, the prompt that it plays next)]."""
        drawn: dict[str | None, list[tuple[int, Prompt]]] = {}
        if places is None or len(places) == 0:
            places = [self._order.randrange(len(self._prompts)) for _ in envs]
        for env, place in zip(envs, places, strict=True):
            prompt = self._prompts[int(place)]  # an array's numbers are NumPy's
            self._playing[env] = prompt
            drawn.setdefault(prompt.meta.get("variant"), []).append((env, prompt))
        return drawn

    # -- observations -----------------------------------------------------------------------------------------------------

    def _chosen(self, observe: str | Sequence[str] | None) -> str | list[str]:
        known = [*self._seen.images, *([] if self._seen.state is None else [STATE])]
        asked = known if observe is None else [observe] if isinstance(observe, str) else list(observe)
        if unknown := [name for name in asked if name not in known]:
            raise UserError(f"observe names {unknown[0]!r:.60}: task {self.task.id!r} shows {', '.join(known)}")
        return observe if isinstance(observe, str) else asked

    def _space(self) -> gymnasium.Space[Any]:
        def one(name: str) -> gymnasium.Space[Any]:
            if name == STATE:
                assert self._seen.state is not None
                return gymnasium.spaces.Box(-np.inf, np.inf, self._seen.state.shape[1:], np.float32)
            return gymnasium.spaces.Box(0, 255, tuple(self._seen.images[name].shape[1:]), np.uint8)

        names = self._observe
        return one(names) if isinstance(names, str) else gymnasium.spaces.Dict({name: one(name) for name in names})

    def _shown(self) -> Any:
        """The observations of all environments, which later steps don't change."""

        def one(name: str) -> np.ndarray:
            tensor = self._seen.state if name == STATE else self._seen.images[name]
            assert tensor is not None
            return np.array(tensor.cpu().numpy(), copy=True)

        names = self._observe
        return one(names) if isinstance(names, str) else {name: one(name) for name in names}

    def _outcomes(self, ruled: RuledStep, ended_N: np.ndarray) -> dict[str, Any]:
        infos: dict[str, Any] = {"success": ruled.success_N.numpy().copy(), "lost": ruled.lost_N.numpy().copy()}
        if ended_N.any():
            lengths = self._rules.elapsed_N.numpy().copy()
            infos |= {"return": np.where(ended_N, self._return_N, 0.0), "length": np.where(ended_N, lengths, 0)}
            infos |= {"_return": ended_N, "_length": ended_N}
        return infos

    def _told(self, infos: dict[str, Any]) -> dict[str, Any]:
        prompts = [prompt.id if prompt else "" for prompt in self._playing]
        texts = np.array(list(self._seen.instructions), dtype=object)
        return {**infos, "instruction": texts, "prompt_id": np.array(prompts, dtype=object)}


def _placed(before: Observation | None, fresh: Observation, ids: torch.Tensor, num_envs: int) -> Observation:
    """The observations of all environments with fresh ones of some."""

    def rows(old: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        old = new.new_zeros(num_envs, *new.shape[1:]) if old is None else old
        return old.index_copy(0, ids.to(old.device), new)

    texts = list(before.instructions) if before else [""] * num_envs
    for env, text in zip(ids.tolist(), fresh.instructions, strict=True):
        texts[env] = text
    return Observation(
        images={camera: rows(before.images[camera] if before else None, new) for camera, new in fresh.images.items()},
        state=None if fresh.state is None else rows(before.state if before else None, fresh.state),
        instructions=texts,
    )
