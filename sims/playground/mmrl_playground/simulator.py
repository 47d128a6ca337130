"""`playground/...`: N environments of MuJoCo Playground as one batch, which a process of its own steps."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from mmrl import UserError
from mmrl.api.simulators.checks import check_count, check_variant, checked_actions, checked_ids, checked_seeds
from mmrl.api.simulators.gpus import cuda_variables, egl_variables
from mmrl.api.simulators.processes import EnvironmentProcesses
from mmrl.api.simulators.types import ActionSpec, Observation, Transition
from mmrl_playground import CAMERAS, packages

FACTORY = "mmrl_playground.batch:Batch"
"""What makes the batch, in its process."""
START_S = 3600.0
"""Timeout in seconds for a process to import JAX and compile a task's programs."""
WAYS = {"software": "osmesa", "gpu": "egl"}
"""Ours -> MuJoCo's, as in MUJOCO_GL."""
CHOICES = {"obs": ("rgb", "state"), "impl": ("jax", "warp"), "platform": ("auto", *packages.PLATFORMS), "rendering": tuple(WAYS)}


class Playground:
    """A task of Playground, N times. An episode's start depends on its seed as `reset(jax.random.PRNGKey(seed))` does.

    Example::

        task = {"task": "CartpoleBalance", "instruction": "keep the pole upright", "obs": "state"}
        simulator = Playground(num_envs=64, device="cpu", python="playground/bin/python", **task)
        simulator.reset(torch.arange(64))
    """

    own_deadlines = True
    """Each call has a deadline (`EnvironmentProcesses`), so the engine's `simulate.timeout_s` doesn't apply."""

    def __init__(
        self,
        *,
        num_envs: int,
        device: str | torch.device,
        task: str,
        instruction: str,
        obs: Literal["rgb", "state"] = "rgb",
        size: int = 64,
        camera: str | None = None,
        rendering: Literal["software", "gpu"] = "software",
        impl: Literal["jax", "warp"] = "jax",
        platform: Literal["auto", "cpu", "gpu"] = "auto",
        config: Mapping[str, Any] | None = None,
        menagerie: str | None = None,
        success_return: float | None = None,
        block: int | None = None,
        python: str | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        """task: of Playground's registry. instruction: the task, in words. obs: rgb, pictures and Playground's observation; or
        state, the observation alone. size: side of the pictures in pixels. camera: its name in the task's model; by default the
        first. rendering: software (OSMesa) or gpu (EGL). impl: what simulates: jax, MJX's own; or warp, its mujoco-warp.
        platform: what JAX computes on: auto, a CPU if the simulator is on one, else JAX's default; cpu or gpu. config: changes
        of the task's published config, dotted name -> value. menagerie: folder of MuJoCo Menagerie, which robots' models are read
        from, by default that of MMRL_PLAYGROUND_MENAGERIE. success_return: the sum of rewards from which an episode counts as
        solved; None: none does.
        block: environments that are computed by one call of the compiled program, by default 64 on a CPU, all elsewhere; their
        last bits depend on it, and on num_envs nothing does. python: the interpreter with Playground, by default that of
        MMRL_PLAYGROUND_PYTHON, or this one. timeout_s: seconds after which a process that doesn't answer is killed; compiling
        doesn't count."""
        self.what = f"playground ({task})"
        check_count(self.what, num_envs)
        _check(
            self.what,
            {"obs": obs, "impl": impl, "platform": platform, "rendering": rendering},
            size,
            config,
            success_return,
            block,
        )
        self.device = torch.device(device)
        if platform == "auto" and self.device.type == "cpu" and "JAX_PLATFORMS" not in os.environ:
            platform = "cpu"
        python = _interpreter(self.what, python)
        options = {
            "task": task,
            "num_envs": num_envs,
            "impl": impl,
            "platform": platform,
            "config": dict(config or {}),
            "menagerie": menagerie,
            "success_return": success_return,
            "size": size if obs == "rgb" else None,
            "camera": camera,
            "block": block,
        }
        done = _announced(self.what, python, options)
        self._process = EnvironmentProcesses(
            FACTORY,
            options,
            1,
            what=self.what,
            python=python,
            environment=_environment(platform, rendering, self.device),
            start_s=START_S,
            timeout_s=timeout_s,
        )
        done.touch()
        facts = self._process.facts
        self.num_envs, self.instruction = num_envs, instruction
        self.action = ActionSpec(dims=facts["action"])
        """The action space of this instance."""
        self.max_steps = int(facts["max_steps"])
        """Steps after which an episode should be truncated: Playground's `episode_length`."""
        self.computes_on = str(facts["devices"])
        """JAX's devices, such as `1 x cpu`."""
        self._gone_N = torch.zeros(num_envs, dtype=torch.bool)
        """Environments that were lost with an earlier process, and not reset since."""

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        """See `mmrl.Simulator.reset`. It has no variants."""
        ids_n = checked_ids(env_ids_n, self.num_envs, "cpu")
        check_variant(self.what, variant, ())
        seeds = checked_seeds(seeds_n, len(ids_n), "cpu").tolist()
        before = self._process.pid(0)
        self._process.reset({0: dict(zip(ids_n.tolist(), seeds, strict=True))})
        return self._arrived(ids_n, before)

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        """See `mmrl.Simulator.step`. If the process dies, all environments are lost; a warning gives the reason."""
        actions_NA, active_N = checked_actions(actions_NA, active_N, self.num_envs, self.action.dims, "cpu")
        going_N = active_N & ~self._gone_N
        numbers = torch.cat([actions_NA.flatten(), going_N.float()])
        for why in self._process.step(numbers[None].numpy(), [0]).values() if going_N.any() else ():
            warnings.warn(f"{self.what}: all environments were lost: {why}", stacklevel=2)
            self._gone_N[:] = True
        lost_N = active_N & (self._gone_N | self._row("lost"))
        return Transition(
            observation=self._observe(torch.arange(self.num_envs)),
            reward_N=self._row("reward").to(self.device),
            terminated_N=self._row("terminated").to(self.device),
            truncated_N=torch.zeros(self.num_envs, dtype=torch.bool, device=self.device),
            success_N=self._row("success").to(self.device),
            lost_N=lost_N.to(self.device),
        )

    def snapshot(self, env_ids_n: torch.Tensor) -> dict[str, Any]:
        """The rows of these environments in each array of Playground's state, and of which task it is."""
        ids_n = checked_ids(env_ids_n, self.num_envs, "cpu")
        self._check_there(ids_n)
        (state,) = self._process.call([0], "snapshot", ids_n.tolist())
        return dict(state)

    def restore(self, env_ids_n: torch.Tensor, state: Mapping[str, Any]) -> Observation:
        """See `mmrl.Simulator.restore`. Raises UserError if the state is from another task."""
        ids_n = checked_ids(env_ids_n, self.num_envs, "cpu")
        before = self._process.pid(0)
        self._process.restore({0: (ids_n.tolist(), state)})
        return self._arrived(ids_n, before)

    def render(self, env_ids_n: torch.Tensor) -> torch.Tensor:
        """uint8 [n, 256, 256, 3], by MuJoCo's own renderer."""
        ids_n = checked_ids(env_ids_n, self.num_envs, "cpu")
        self._check_there(ids_n)
        (shown,) = self._process.call([0], "render", ids_n.tolist())
        return torch.from_numpy(shown).to(self.device)

    def close(self) -> None:
        self._process.close()

    def _arrived(self, ids_n: torch.Tensor, before: int | None) -> Observation:
        """These environments are there, and the others too if the process is the one of before."""
        if self._process.pid(0) != before:
            self._gone_N[:] = True
        self._gone_N[ids_n] = False
        return self._observe(ids_n)

    def _check_there(self, ids_n: torch.Tensor) -> None:
        if self._gone_N[ids_n].any():
            first = int(ids_n[self._gone_N[ids_n]][0])
            raise UserError(f"{self.what}: environment {first} was lost: reset it first")

    def _observe(self, ids_n: torch.Tensor) -> Observation:
        images = {name: self._row(name)[ids_n].to(self.device) for name in CAMERAS if name in self._process.rows}
        state = self._row("state")[ids_n].to(self.device)
        return Observation(images=images, state=state, instructions=[self.instruction] * len(ids_n))

    def _row(self, name: str) -> torch.Tensor:
        """[N, ...], a copy: the next step overwrites the shared memory."""
        return torch.from_numpy(self._process.rows[name][0].copy())


def _interpreter(what: str, option: str | None) -> str | None:
    """The interpreter that has Playground, None for this one. Raises UserError if this one lacks it."""
    found = packages.interpreter(option)
    if found is None:
        try:
            packages.check_installed()
        except packages.Refused as error:
            raise UserError(f"{what}: {error}") from error
    return found


def _environment(platform: str, rendering: str, device: torch.device) -> dict[str, str]:
    """Variables of the process: what JAX computes on, where it keeps what it compiled, what MuJoCo draws with. JAX computes on
    the first GPU that it sees, so it sees the simulator's alone."""
    chosen = {} if platform == "auto" else {"JAX_PLATFORMS": packages.PLATFORMS[platform]}
    drawn = {"MUJOCO_GL": WAYS[rendering], **(egl_variables(device) if rendering == "gpu" else {})}
    chosen = drawn | chosen | cuda_variables(device)  # by their names, since numbers may mean others to CUDA
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(cache()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # or it would take three quarters of the GPU from the learner
    }
    return {**kept, **{name: os.environ[name] for name in kept if name in os.environ}, **chosen}


def cache() -> Path:
    """The folder with the programs that were compiled: JAX_COMPILATION_CACHE_DIR, or mmrl's in the user's cache."""
    named = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmrl" / "playground"


def _announced(what: str, python: str | None, options: Mapping[str, Any]) -> Path:
    """The file that remembers that such programs were compiled; warns of the wait where it isn't there."""
    programs = {name: options[name] for name in ("task", "impl", "platform", "config", "block")}
    digest = hashlib.sha256(f"{python} {programs}".encode()).hexdigest()[:16]
    done = cache() / f"mmrl_playground_{digest}"
    if not done.exists():
        warnings.warn(
            f"{what} is compiled, once: half a minute of a CPU, or a few for a robot; the programs stay in {done.parent}",
            stacklevel=3,
        )
        try:
            done.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{what}: the folder of compiled programs can't be made ({error}): set JAX_COMPILATION_CACHE_DIR to one that can"
            ) from error
    return done


def _check(
    what: str,
    chosen: Mapping[str, Any],
    size: int,
    config: Mapping[str, Any] | None,
    success_return: float | None,
    block: int | None,
) -> None:
    """Raises UserError for options that no task supports."""
    for name, value in chosen.items():
        if value not in CHOICES[name]:
            raise UserError(f"{what}: {name} = {value!r} must be one of {', '.join(CHOICES[name])}")
    if isinstance(size, bool) or not isinstance(size, int) or not 8 <= size <= 1024:
        raise UserError(f"{what}: size = {size!r} must be a whole number of 8 to 1024")
    if block is not None and (isinstance(block, bool) or not isinstance(block, int) or not 1 <= block <= 2**16):
        raise UserError(f"{what}: block = {block!r} must be a whole number of 1 to 65536")
    if config is not None and not (isinstance(config, Mapping) and all(isinstance(name, str) for name in config)):
        raise UserError(f"{what}: config = {config!r} must be names and values, such as {{ ctrl_dt = 0.02 }}")
    if success_return is not None and (
        isinstance(success_return, bool) or not isinstance(success_return, int | float) or not success_return > 0
    ):
        raise UserError(f"{what}: success_return = {success_return!r} must be above 0, the return at the start of an episode")
