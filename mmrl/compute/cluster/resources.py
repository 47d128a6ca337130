"""The resources that a run needs, and whether the cluster has them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from mmrl.api.errors import UserError
from mmrl.compute.ray import PATIENCE_S
from mmrl.config.sections import ComputeConfig


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """Numbers of processes of a run. Each takes a CPU; learners and engines also take GPUs if the cluster has any."""

    learners: int
    engines: int
    """0 if learners sample themselves."""
    tensor_parallel: int = 1
    """GPUs per engine."""
    gpus_per_learner: int = 1
    judges: int = 0
    """0 if each learner has its own judge."""
    processes: int = 1
    """CPUs per judge."""
    lanes: int = 0
    """Simulator processes per learner, for one task. 0 if simulators run in the learners."""
    tasks: int = 1
    """Number of tasks that may have their own simulators."""

    @classmethod
    def of(cls, compute: ComputeConfig, processes: int = 1, lanes: int = 1, tasks: int = 1) -> ResourceRequest:
        """processes: `judge.num_workers`. lanes: `simulate.lanes`. tasks: number of tasks of the run."""
        return cls(
            learners=compute.learners,
            engines=0 if compute.placement == "colocated" else compute.engines,
            tensor_parallel=compute.tensor_parallel,
            gpus_per_learner=compute.gpus_per_learner,
            judges=compute.judges,
            processes=processes,
            lanes=lanes if compute.simulators == "actors" else 0,
            tasks=tasks,
        )

    def amounts(self, use_gpu: bool) -> dict[str, int]:
        """Ray's name of a resource -> amount."""
        cpus = {"CPU": self.learners * (1 + self.lanes) + self.engines + self.judges * self.processes}
        gpus = self.learners * self.gpus_per_learner + self.engines * self.tensor_parallel
        return cpus | ({"GPU": gpus} if use_gpu else {})

    @property
    def most_cpus(self) -> int:
        """Number of CPUs if every task has its own simulators."""
        return self.amounts(False)["CPU"] + self.learners * self.lanes * (self.tasks - 1)

    def __str__(self) -> str:
        parts = [f"compute.learners = {self.learners}"]
        if self.engines:
            parts.append(f"compute.engines = {self.engines}")
        if self.judges:
            parts.append(f"compute.judges = {self.judges} of judge.num_workers = {self.processes}")
        if self.lanes:
            parts.append(f"simulate.lanes = {self.lanes} of each learner")
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def check_resources(ray: Any, wanted: ResourceRequest, device: str) -> bool:
    """Whether learners take a GPU each. device: `policy.device`. Raises UserError if the cluster is too small for the run."""
    there = ray.cluster_resources()
    use_gpu = device.startswith("cuda") or (device == "auto" and there.get("GPU", 0) > 0)
    if missing := missing_resources(ray, wanted, use_gpu):
        raise UserError(f"{missing}: ask for fewer, or add nodes")
    started = time.monotonic()
    while short := short_of(ray.available_resources(), wanted.amounts(use_gpu)):
        if time.monotonic() - started > PATIENCE_S:
            raise UserError(f"{wanted} want {short} that are free: wait for the other programs on the cluster, or ask for fewer")
        time.sleep(0.5)
    return use_gpu


def missing_resources(ray: Any, wanted: ResourceRequest, use_gpu: bool = False) -> str:
    """A message if all resources of the cluster together are too few for the run; otherwise empty."""
    short = short_of(ray.cluster_resources(), wanted.amounts(use_gpu))
    return f"{wanted} want {short} in the cluster" if short else ""


def short_of(there: dict[str, float], amounts: dict[str, int]) -> str:
    """The first resource of which there is less than needed, as text; empty if there is enough."""
    return next((f"{n} {name}s of {there.get(name, 0):g}" for name, n in amounts.items() if there.get(name, 0) < n), "")
