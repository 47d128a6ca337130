"""What a run asks of a cluster, and whether the cluster has it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from mmrl.errors import UserError
from mmrl.schema import ComputeConfig

PATIENCE_S = 15.0
"""Seconds that what another run has just left may take to be free."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Processes that each take a CPU, and where there are GPUs those."""

    learners: int
    engines: int
    """0 where learners sample themselves."""
    tensor_parallel: int = 1
    """GPUs of each engine."""

    @classmethod
    def of(cls, compute: ComputeConfig) -> Wanted:
        return cls(compute.learners, 0 if compute.placement == "colocated" else compute.engines, compute.tensor_parallel)

    def amounts(self, use_gpu: bool) -> dict[str, int]:
        """By Ray's names of resources."""
        found = {"CPU": self.learners + self.engines}
        return found | ({"GPU": self.learners + self.engines * self.tensor_parallel} if use_gpu else {})

    def __str__(self) -> str:
        engines = f" and compute.engines = {self.engines}" if self.engines else ""
        return f"compute.learners = {self.learners}{engines}"


def check_room(ray: Any, wanted: Wanted, device: str) -> bool:
    """Whether learners take a GPU each. device: `policy.device`. Raises UserError when the cluster can't hold the run."""
    there = ray.cluster_resources()
    use_gpu = device.startswith("cuda") or (device == "auto" and there.get("GPU", 0) > 0)
    if missing := lacking(ray, wanted, use_gpu):
        raise UserError(f"{missing}: ask for fewer, or add nodes")
    started = time.monotonic()
    while short := short_of(ray.available_resources(), wanted.amounts(use_gpu)):
        if time.monotonic() - started > PATIENCE_S:
            raise UserError(f"{wanted} want {short} that are free: wait for what uses the others, or ask for fewer")
        time.sleep(0.5)
    return use_gpu


def lacking(ray: Any, wanted: Wanted, use_gpu: bool = False) -> str:
    """What the cluster, with all that it has, can't hold of the run; empty when it can hold it."""
    short = short_of(ray.cluster_resources(), wanted.amounts(use_gpu))
    return f"{wanted} want {short} in the cluster" if short else ""


def short_of(there: dict[str, float], amounts: dict[str, int]) -> str:
    """The first resource of which there is less than asked for, in words."""
    return next((f"{n} {name}s of {there.get(name, 0):g}" for name, n in amounts.items() if there.get(name, 0) < n), "")
