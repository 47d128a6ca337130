"""Simulators in other processes that are replaced when they die: the base of those in Ray actors and of those over a wire."""

from __future__ import annotations

import abc
import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.api.interfaces import Expert
from mmrl.api.simulators.types import Observation, Simulation, Transition

START_S = 600.0
"""Seconds for a simulator to be made, at least."""
SAID = ("action", "instruction", "max_steps", "variants")
"""Optional attributes of a simulator, which are copied from where it runs."""


class Elsewhere(Protocol):
    """Makes the simulators of a learner's lanes in other processes."""

    def make(self, simulation: Simulation, num_envs: int) -> ReplacedSimulator:
        """A simulator with its own process; see `Registry.make_simulator` for errors."""
        ...

    def close(self) -> None:
        """Called after the simulators were closed."""


class Died(Exception):
    """The process of a simulator ended, hung or can't be reached. The message gives the reason in one line."""


class ReplacedSimulator(abc.ABC):
    """A `mmrl.Simulator` whose environments are in another process; tensors are on the CPU.

    When that process dies, another takes its place, at most `retries` times. The episodes in its environments are lost: at their
    next step they are `lost_N`, so that the engine restarts them, as with environments in processes
    (`mmrl.api.simulators.processes`). Another death raises UserError.

    A subclass defines `start`, `call` and `stop`.
    """

    advice = "give it more memory or lower simulate.num_envs"
    """What to do if it dies too often."""

    def __init__(self, simulation: Simulation, num_envs: int, retries: int) -> None:
        self.simulation, self.num_envs, self.retries = simulation, num_envs, retries
        self.who = f"simulator {simulation.simulator!r}"
        self.deaths = 0
        self._gone_N = torch.zeros(num_envs, dtype=torch.bool)
        """Environments whose episode was lost with a process, and that weren't reset since."""
        self.facts: dict[str, Any] = self._begin()
        for name, value in self.facts["said"].items():
            setattr(self, name, value)
        if self.facts["expert"]:  # only then is it a `mmrl.Expert`
            self.expert = partial(self._asked, "expert")

    # -- what a subclass defines ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def start(self) -> dict[str, Any]:
        """Start a process that makes the simulator. Returns `facts_of` it. Raises Died, and UserError if it can't be made."""

    @abc.abstractmethod
    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        """Call a method of the simulator, and `repeat` its warnings. Raises Died, and the UserError of the method."""

    @abc.abstractmethod
    def stop(self, patiently: bool) -> None:
        """End the process; may be called twice. patiently: let the simulator close itself first."""

    # -- a simulator --------------------------------------------------------------------------------------------------------

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
        """See `mmrl.Simulator.snapshot`: pickled, to be read by the simulator's own process again."""
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
        """Close the simulator, and end its process."""
        self.stop(patiently=True)

    @staticmethod
    def repeat(warned: Sequence[str]) -> None:
        """Warn here of what the simulator warned of."""
        for text in warned:
            warnings.warn(text, stacklevel=5)

    # -- deaths ---------------------------------------------------------------------------------------------------------------

    def _begin(self) -> dict[str, Any]:
        while True:
            try:
                return self.start()
            except Died as error:
                self.stop(patiently=False)
                self._count(error)
            except UserError:
                self.stop(patiently=False)
                raise

    def _asked(self, name: str, *arguments: Any) -> Any:
        """Call a method of the simulator; if its process dies, call it again on a new one."""
        while True:
            try:
                return self.call(name, arguments)
            except Died as error:
                self.stop(patiently=False)  # also if it only can't be reached
                self._count(error)
                self._replace()

    def _replace(self) -> None:
        facts = self._begin()
        if facts != self.facts:
            self.stop(patiently=False)
            raise UserError(f"{self.who} was started again and is another one now: it said {self.facts}, and says {facts}")
        self._gone_N[:] = True
        with contextlib.suppress(Died):  # so that all environments have a state, as in a used simulator
            self.call("reset", (torch.zeros(self.num_envs, dtype=torch.int64), None, None))

    def _count(self, error: Died) -> None:
        """Count a death. Raises UserError if there were too many."""
        self.deaths += 1
        why = shorten(error, 200)
        if self.deaths > self.retries:
            raise UserError(
                f"{self.who}: its process died more often than compute.retries = {self.retries} allows "
                f"({why}): {self.advice}, then go on with --resume"
            ) from error
        warnings.warn(f"{self.who}: its process died, and its episodes are restarted: {why}", stacklevel=4)

    def _mend(self, env_ids_n: torch.Tensor | None) -> None:
        self._gone_N[slice(None) if env_ids_n is None else env_ids_n.cpu()] = False


def facts_of(simulator: Any) -> dict[str, Any]:
    """What `ReplacedSimulator` tells of a simulator: its attributes, and whether it has an expert."""
    return {
        "said": {name: getattr(simulator, name) for name in SAID if hasattr(simulator, name)},
        "expert": isinstance(simulator, Expert),
    }
