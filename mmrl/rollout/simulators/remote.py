"""Simulators in Ray actors on any machine of a cluster, one for each lane, so that lanes run concurrently.

An actor makes its simulator from the task's simulation, by its id; data is exchanged as arrays in main memory. A simulator that
dies with its process or machine is made again, and its unfinished episodes are restarted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy
import torch

from mmrl.api.errors import UserError, plugin_errors, shorten
from mmrl.api.interfaces import Expert
from mmrl.api.simulators.types import Observation, Simulation, Transition
from mmrl.compute.crossing import Answer, attempt
from mmrl.compute.ray import ACTOR, adopt_environment, ray_for, switches, wait_for_cpus
from mmrl.config.sections import RunConfig
from mmrl.registry import plugins

SAID = ("action", "instruction", "max_steps", "variants")
"""Optional attributes of a simulator, which are copied from the actor."""
CLOSING_S = 10.0
"""Seconds that a simulator may take to close."""


class SimulatorActors:
    """Makes the simulators of a learner's lanes as actors (`compute.simulators`)."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._started = False

    def make(self, simulation: Simulation, num_envs: int) -> ActorSimulator:
        """A simulator in an actor with a CPU of its own. Raises UserError if Ray isn't installed or has no room for it, and the
        errors of `Registry.make_simulator`."""
        what = 'compute.simulators = "actors"'
        self._started |= ray_for(self.config, what, on_gpu=False)  # simulators in actors use no GPU
        import ray

        wait_for_cpus(ray, f"a simulator of {what}", 1)
        return ActorSimulator(simulation, num_envs, self.config.compute.retries)

    def close(self) -> None:
        """End Ray if it was started for them; the simulators are closed before."""
        if self._started:
            import ray

            ray.shutdown()
            self._started = False


class ActorSimulator:
    """A `mmrl.Simulator` whose environments are in a Ray actor; tensors are on the CPU.

    When the actor dies, a new one takes its place, at most `retries` times. The episodes in its environments are lost: at their
    next step they are `lost_N`, so that the engine restarts them, as with environments in processes
    (`mmrl.api.simulators.processes`). Another death raises UserError.
    """

    def __init__(self, simulation: Simulation, num_envs: int, retries: int) -> None:
        self.simulation, self.num_envs, self.retries = simulation, num_envs, retries
        self.who = f"simulator {simulation.simulator!r}"
        self.deaths = 0
        self._gone_N = torch.zeros(num_envs, dtype=torch.bool)
        """Environments whose episode was lost with an actor, and that weren't reset since."""
        self._actor: Any = None
        self._begin()
        for name, value in self.facts["said"].items():
            setattr(self, name, value)
        if self.facts["expert"]:  # only then is it a `mmrl.Expert`
            self.expert = partial(self._asked, "expert")

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        """See `mmrl.Simulator.reset`."""
        shown: Observation = self._asked("reset", seeds_n, env_ids_n, variant)
        self._mend(env_ids_n)
        return shown

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        """See `mmrl.Simulator.step`."""
        found: Transition = self._asked("step", actions_NA, active_N)
        if not self._gone_N.any():
            return found
        gone_N = self._gone_N & active_N.cpu()
        return replace(found, lost_N=gone_N if found.lost_N is None else found.lost_N | gone_N)

    def snapshot(self, env_ids_n: torch.Tensor) -> bytes:
        """See `mmrl.Simulator.snapshot`: pickled, to be read by an actor again."""
        state: bytes = self._asked("snapshot", env_ids_n)
        if self._gone_N[env_ids_n.cpu()].any():
            raise UserError(f"{self.who} died before its start was saved: go on with --resume")
        return state

    def restore(self, env_ids_n: torch.Tensor, state: bytes) -> Observation:
        """See `mmrl.Simulator.restore`."""
        shown: Observation = self._asked("restore", env_ids_n, state)
        self._mend(env_ids_n)
        return shown

    def render(self, env_ids_n: torch.Tensor) -> torch.Tensor:
        """See `mmrl.Simulator.render`."""
        frames: torch.Tensor = self._asked("render", env_ids_n)
        return frames

    def close(self) -> None:
        """Close the simulator, and end its actor."""
        if self._actor is None:
            return
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._actor.close.remote(), timeout=CLOSING_S)
        ray.kill(self._actor)
        self._actor = None

    # -- the actor ----------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start an actor, which makes the simulator."""
        import ray

        room = {"num_cpus": 1, "num_gpus": 0, "scheduling_strategy": "SPREAD"}
        made = ray.remote(SimulatorActor).options(**room)
        while True:
            self._actor = made.remote(self.simulation, self.num_envs, os.getcwd(), switches())
            try:
                self.facts: dict[str, Any] = ray.get(self._actor.facts.remote()).result(ACTOR)
                return
            except ray.exceptions.RayActorError as error:
                self._count(error)
            except UserError:
                ray.kill(self._actor)
                raise

    def _asked(self, name: str, *arguments: Any) -> Any:
        """Call a method of the simulator; if the actor dies, call it again on a new one."""
        import ray

        while True:
            try:
                answer, warned = ray.get(self._actor.call.remote(name, *map(to_arrays, arguments)))
                for text in warned:
                    warnings.warn(text, stacklevel=3)
                return to_tensors(answer.result(ACTOR))
            except ray.exceptions.RayActorError as error:
                self._count(error)
                ray.kill(self._actor)  # also if it only can't be reached
                self._begin()
                self._gone_N[:] = True
                # so that all environments have a state, as in a used simulator
                with contextlib.suppress(ray.exceptions.RayActorError):
                    start = to_arrays(torch.zeros(self.num_envs, dtype=torch.int64))
                    ray.get(self._actor.call.remote("reset", start))[0].result(ACTOR)

    def _count(self, error: Exception) -> None:
        """Count a death. Raises UserError if there were too many."""
        self.deaths += 1
        if self.deaths > self.retries:
            raise UserError(
                f"{self.who}: its process died more often than compute.retries = {self.retries} allows "
                f"({shorten(error)[:200]}): give it more memory or lower simulate.num_envs, then go on with --resume"
            ) from error
        warnings.warn(f"{self.who}: its process died, and its episodes are restarted: {shorten(error)[:200]}", stacklevel=4)

    def _mend(self, env_ids_n: torch.Tensor | None) -> None:
        self._gone_N[slice(None) if env_ids_n is None else env_ids_n.cpu()] = False


