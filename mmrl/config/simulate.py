"""`[simulate]` of a run file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from mmrl.config.addresses import parse_address
from mmrl.config.values import Section


class SimulateConfig(Section):
    """`[simulate]`: the simulators of tasks that act."""

    num_envs: Annotated[int, Field(ge=1, le=2**20)] = 64
    """Number of parallel environments for each task; each starts its next episode as soon as one has ended."""
    lanes: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of parts into which the environments are split: while the policy acts in one, the other simulators are stepped."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """Device of simulators that can run on a GPU; `auto` is that of the policy that acts."""
    policy_device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """Device of a copy of the policy that plays the episodes, such as `cuda:1`; with several learners, the next ones have the
    devices after it. With `compute.staleness` it plays while the policy learns. `auto`: the policy plays itself."""
    address: list[str] = []
    """`host:port` of one or several `mmrl simulator serve`, which lanes use in turn; empty: as `compute.simulators` says. The
    token is in the environment variable `MMRL_SIMULATOR_TOKEN`."""
    timeout_s: Annotated[float, Field(ge=0.1, le=86400)] = 600.0
    """Deadline in seconds of each call of a simulator. One in a process of its own that passes it is killed and replaced, at most
    `compute.retries` times; one in the learner's process ends the run."""
    demonstration_cache_mb: Annotated[int, Field(ge=0, le=2**30)] = 4096
    """Size in MB of the cache of the expert's newest episodes; other episodes are played again on use."""

    @field_validator("address", mode="before")
    @classmethod
    def _one_address_is_a_list(cls, address: Any) -> Any:
        return [address] if isinstance(address, str) and address else address or []

    @field_validator("address")
    @classmethod
    def _addresses_are_complete(cls, address: list[str]) -> list[str]:
        for one in address:
            parse_address(one)
        return address

    def smaller(self) -> SimulateConfig:
        return self.at_most(num_envs=2).model_copy(update={"device": "cpu", "policy_device": "auto"})
