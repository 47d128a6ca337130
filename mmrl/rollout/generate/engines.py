"""Samplers in Ray actors, on this machine or anywhere in a cluster, each with its own copy of the policy.

Each call of an engine names the version of the weights to use and their place in Ray's object store. An engine that Ray
restarted, or that missed a version, loads them before it samples, so engines can't be out of date. A prompt's number fixes its
random draws, so the completions don't depend on which engine samples them, or how many engines there are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

from mmrl.api.errors import UserError, shorten
from mmrl.api.seeds import derive
from mmrl.compute import ranks
from mmrl.compute.ray import adopt_environment, engines_per_rank, ray_for, switches
from mmrl.config.sections import RunConfig
from mmrl.policies.lora import is_adapter
from mmrl.policies.shard import full_tensor
from mmrl.policies.vlm.processing import PromptInputs
from mmrl.policies.vlm.vlm import VLM
from mmrl.registry import plugins
from mmrl.rollout.generate.decode_graphs import graphs_for
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import Completion, Generator, SamplingParams
from mmrl.rollout.generate.snapshot import SnapshotGenerator
from mmrl.rollout.generate.weights import parameter_versions

Packed = dict[str, tuple[str, tuple[int, ...], numpy.ndarray]]
"""Name of a weight -> (torch dtype, shape, its bytes): all processes of a node share them in Ray's object store."""


class EngineActors:
    """Samples with this learner's share of `compute.engines`: engine i serves learner (i % learners)."""

    def __init__(self, config: RunConfig, policy: VLM, beside: Generator | None = None) -> None:
        """policy: the learner's. beside: a sampler in this process that takes a share too (`placement = "hybrid"`)."""
        self.config, self.policy, self.beside = config, policy, beside
        self.batch_size = config.generate.batch_size
        self.engines: list[Any] = []
        """Handles of Ray actors, from `ready` on."""
        self.syncs = 0
        """Number of times that weights were sent."""
        self.sent = 0
        """Bytes of the weights that were sent the last time."""
        self._known: dict[str, int] = {}
        self._weights: Any = None
        self._started = False
        self.awake = False
        """The engines sample with the weights that were sent last."""

    def ready(self) -> None:
        """Start the engines. Raises UserError if Ray isn't installed or has no room, or an engine can't make its sampler."""
        if self.beside:
            self.beside.ready()
        if self.engines:
            return
        compute = self.config.compute
        own = engines_per_rank(compute.engines, ranks.world_size(), ranks.rank())
        on_gpu = self.policy.device.type == "cuda"
        self._started = ray_for(self.config, f'compute.placement = "{compute.placement}"', on_gpu)
        import ray

        room = {"num_cpus": 1, "num_gpus": compute.tensor_parallel if on_gpu else 0, "scheduling_strategy": "SPREAD"}
        again = {"max_restarts": compute.retries, "max_task_retries": -1}  # calls are repeated as long as the actor restarts
        made = ray.remote(Engine).options(**room, **again)
        given = (self.config, str(torch.device(self.policy.device.type)), os.getcwd(), switches())
        self.engines = [made.remote(*given) for _ in range(own)]
        self._answers([engine.ready.remote() for engine in self.engines])

    def generate(
        self, inputs: Sequence[PromptInputs], group_size: int, sampling: SamplingParams, numbers: Sequence[int] = ()
    ) -> list[list[Completion]]:
        """group_size completions of each prompt; prompts are divided equally. See `LocalGenerator.generate`."""
        if not self.awake:
            self.wake_up()
        numbers = numbers or range(len(inputs))
        parts = len(self.engines) + (self.beside is not None)
        rows = [range(part, len(inputs), parts) for part in range(parts)]
        asked = [
            engine.generate.remote(
                self.syncs, [self._weights], [inputs[i] for i in own], group_size, sampling, [numbers[i] for i in own]
            )
            for engine, own in zip(self.engines, rows, strict=False)
            if own
        ]
        answers: list[list[list[Completion]]] = []
        if self.beside and rows[-1]:  # while the engines sample theirs
            answers.append(
                self.beside.generate([inputs[i] for i in rows[-1]], group_size, sampling, [numbers[i] for i in rows[-1]])
            )
        answers = self._answers(asked) + answers
        found: list[list[Completion]] = [[] for _ in inputs]
        for own, groups in zip([own for own in rows if own], answers, strict=True):
            for i, group in zip(own, groups, strict=True):
                found[i] = group
        return found

    def sync(self) -> None:
        """Send the learner's weights if any changed since the last time, once to each node that has engines."""
        now = parameter_versions(self.policy.model)
        if now == self._known:
            return
        import ray

        packed = packed_weights(self.policy)
        self.sent = sum(data.nbytes for _, _, data in packed.values())
        self._weights = ray.put(packed)
        self._known, self.syncs = now, self.syncs + 1

    def wake_up(self) -> None:
        """Sample with the learner's present weights until `sleep` or the next call."""
        self.ready()
        self.sync()
        self.awake = True
        if self.beside:
            self.beside.wake_up()

    def sleep(self) -> None:
        """Engines keep their memory; the sampler in this process frees its own."""
        self.awake = False
        if self.beside:
            self.beside.sleep()

    def close(self) -> None:
        if self.beside:
            self.beside.close()
        if not self.engines:
            return
        import ray

        for engine in self.engines:
            ray.kill(engine)
        self.engines, self._known, self._weights = [], {}, None
        if self._started:
            ray.shutdown()
            self._started = False

    def _answers(self, asked: Sequence[Any]) -> list[Any]:
        """The engines' answers. Raises their UserErrors."""
        import ray

        try:
            return ray.get(list(asked))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(str(error.cause)) from None
            raise
        except ray.exceptions.RayActorError as error:
            raise UserError(
                f"an engine died more often than compute.retries = {self.config.compute.retries} allows "
                f"({shorten(error)[:200]}): give it more memory or lower generate.batch_size, then go on with --resume"
            ) from error


