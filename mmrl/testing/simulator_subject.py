"""A simulator under test, played and compared: what the rules for simulators are checked with.

Every environment gets actions that are a function of its seed and of its own step, so that it can be compared with itself in
another batch. Comparisons are bit for bit.
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
    """What some environments show: name -> their rows; texts are numbers of texts."""

STEPS = 5
"""Steps for which futures are compared."""


@dataclass
class SimulatorSubject:
    """A simulator under test."""

    spec: SimulatorSpec
    make: Callable[[int], Any]
    """A fresh instance with so many environments."""
    n: int
    device: str
    texts: list[str] = field(default_factory=list)
    """Every instruction that was seen."""

    def can(self, capability: str) -> bool:
        return capability in self.spec.capabilities

    @contextmanager
    def instance(self, n: int | None = None) -> Iterator[Any]:
        """An instance that is closed at the end."""
        simulator = self.make(n or self.n)
        try:
            yield simulator
        finally:
            simulator.close()

    def action(self, simulator: Any) -> ActionSpec:
        found = getattr(simulator, "action", None) or self.spec.action
        if found is None:
            raise CheckFailed("neither the instance nor the spec says what an action is: give SimulatorSpec an ActionSpec")
        return found

    def numbers(self, values: Sequence[int]) -> torch.Tensor:
        """int64 on the simulator's device."""
        import torch

        return torch.tensor(list(values), dtype=torch.int64, device=self.device)

    def actions(self, simulator: Any, seeds_n: torch.Tensor, step: int) -> torch.Tensor:
        """float32 [n, A] in [-1, 1]."""
        from mmrl.api.simulators.noise import uniform

        return uniform(seeds_n, 1, step, shape=(self.action(simulator).dims,)) * 2 - 1

    def seeds(self, n: int) -> torch.Tensor:
        return self.numbers(range(11, 11 + n))


def run(subject: SimulatorSubject, simulator: Any, seeds_n: torch.Tensor, steps: int, start: int = 0) -> list[Transition]:
    """Steps of all environments with the actions that belong to their seeds, from number `start` on."""
    import torch

    active = torch.ones_like(seeds_n, dtype=torch.bool)
    return [simulator.step(subject.actions(simulator, seeds_n, start + i), active) for i in range(steps)]


def future(subject: SimulatorSubject, simulator: Any, seeds_n: torch.Tensor) -> list[Rows]:
    """What a start and the steps after it show."""
    start = rows(subject, simulator.reset(seeds_n))
    return [start, *(rows(subject, moved) for moved in run(subject, simulator, seeds_n, STEPS))]


def rows(subject: SimulatorSubject, shown: Observation | Transition) -> Rows:
    """Everything that was shown, copied. A Fault where an environment was lost, of which nothing more can be told."""
    if isinstance(shown, Transition) and shown.lost_N is not None and shown.lost_N.any():
        lost = shown.lost_N.nonzero()[:, 0].tolist()
        raise CheckFailed(f"lost_N: environments {lost} broke in a step: see why their processes died, or mend what sets it")
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
    """The rows of some environments, at each moment."""
    return [{name: values[list(which)] for name, values in rows.items()} for rows in shown]


def assert_equal(first: list[Rows], again: list[Rows], when: str, cure: str) -> None:
    """Bit for bit, but for signs of zero."""
    for step, (one, other) in enumerate(zip(first, again, strict=True)):
        for name, value in one.items():
            if name not in other or value.shape != other[name].shape or not (value == other[name]).all():
                raise CheckFailed(f"{name} is another one at moment {step} when {when}: {cure}")
