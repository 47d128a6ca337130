"""Samplers in Ray actors, on this machine or anywhere in a cluster, each with its own copy of the policy.

Each call of an engine names the version of the weights to use, so engines can't be out of date. One that Ray restarted, or that
missed a version, reads them from Ray's object store before it samples; if they were broadcast, which leaves no copy, the others
sample in its place until the next broadcast. A prompt's number fixes its
random draws, so the completions don't depend on which engine samples them, or how many engines there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.api.seeds import derive
from mmrl.compute import ranks
from mmrl.compute.devices import prepare_device
from mmrl.compute.ray import adopt_environment, engines_per_rank, ray_for, switches
from mmrl.config.sections import RlStage, RunConfig
from mmrl.policies.shard import reshard
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.row_lengths import longest_row
from mmrl.policies.vlm.vlm import VLM
from mmrl.registry import plugins
from mmrl.rollout.generate.broadcast import Group, Load, Meeting, Receiver
from mmrl.rollout.generate.decode_graphs import graphs_for
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import Completion, Generator, SamplingParams
from mmrl.rollout.generate.snapshot import SnapshotGenerator
from mmrl.rollout.generate.transfer import RESTARTED, BroadcastTransfer, Packed, StoreTransfer, Transfer, engine_answers
from mmrl.rollout.generate.weights import Named, parameter_versions


class EngineActors:
    """Samples with this learner's share of `compute.engines`: engine i serves learner (i % learners)."""

    def __init__(self, config: RunConfig, policy: VLM, beside: Generator | None = None) -> None:
        """policy: the learner's. beside: a sampler in this process that takes a share too (`placement = "hybrid"`)."""
        self.config, self.policy, self.beside = config, policy, beside
        self.batch_size = config.generate.batch_size
        self.engines: list[Any] = []
        """Handles of Ray actors, from `ready` on."""
        self.transfer: Transfer = StoreTransfer(policy)
        if config.compute.weight_transfer == "broadcast":
            self.transfer = BroadcastTransfer(config.compute, policy)
        self.syncs = 0
        """Number of times that weights were sent, which is their version."""
        self._known: dict[str, int] = {}
        self._outdated: set[int] = set()
        """The engines that were restarted after the last sync and can't read its weights."""
        self._started = False
        self.awake = False
        """The engines sample with the weights that were sent last."""

    @property
    def sent(self) -> int:
        """Bytes of the weights that were sent the last time."""
        return self.transfer.sent

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
        engine_answers([engine.ready.remote() for engine in self.engines], compute.retries)

    def generate(
        self, inputs: Sequence[PromptInputs], group_size: int, sampling: SamplingParams, numbers: Sequence[int] = ()
    ) -> list[list[Completion]]:
        """group_size completions of each prompt; prompts are divided equally. See `LocalGenerator.generate`."""
        if not self.awake:
            self.wake_up()
        self.transfer.wait()
        numbers = numbers or range(len(inputs))

        def ask(engine: Any, own: Sequence[int]) -> Any:
            prompts, given = [inputs[i] for i in own], [numbers[i] for i in own]
            return engine.generate.remote(self.syncs, self.transfer.references, prompts, group_size, sampling, given)

        found: list[list[Completion]] = [[] for _ in inputs]
        left = list(range(len(inputs)))
        while left:
            there = [k for k in range(len(self.engines)) if k not in self._outdated]
            if not there and self.beside is None:
                self._send_again()
                continue
            parts = len(there) + (self.beside is not None)
            rows = [left[part::parts] for part in range(parts)]
            asked = [ask(self.engines[k], own) for k, own in zip(there, rows, strict=False) if own]
            answers: list[Any] = []
            if self.beside and (own := rows[-1]):  # while the engines sample theirs
                answers.append(self.beside.generate([inputs[i] for i in own], group_size, sampling, [numbers[i] for i in own]))
            answers = engine_answers(asked, self.config.compute.retries) + answers
            left = []
            for k, own, groups in zip([*there, None], rows, answers, strict=False):
                if groups is None:
                    assert k is not None
                    self._outdated.add(k)
                    left += own
                for i, group in zip(own, groups or (), strict=False):
                    found[i] = group
        return found

    def _send_again(self) -> None:
        """All engines were restarted in the middle of sampling. Raises UserError if the weights of this version are gone."""
        if ranks.world_size() > 1 or self.config.compute.staleness:
            raise UserError(
                "the engines of a learner died while they sampled, and a broadcast leaves no copy of their weights: go on with "
                '--resume; with compute.weight_transfer = "store", or more engines, a run survives it'
            )
        self.sync()
        self.transfer.wait()

    def sync(self) -> None:
        """Begin to send the learner's weights, if any changed since the last time or an engine has lost them."""
        if self._outdated:
            self.transfer.close()
        behind = self.transfer.behind()
        if self.policy.root is not None:
            reshard(self.policy.root)  # gathered weights don't count writes
        now = parameter_versions(self.policy.model)
        if now == self._known and not behind:
            return
        before = {} if behind else self._known
        self._known, self.syncs, self._outdated = now, self.syncs + 1, set()
        self.transfer.send(self.engines, self.syncs, before, now)

    def wake_up(self) -> None:
        """Sample with the learner's present weights until `sleep` or the next call. They may still be on their way: prompts are
        prepared meanwhile, and `generate` waits for them."""
        self.ready()
        self.transfer.wait()
        self.sync()
        if self.beside or self.config.compute.staleness:  # which gather the weights too, or change them
            self.transfer.wait()
        self.awake = True
        if self.beside:
            self.beside.wake_up()

    def sleep(self) -> None:
        """Engines keep their memory; the sampler in this process frees its own. The weights may change after this."""
        self.transfer.wait()
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
        self.transfer.close()
        self.engines, self._known = [], {}
        if self._started:
            ray.shutdown()
            self._started = False