class SimulatorActor:
    """A Ray actor with a simulator."""

    def __init__(self, simulation: Simulation, num_envs: int, folder: str, environment: Mapping[str, str]) -> None:
        """folder, environment: the learner's working folder and environment variables, to find plugins and files."""
        adopt_environment(folder, environment)
        self._given = (simulation, num_envs, "cpu")
        self._made: Any = None

    def facts(self) -> Answer:
        """Make the simulator, and return its attributes."""

        def made() -> dict[str, Any]:
            self._made = self._made or plugins.registry().make_simulator(*self._given)
            said = {name: getattr(self._made, name) for name in SAID if hasattr(self._made, name)}
            return {"said": said, "expert": isinstance(self._made, Expert)}

        return attempt(made)

    def call(self, name: str, *arguments: Any) -> tuple[Answer, list[str]]:
        """Call a method of the simulator; returns its result and its warnings."""

        def done() -> Any:
            with plugin_errors(f"simulator {self._given[0].simulator!r}"):
                given = [to_tensors(one) for one in arguments]
                if name == "restore":
                    given[1] = pickle.loads(given[1])
                found = getattr(self._made, name)(*given)
                return pickle.dumps(found) if name == "snapshot" else to_arrays(found)

        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            answer = attempt(done)
        return answer, [str(warning.message) for warning in warned]

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


class Array(NamedTuple):
    """A tensor to be sent: processes of a machine share numpy arrays without copies."""

    data: numpy.ndarray


def to_arrays(value: Any) -> Any:
    """The same with arrays in place of tensors, in mappings and dataclasses too."""
    if isinstance(value, torch.Tensor):
        return Array(value.detach().cpu().numpy())
    return _inside(value, to_arrays)


def to_tensors(value: Any) -> Any:
    """The same with tensors in place of arrays, on the CPU and writable."""
    return torch.from_numpy(value.data.copy()) if isinstance(value, Array) else _inside(value, to_tensors)


def _inside(value: Any, change: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: change(one) for key, one in value.items()}
    if isinstance(value, Observation | Transition):
        return replace(value, **{f.name: change(getattr(value, f.name)) for f in dataclasses.fields(value)})
    return value
