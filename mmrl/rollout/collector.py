"""What makes rollouts: a policy names its collector, of conversations, of episodes in simulators, or a plugin's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mmrl.api.interfaces import Task
from mmrl.api.types import Prompt, Rollout
from mmrl.compute.ranks import Reduction
from mmrl.config.compute import ComputeConfig
from mmrl.config.sections import RunConfig
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.critic import Critic
from mmrl.policies.policy import Policy
from mmrl.policies.vlm.vlm import VLM
from mmrl.registry.importing import load_target
from mmrl.rollout.generate.engines import EngineActors, make_sampler
from mmrl.rollout.generate.sampling import Generator, SamplingParams
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.rollout.simulators.remote import SimulatorActors
from mmrl.rollout.turns import ConversationCollector


class Collector(Protocol):
    """Prompts -> rollouts. A subclass defines `batch_size`, `encode`, `collect` and `demonstrate`; the rest has a default."""

    critic: Critic | None = None
    """Values what is seen while it is collected, where an algorithm has one and the collector can use it."""

    with_expert: bool = False
    """Ask simulators' experts what they would do."""

    reductions: Mapping[str, Reduction] = {}
    """How its own figures add up over several learners, of those that `mmrl.run_folder.metrics.REDUCTIONS` doesn't know; a figure
    in neither is averaged."""

    @property
    def batch_size(self) -> int:
        """Episodes that are best asked for at once."""
        ...

    def ready(self) -> None:
        """Make what collecting needs, so that what can't be made is refused before a run begins."""

    def encode(self, prompts: Sequence[Prompt]) -> list[Any]:
        """Prompts as the policy reads them, made once for each."""
        ...

    def collect(
        self,
        prompts: Sequence[Prompt],
        inputs: Sequence[Any],
        group_size: int,
        sampling: SamplingParams,
        version: int = 0,
        numbers: Sequence[int] = (),
    ) -> list[Rollout]:
        """N = len(prompts) * group_size finished episodes, a group's next to each other. numbers: of the prompts, see
        `Generator.generate`."""
        ...

    def demonstrate(self, prompts: Sequence[Prompt], inputs: Sequence[Any], completions: Sequence[str]) -> list[Rollout]:
        """Right episodes that were not sampled: of these completions, or an expert's."""
        ...

    def metrics(self) -> dict[str, float]:
        """Metrics of its own since they were last asked for."""
        return {}

    def wake_up(self) -> None:
        """The policy is about to sample: called on all ranks alike, which `collect` needn't be."""

    def sleep(self) -> None:
        """The learner learns now: give back what memory can be given until the next `collect`."""

    def close(self) -> None:
        """Let go of simulators, processes and whatever else it holds."""


def make_collector(config: RunConfig, tasks: Mapping[str, Task], policy: Policy) -> Collector:
    """The collector that the policy names. tasks: label -> task; all are answered in words or all act, as the policy does
    (`mmrl.train.checks.run_file`)."""
    make = load_target(policy.collector, f"policy {config.policy.kind!r}: its collector")
    collector: Collector = make(config, tasks, policy)
    return collector


def teacher_collector(config: RunConfig, teacher: Policy) -> Collector:
    """What samples a teacher's completions: in this process, and without worlds."""
    return make_collector(config.model_copy(update={"compute": ComputeConfig()}), {}, teacher)


def turn_collector(config: RunConfig, tasks: Mapping[str, Task], policy: VLM) -> ConversationCollector:
    """Conversations."""
    generate = config.generate
    return ConversationCollector(policy, make_generator(config, policy), tasks, generate.max_turns, generate.max_context)


def step_collector(config: RunConfig, tasks: Mapping[str, Task], policy: ActingPolicy) -> SimulatorCollector:
    """Episodes in simulators."""
    device = str(policy.device) if config.simulate.device == "auto" else config.simulate.device
    elsewhere = SimulatorActors(config) if config.compute.simulators == "actors" else None
    return SimulatorCollector(policy, tasks, config.simulate, device, elsewhere)


def make_generator(config: RunConfig, policy: VLM) -> Generator:
    """What completions are sampled with, and where."""
    here = None if config.compute.placement == "separate" else make_sampler(config, policy, twin=config.compute.staleness > 0)
    return here if config.compute.placement == "colocated" and here else EngineActors(config, policy, here)