class Engine:
    """A Ray actor with its own policy and a sampler."""

    def __init__(self, config: RunConfig, device: str, folder: str, environment: Mapping[str, str]) -> None:
        """device: where to sample. folder, environment: the learner's working folder and environment variables, to find models
        and plugins."""
        adopt_environment(folder, environment)
        self.config, self.device = config, device
        self.generator: Generator | None = None
        self.receiver: Receiver
        """What takes broadcast weights, from `ready` on."""
        self.policy: VLM
        self.joined = False
        """It is in the group of a broadcast."""
        self.version = 0
        """Version of its weights; 0 for those with which the run began, and while others arrive."""

    def ready(self) -> None:
        """Make the policy and its sampler."""
        if self.generator is not None:
            return
        if self.config.train.threads:
            torch.set_num_threads(self.config.train.threads)
        settings, registry = self.config.policy, plugins.registry()
        spec = registry.get("policies", settings.kind)
        seed = derive(self.config.seed, "weights")
        prepare_device(self.device, settings.dtype)
        place = "cpu" if self.config.compute.sampler == "vllm" else self.device  # the GPU holds the weights once, in vLLM
        self.policy = registry.target(spec)(settings, device=place, seed=seed, **{**spec.options, **settings.options})
        self.policy.model.requires_grad_(False)
        made = make_sampler(self.config, self.policy, device=torch.device(self.device))
        made.ready()
        self.receiver = made if isinstance(made, Receiver) else PolicyReceiver(self.policy)
        self.generator = made

    def join(self, meeting: Meeting, rank: int) -> str:
        """Join the group of a broadcast. rank: in it, of its first process. Returns what failed; empty if nothing did."""
        return self._tried(lambda: self.receiver.join(meeting, rank), member=True)

    def take(self, load: Load) -> str:
        """Receive and load the next bucket. Returns what failed, `RESTARTED` if it isn't in the group."""
        return self._tried(lambda: self.receiver.take(load), member=self.joined)

    def took(self, version: int) -> str:
        """All buckets have arrived: the weights are of this version from now on. Returns as `take`."""
        failed = self._tried(lambda: self.receiver.took(), member=self.joined)
        self.version = 0 if failed else version
        return failed

    def _tried(self, work: Callable[[], None], member: bool) -> str:
        self.version = 0
        if not member:
            return RESTARTED
        try:
            self.ready()
            work()
        except RuntimeError as error:
            self.joined = False
            return f"failed ({shorten(error, 200)})"
        self.joined = True
        return ""

    def generate(
        self,
        version: int,
        weights: Sequence[Any],
        inputs: Sequence[PromptInputs],
        group_size: int,
        sampling: SamplingParams,
        numbers: Sequence[int],
    ) -> list[list[Completion]] | None:
        """version: of the weights to sample with. weights: their reference in Ray's object store, read only if the version
        differs. Returns None if it has weights of another version and no reference to these."""
        if version != self.version and not weights:
            return None
        self.ready()
        assert self.generator is not None
        if version != self.version:
            import ray

            load_weights(self.policy, ray.get(weights[0]))
            self.generator.wake_up()  # a sampler with its own weights copies the policy's only here
            self.version = version
        return self.generator.generate(inputs, group_size, sampling, numbers)


class PolicyReceiver:
    """Takes broadcast weights into a policy that samples itself."""

    def __init__(self, policy: VLM) -> None:
        self.policy = policy
        self.group: Group | None = None

    def join(self, meeting: Meeting, rank: int) -> None:
        if self.group is not None:
            self.group.close()
        self.group = Group(meeting, rank, self.policy.device)

    def take(self, load: Load) -> None:
        assert self.group is not None
        copy_into(self.policy, self.group.receive(load))
        if self.policy.device.type == "cuda":
            torch.cuda.synchronize(self.policy.device)  # the answer says that they have arrived

    def took(self) -> None:
        """Nothing to do: nothing of the old weights is kept."""


def make_sampler(config: RunConfig, policy: VLM, twin: bool = False, device: torch.device | None = None) -> Generator:
    """The sampler of this process. twin: with a copy of the weights, because the policy's change while it samples. device: where
    vLLM runs, if not where the policy is."""
    if config.compute.sampler == "local":
        size = config.generate.batch_size
        made = SnapshotGenerator(policy, size, interrupt=config.compute.interrupt) if twin else LocalGenerator(policy, size)
        made.graphs = graphs_for(made.policy, size) if config.generate.cuda_graphs else None
        return made
    from mmrl.rollout.generate.vllm import VllmGenerator

    longest = config.generate.max_context or policy.longest
    if (most := longest_row(policy.model.config)) and longest > most:
        raise UserError(
            f"generate.max_context = {longest}: vLLM would take other rotary frequencies than the learner beyond {most} tokens: "
            f"lower it to {most}"
        )
    routes = any(isinstance(stage, RlStage) and stage.asks_routes for stage in config.stages)
    return VllmGenerator(policy, config.compute, config.generate.batch_size, longest, device, routes)


def load_weights(policy: VLM, packed: Packed) -> None:
    """Write weights from Ray's object store into a policy's parameters, which raises their version counters."""
    copy_into(
        policy,
        (
            (name, torch.from_numpy(data_B.copy()).view(getattr(torch, dtype)).view(shape))
            for name, (dtype, shape, data_B) in packed.items()
        ),
    )


def copy_into(policy: VLM, weights: Iterable[Named]) -> None:
    """Write weights into the policy's parameters of these names."""
    own = dict(policy.model.named_parameters())
    with torch.no_grad():
        for name, value in weights:
            own[name].copy_(value)
