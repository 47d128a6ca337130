"""A simulator under test, and helpers that step and compare it.

The actions of an environment are a function of its seed and step, so that its trajectories in different batches can be compared.
Comparisons are bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mmrl.api.simulators.types import ActionSpec, Observation, Transition
from mmrl.api.specs import SimulatorSpec
from mmrl.testing.checks import CheckFailed

if TYPE_CHECKING:
    import torch

    Rows = dict[str, torch.Tensor]
    """Name -> rows of some environments; texts are replaced by their indices in `SimulatorSubject.texts`."""

STEPS = 5
"""Number of steps that are compared."""


@dataclass
class SimulatorSubject:
    """A simulator under test."""

    spec: SimulatorSpec
    make: Callable[[int], Any]
    """Makes a new instance with this number of environments."""
    n: int
    device: str
    texts: list[str] = field(default_factory=list)
    """All instructions so far."""
    used: Any = None
    """An instance with n environments that checks have in turn. Making one may take seconds."""

    def can(self, capability: str) -> bool:
        return capability in self.spec.capabilities

    @contextmanager
    def instance(self, n: int | None = None) -> Iterator[Any]:
        """An instance with n environments, which may have been used before: begin with a reset. No check has it after one that
        fails."""
        if n not in (None, self.n):
            with self.new_instance(n) as simulator:
                yield simulator
            return
        self.used = self.used or self.make(self.n)
        try:
            yield self.used
        except BaseException:
            self.close()
            raise

    @contextmanager
    def new_instance(self, n: int | None = None) -> Iterator[Any]:
        """An instance that is made now, and closed at the end."""
        simulator = self.make(n or self.n)
        try:
            yield simulator
        finally:
            simulator.close()

    def close(self) -> None:
        """Close the instance that checks have in turn."""
        simulator, self.used = self.used, None
        if callable(close := getattr(simulator, "close", None)):
            close()

    def action(self, simulator: Any) -> ActionSpec:
        found = getattr(simulator, "action", None) or self.spec.action
        if found is None:
            raise CheckFailed("neither the instance nor the spec has an action space: give SimulatorSpec an ActionSpec")
        return found

    def numbers(self, values: Sequence[int]) -> torch.Tensor:
        """int64 on the simulator's device."""
        import torch

        return torch.tensor(list(values), dtype=torch.int64, device=self.device)

    def actions(self, simulator: Any, seeds_n: torch.Tensor, step: int) -> torch.Tensor:
        """Random actions, float32 [n, A] in [-1, 1]."""
        from mmrl.api.simulators.noise import uniform

        return uniform(seeds_n, 1, step, shape=(self.action(simulator).dims,)) * 2 - 1

    def seeds(self, n: int) -> torch.Tensor:
        return self.numbers(range(11, 11 + n))


def run(subject: SimulatorSubject, simulator: Any, seeds_n: torch.Tensor, steps: int, start: int = 0) -> list[Transition]:
    """Step all environments with the actions of their seeds. start: number of the first step."""
    import torch

    active = torch.ones_like(seeds_n, dtype=torch.bool)
    return [simulator.step(subject.actions(simulator, seeds_n, start + i), active) for i in range(steps)]


def future(subject: SimulatorSubject, simulator: Any, seeds_n: torch.Tensor) -> list[Rows]:
    """The rows of a reset and of the `STEPS` steps after it."""
    start = rows(subject, simulator.reset(seeds_n))
    return [start, *(rows(subject, moved) for moved in run(subject, simulator, seeds_n, STEPS))]


def rows(subject: SimulatorSubject, shown: Observation | Transition) -> Rows:
    """Copies of all rows of an observation or transition. Raises CheckFailed if an environment was lost."""
    if isinstance(shown, Transition) and shown.lost_N is not None and shown.lost_N.any():
        lost = shown.lost_N.nonzero()[:, 0].tolist()
        raise CheckFailed(f"lost_N: environments {lost} failed in a step: find out why, or correct what sets lost_N")
    seen = shown.observation if isinstance(shown, Transition) else shown
    found = {f"camera {name!r}": image for name, image in seen.images.items()}
    if seen.state is not None:
        found["state"] = seen.state
    subject.texts += [text for text in dict.fromkeys(seen.instructions) if text not in subject.texts]
    found["instructions"] = subject.numbers([subject.texts.index(text) for text in seen.instructions])
    if isinstance(shown, Transition):
        found |= {name: getattr(shown, name) for name in ("reward_N", "terminated_N", "truncated_N", "success_N")}
        found |= {f"part {name!r}": part for name, part in shown.parts.items()}
    return {name: value.clone() for name, value in found.items()}


def only(shown: list[Rows], which: Sequence[int]) -> list[Rows]:
    """The rows of some environments, at each step."""
    return [{name: values[list(which)] for name, values in rows.items()} for rows in shown]


def assert_equal(first: list[Rows], again: list[Rows], when: str, cure: str) -> None:
    """Raise CheckFailed unless all rows are equal, bit for bit (0 and -0 are equal). when: completes "differs at step 1 when"."""
    for step, (one, other) in enumerate(zip(first, again, strict=True)):
        for name, value in one.items():
            if name not in other or value.shape != other[name].shape or not (value == other[name]).all():
                raise CheckFailed(f"{name} differs at step {step} when {when}: {cure}")