class Engine:
    """A Ray actor with its own policy and a sampler."""

    def __init__(self, config: RunConfig, device: str, folder: str, environment: Mapping[str, str]) -> None:
        """device: where to sample. folder, environment: the learner's working folder and environment variables, to find models
        and plugins."""
        adopt_environment(folder, environment)
        self.config, self.device = config, device
        self.generator: Generator | None = None
        self.policy: VLM
        self.version = 0
        """Version of its weights; 0 for those with which the run began."""

    def ready(self) -> None:
        """Make the policy and its sampler."""
        if self.generator is not None:
            return
        if self.config.train.threads:
            torch.set_num_threads(self.config.train.threads)
        settings, registry = self.config.policy, plugins.registry()
        spec = registry.get("policies", settings.kind)
        seed = derive(self.config.seed, "weights")
        self.policy = registry.target(spec)(settings, device=self.device, seed=seed, **{**spec.options, **settings.options})
        self.policy.model.requires_grad_(False)
        made = make_sampler(self.config, self.policy)
        made.ready()
        self.generator = made

    def generate(
        self,
        version: int,
        weights: Sequence[Any],
        inputs: Sequence[PromptInputs],
        group_size: int,
        sampling: SamplingParams,
        numbers: Sequence[int],
    ) -> list[list[Completion]]:
        """version: of the weights to sample with. weights: references in Ray's object store, read only if the version differs."""
        self.ready()
        assert self.generator is not None
        if version != self.version:
            import ray

            load_weights(self.policy, ray.get(weights[0]))
            self.generator.wake_up()  # a sampler with its own weights copies the policy's only here
            self.version = version
        return self.generator.generate(inputs, group_size, sampling, numbers)


def make_sampler(config: RunConfig, policy: VLM, twin: bool = False) -> Generator:
    """The sampler of this process. twin: with a copy of the weights, because the policy's change while it samples."""
    if config.compute.sampler == "local":
        size = config.generate.batch_size
        made = SnapshotGenerator(policy, size, interrupt=config.compute.interrupt) if twin else LocalGenerator(policy, size)
        made.graphs = graphs_for(made.policy, size) if config.generate.cuda_graphs else None
        return made
    from mmrl.rollout.generate.vllm import VllmGenerator

    longest = config.generate.max_context or policy.longest
    return VllmGenerator(policy, config.compute, config.generate.batch_size, longest)


def packed_weights(policy: VLM) -> Packed:
    """The weights that training may have changed: with LoRA the adapters, else all."""
    found: Packed = {}
    for name, parameter in policy.model.named_parameters():
        if policy.lora and not is_adapter(name):
            continue
        value = full_tensor(parameter.detach())
        data_B = value.contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
        found[name] = (str(value.dtype).removeprefix("torch."), tuple(value.shape), data_B)
    return found


def load_weights(policy: VLM, packed: Packed) -> None:
    """Write these weights into a policy's parameters, which raises their version counters."""
    own = dict(policy.model.named_parameters())
    with torch.no_grad():
        for name, (dtype, shape, data_B) in packed.items():
            own[name].copy_(torch.from_numpy(data_B.copy()).view(getattr(torch, dtype)).view(shape))
