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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy
import torch

from mmrl.api.errors import plugin_errors, shorten
from mmrl.api.simulators.types import Observation, Simulation, Transition
from mmrl.compute.crossing import Answer, attempt
from mmrl.compute.ray import ACTOR, adopt_environment, hide_gpus, ray_for, switches, wait_for_cpus
from mmrl.config.sections import RunConfig
from mmrl.registry import plugins
from mmrl.rollout.simulators.replaced import START_S, Died, ReplacedSimulator, facts_of

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
        return ActorSimulator(simulation, num_envs, self.config.compute.retries, self.config.simulate.timeout_s)

    def close(self) -> None:
        """End Ray if it was started for them; the simulators are closed before."""
        if self._started:
            import ray

            ray.shutdown()
            self._started = False


class ActorSimulator(ReplacedSimulator):
    """A simulator in a Ray actor; see `ReplacedSimulator` for what happens when the actor dies or hangs."""

    advice = "give it more memory or time (simulate.timeout_s), or lower simulate.num_envs"
    _actor: Any = None

    def __init__(self, simulation: Simulation, num_envs: int, retries: int, timeout_s: float) -> None:
        """timeout_s: deadline of each call in seconds."""
        self.timeout_s = timeout_s
        super().__init__(simulation, num_envs, retries)

    def start(self) -> dict[str, Any]:
        import ray

        room = {"num_cpus": 1, "num_gpus": 0, "scheduling_strategy": "SPREAD"}
        made = ray.remote(SimulatorActor).options(**room)
        self._actor = made.remote(self.simulation, self.num_envs, os.getcwd(), switches())
        facts: dict[str, Any] = self._got(self._actor.facts.remote(), max(START_S, self.timeout_s), "its start").result(ACTOR)
        return facts

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        answer, warned = self._got(self._actor.call.remote(name, *map(to_arrays, arguments)), self.timeout_s, name)
        self.repeat(warned)
        return to_tensors(answer.result(ACTOR))

    @staticmethod
    def _got(asked: Any, seconds: float, what: str) -> Any:
        """What an actor answers. Raises Died if it is dead, or doesn't answer in time."""
        import ray

        try:
            return ray.get(asked, timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            raise Died(f"{what} took longer than {seconds:g} s") from None
        except ray.exceptions.RayActorError as error:
            raise Died(shorten(error)) from error

    def stop(self, patiently: bool) -> None:
        if self._actor is None:
            return
        import ray

        if patiently:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(self._actor.close.remote(), timeout=CLOSING_S)
        ray.kill(self._actor)
        self._actor = None


class SimulatorActor:
    """A Ray actor with a simulator."""

    def __init__(self, simulation: Simulation, num_envs: int, folder: str, environment: Mapping[str, str]) -> None:
        """folder, environment: the learner's working folder and environment variables, to find plugins and files."""
        adopt_environment(folder, environment)
        hide_gpus()
        self._given = (simulation, num_envs, "cpu")
        self._made: Any = None

    def facts(self) -> Answer:
        """Make the simulator, and return its attributes."""

        def made() -> dict[str, Any]:
            self._made = self._made or plugins.registry().make_simulator(*self._given)
            return facts_of(self._made)

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
