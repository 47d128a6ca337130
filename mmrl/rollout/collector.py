"""Which collector serves a run: conversations, or simulators. The rest of the engine doesn't ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mmrl.api.interfaces import Task
from mmrl.api.types import Prompt, Rollout
from mmrl.config.sections import RunConfig
from mmrl.policies.acting.acting import ActingPolicy
from mmrl.policies.critic import Critic
from mmrl.policies.policy import Policy
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.engines import EngineActors, sampler_of
from mmrl.rollout.generate.sampling import Generator, Sampling
from mmrl.rollout.simulators.lockstep import StepCollector
from mmrl.rollout.simulators.remote import SimulatorActors
from mmrl.rollout.turns import TurnCollector


class Collector(Protocol):
    """Prompts -> rollouts."""

    critic: Critic | None
    """Values what is seen while it is collected, where an algorithm has one and the collector can use it."""

    advised: bool
    """Ask simulators' experts what they would do."""

    @property
    def batch_size(self) -> int:
        """Episodes that are best asked for at once."""
        ...

    def ready(self) -> None:
        """Make what collecting needs, so that what can't be made is refused before a run begins."""
        ...

    def encode(self, prompts: Sequence[Prompt]) -> list[Any]:
        """Prompts as the policy reads them, made once for each."""
        ...

    def collect(
        self,
        prompts: Sequence[Prompt],
        inputs: Sequence[Any],
        group_size: int,
        sampling: Sampling,
        version: int = 0,
        numbers: Sequence[int] = (),
    ) -> list[Rollout]:
        """N = len(prompts) * group_size finished episodes, a group's next to each other. numbers: of the prompts, see
        `Generator.generate`."""
        ...

    def demonstrate(self, prompts: Sequence[Prompt], inputs: Sequence[Any], completions: Sequence[str]) -> list[Rollout]:
        """Right episodes that nobody sampled: of these completions, or an expert's."""
        ...

    def figures(self) -> dict[str, float]:
        """Metrics of its own since they were last asked for. `mmrl.run_folder.metrics.REDUCTIONS` says what several learners
        make of each: the mean, for one that isn't in it."""
        ...

    def wake(self) -> None:
        """The policy is about to sample: called on all ranks alike, which `collect` needn't be."""
        ...

    def rest(self) -> None:
        """The learner learns now: give back what memory can be given until the next `collect`."""
        ...

    def close(self) -> None:
        """Let go of simulators."""
        ...


def collector_of(config: RunConfig, tasks: Mapping[str, Task], policy: Policy) -> Collector:
    """tasks: label -> task; all are answered in words or all act, as the policy does (`mmrl.train.checks.run_file`)."""
    if isinstance(policy, VLM):
        generate = config.generate
        return TurnCollector(policy, generator_of(config, policy), tasks, generate.max_turns, generate.max_context)
    assert isinstance(policy, ActingPolicy)
    device = str(policy.device) if config.simulate.device == "auto" else config.simulate.device
    elsewhere = SimulatorActors(config) if config.compute.simulators == "actors" else None
    return StepCollector(policy, tasks, config.simulate, device, elsewhere)


def generator_of(config: RunConfig, policy: VLM) -> Generator:
    """What completions are sampled with, and where."""
    here = None if config.compute.placement == "separate" else sampler_of(config, policy, twin=config.compute.staleness > 0)
    return here if config.compute.placement == "colocated" and here else EngineActors(config, policy, here)
