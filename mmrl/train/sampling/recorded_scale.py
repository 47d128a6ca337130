"""Whether the recorded episodes of a data set are like those of a task's simulator: cameras, sizes of pictures, rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Demonstration, Observation, Simulation, TrajectoryData
from mmrl.api.specs import VerifierSpec
from mmrl.rollout.collector import Collector
from mmrl.rollout.simulators.lane import Lane
from mmrl.rollout.simulators.lockstep import SimulatorCollector

ROUNDING = 1e-3
"""By how much the sum of an episode's rewards may be outside of the task's range."""


def lane_of(collector: Collector, label: str) -> Lane | None:
    """A lane of a task's simulator; None if the policy's collector has none."""
    return collector.lanes(label)[0] if isinstance(collector, SimulatorCollector) else None


def as_seen(shown: Demonstration, here: Observation | None, where: str) -> Demonstration:
    """The recorded episode with the pictures of the simulator's cameras alone. Raises UserError if it lacks those of one; an
    episode without pictures stays as it is, since a policy that needs some says so. here: what the simulator shows, if that is
    known. where: begins the error."""
    if here is None or not shown.images:
        return shown
    if missing := [name for name in here.images if name not in shown.images]:
        raise UserError(
            f"{where} has pictures of {', '.join(shown.images)}, and not of the simulator's camera {missing[0]!r}: name the "
            f'data\'s keys by the option cameras, such as {{ {missing[0]} = "observation.images.top" }}, or {{ }} for a policy '
            "that reads the state alone"
        )
    return replace(shown, images={name: shown.images[name] for name in here.images})


def other_sizes(track: TrajectoryData, here: Observation) -> str:
    """The camera whose pictures in a recorded episode are of another size than the simulator's, in words; empty if there is
    none."""
    for name, shown in track.images.items():
        (there_h, there_w), (own_h, own_w) = shown.shape[1:3], here.images[name].shape[1:3]
        if (there_h, there_w) != (own_h, own_w):
            return (
                f"the pictures of camera {name!r} are of {there_w} by {there_h} pixels in its data set, and of {own_w} by "
                f"{own_h} in its simulator: the policy may see both differently; make them equal if it doesn't learn"
            )
    return ""


def paid_range(simulation: Simulation, verifiers: Sequence[tuple[VerifierSpec, float]], steps: int) -> tuple[float, float]:
    """The least and the most that an episode of a task is paid in all; infinite if the simulator pays by a rule of its own.
    verifiers: with their weights. steps: at most in an episode."""
    if simulation.reward == "own":
        return -math.inf, math.inf
    times = 1 if simulation.potential_based else steps
    worth = [times * weight for weight in simulation.stages.values()] if simulation.reward == "stages" else []  # of parts 0 to 1
    ends = [(min(0.0, most), max(0.0, most)) for most in worth]
    for spec, weight in verifiers:
        low, high = sorted((weight * spec.low, weight * spec.high))
        ends.append((low, high))
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def paid_otherwise(sums: Sequence[float], low: float, high: float) -> str:
    """The recorded episodes that were paid what no episode of the task is, in words; empty if there are none, or if nothing pays
    the task. sums: of the rewards of each episode."""
    outside = [paid for paid in sums if not low - ROUNDING <= paid <= high + ROUNDING]
    if not outside or low == high:
        return ""
    return (
        f"{len(outside)} of {len(sums)} recorded episodes were paid sums such as {outside[0]:.4g}, and an episode of the task is "
        f"paid {low:.4g} to {high:.4g} in all: the critics mix both; give the task's stages and verifiers the scale of the data"
    )
