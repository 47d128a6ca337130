"""Collectors make rollouts. A policy names its collector: of conversations, of episodes in simulators, or a plugin's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mmrl.api.episodes import Conversation
from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.api.sampling import Continued
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt, Rollout
from mmrl.compute.devices import following_device
from mmrl.compute.ranks import Reduction
from mmrl.config.compute import ComputeConfig
from mmrl.config.sections import RunConfig
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.acting.call_graphs import CallGraphs
from mmrl.policies.critic import Critic
from mmrl.policies.load import make_policy
from mmrl.policies.policy import Policy
from mmrl.policies.vlm.vlm import VLM
from mmrl.registry.importing import load_target
from mmrl.rollout.generate.engines import EngineActors, make_sampler
from mmrl.rollout.generate.sampling import Generator, SamplingParams
from mmrl.rollout.simulators.lockstep import Chooser, SimulatorCollector
from mmrl.rollout.simulators.remote import SimulatorActors
from mmrl.rollout.simulators.replaced import Elsewhere
from mmrl.rollout.simulators.twin import TwinCollector
from mmrl.rollout.simulators.wire.client import WireSimulators
from mmrl.rollout.turns import ConversationCollector


class Collector(Protocol):
    """Prompts -> rollouts. A subclass defines `batch_size`, `encode`, `collect` and `demonstrate`; the rest has a default."""

    critic: Critic | None = None
    """Computes values of observations during collection, if the algorithm has a critic and the collector can use it."""

    chooser: Chooser | None = None
    """Chooses actions in place of a policy that acts."""

    interventions: float = 0.0
    """Share of the episodes in which the simulators' experts take over at some call."""

    with_expert: bool = False
    """Record what the simulators' experts would do."""

    reductions: Mapping[str, Reduction] = {}
    """How metrics of its own, which `mmrl.run_folder.metrics.REDUCTIONS` doesn't list, are reduced over several learners. A
    metric in neither is averaged."""

    @property
    def batch_size(self) -> int:
        """Best number of episodes for one call."""
        ...

    def ready(self) -> None:
        """Make what collecting needs, so that errors appear before a run begins."""

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
        """Demonstrations, which are not sampled: episodes of these completions, or an expert's."""
        ...

    def try_answers(self, prompts: Sequence[Prompt], inputs: Sequence[Any], completions: Sequence[str]) -> list[Rollout]:
        """As `demonstrate`, for completions that are scored and needn't be what a policy should learn to write."""
        return self.demonstrate(prompts, inputs, completions)

    def go_on(
        self,
        rollouts: Sequence[Conversation],
        begun: Sequence[str],
        sampling: SamplingParams,
        *,
        version: int = 0,
        numbers: Sequence[int] = (),
        most: int | None = None,
        endings: Sequence[str | None] = (),
    ) -> list[Continued]:
        """Answers that go on from begun ones; see `mmrl.rollout.begun.go_on`."""
        raise UserError(
            "a policy with a collector of its own can't go on with begun answers: leave out the rule that asks for it"
        )

    def metrics(self) -> dict[str, float]:
        """Metrics of its own since the last call."""
        return {}

    def wake_up(self) -> None:
        """Prepare to sample. Called on all ranks, unlike `collect`."""

    def renew(self, version: int) -> None:
        """Go on with the learner's present weights, of this version. Called on all ranks, also while `collect` runs in another
        thread: answers that are being sampled are interrupted. See `Interruptible.renew`."""
        raise NotImplementedError

    def sleep(self) -> None:
        """An update follows: free memory until the next `collect`."""

    def close(self) -> None:
        """Release simulators, processes and other resources."""


def make_collector(config: RunConfig, tasks: Mapping[str, Task], policy: Policy) -> Collector:
    """The collector that the policy names. tasks: label -> task; all are answered in words or all act, as the policy does
    (`mmrl.train.checks.run_file`)."""
    make = load_target(policy.collector, f"policy {config.policy.kind!r}: its collector")
    collector: Collector = make(config, tasks, policy)
    return collector


def teacher_collector(config: RunConfig, teacher: Policy) -> Collector:
    """The collector of a teacher's completions: in this process, and without environments."""
    return make_collector(config.model_copy(update={"compute": ComputeConfig()}), {}, teacher)


def turn_collector(config: RunConfig, tasks: Mapping[str, Task], policy: VLM) -> ConversationCollector:
    """The collector of conversations."""
    generate = config.generate
    return ConversationCollector(policy, make_generator(config, policy), tasks, generate.max_turns, generate.max_context)


def step_collector(config: RunConfig, tasks: Mapping[str, Task], policy: ActingPolicy) -> SimulatorCollector:
    """The collector of episodes in simulators."""
    twin = acting_twin(config, policy)
    if config.generate.cuda_graphs:
        start_by_graphs(twin or policy)
    device = str((twin or policy).device) if config.simulate.device == "auto" else config.simulate.device
    elsewhere: Elsewhere | None = SimulatorActors(config) if config.compute.simulators == "actors" else None
    if config.compute.simulators == "processes" or config.simulate.address:
        elsewhere = WireSimulators(config)
    if twin is None:
        return SimulatorCollector(policy, tasks, config.simulate, device, elsewhere)
    return TwinCollector(policy, twin, tasks, config.simulate, device, elsewhere)


def acting_twin(config: RunConfig, policy: ActingPolicy) -> ActingPolicy | None:
    """A copy of the policy that plays episodes in its place, while it learns or on another device; None if it plays itself."""
    if config.simulate.policy_device == "auto":
        return policy.clone(frozen=True, spread=False) if config.compute.staleness else None
    device = following_device(config.simulate.policy_device)
    twin = make_policy(config.policy, device=device, seed=derive(config.seed, "weights"))
    assert isinstance(twin, ActingPolicy)
    twin.model.requires_grad_(False)
    return twin


def start_by_graphs(policy: ActingPolicy) -> None:
    """Let a policy's calls, and those of one beneath it, start their kernels by graphs. On a CPU it only warns."""
    if policy.device.type != "cuda":
        told = f"generate.cuda_graphs needs a GPU, and the policy acts on {policy.device}: nothing changes"
        warnings.warn(told, stacklevel=2)
        return
    both: tuple[Any, ...] = (policy, getattr(policy, "base", None))
    found = [one for one in both if getattr(one, "replays", False)]
    if not found:
        warnings.warn("generate.cuda_graphs: the policy's base acts in one pass: nothing changes", stacklevel=2)
    for one in found:
        one.graphs = CallGraphs(one.model, one.device)


def make_generator(config: RunConfig, policy: VLM) -> Generator:
    """The sampler of completions that the run file configures."""
    here = None if config.compute.placement == "separate" else make_sampler(config, policy, twin=config.compute.staleness > 0)
    return here if config.compute.placement == "colocated" and here else EngineActors(config, policy, here)
