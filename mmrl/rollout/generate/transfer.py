"""How a learner's weights reach its engines, which are Ray actors: through Ray's object store, or by broadcast.

The object store keeps a copy of the weights on the host, from which an engine that was restarted can read them at any time. A
broadcast keeps none, so such an engine gets the present weights at the next sync, in a new group.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy
import torch

from mmrl.api.errors import UserError, shorten
from mmrl.compute import ranks
from mmrl.compute.devices import current_gpu
from mmrl.config.sections import ComputeConfig
from mmrl.policies.lora import is_adapter
from mmrl.policies.shard import full_tensor
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate import broadcast
from mmrl.rollout.generate.broadcast import WeightSender, WeightsLost
from mmrl.rollout.generate.weights import Named, bucket_room, changed_weights

Packed = dict[str, tuple[str, tuple[int, ...], numpy.ndarray]]
"""Name of a weight -> (torch dtype, shape, its bytes): all processes of a node share them in Ray's object store."""
Versions = dict[str, int]
"""See `mmrl.rollout.generate.weights.parameter_versions`."""


class Transfer(Protocol):
    """Sends weights to a learner's engines."""

    @property
    def sent(self) -> int:
        """Bytes of the weights that were sent the last time."""
        ...

    @property
    def references(self) -> Sequence[Any]:
        """What an engine needs to read the weights by itself; empty if it can't."""
        ...

    def behind(self) -> bool:
        """Whether an engine of any learner needs all weights. Call it on all ranks."""
        ...

    def send(self, engines: Sequence[Any], version: int, before: Versions, now: Versions) -> None:
        """Begin to send the weights that changed from `before` to `now`, or all if nothing is known before. They must not change
        until `wait`. Call it on all ranks."""
        ...

    def wait(self) -> None:
        """Wait until the weights have arrived. Raises UserError if they don't."""
        ...

    def close(self) -> None:
        """An engine lost the weights: the next `send` begins anew."""
        ...


class StoreTransfer:
    """Through Ray's object store: once to each node that has engines, which read it when they are asked to sample."""

    def __init__(self, policy: VLM) -> None:
        self.policy, self.sent = policy, 0
        self.references: Sequence[Any] = ()

    def behind(self) -> bool:
        return False

    def send(self, engines: Sequence[Any], version: int, before: Versions, now: Versions) -> None:
        import ray

        packed = packed_weights(self.policy)
        self.sent = sum(data.nbytes for _, _, data in packed.values())
        self.references = (ray.put(packed),)

    def wait(self) -> None:
        """Nothing to wait for: engines read the weights themselves."""

    def close(self) -> None:
        self.references = ()


class Fault(NamedTuple):
    """Why the weights of a learner did not arrive."""

    line: str
    again: bool
    """Another attempt may succeed."""


class BroadcastTransfer:
    """By broadcast from the learner to all processes of its engines, in a thread of its own.

    A fault is found by who answers: each engine answers each bucket. One that hangs is killed, so that Ray restarts it, and all
    weights are sent again in a new group, at most `compute.retries` times. As sharded weights are gathered by all learners
    together, all of them repeat it.
    """

    references: Sequence[Any] = ()

    def __init__(self, settings: ComputeConfig, policy: VLM) -> None:
        self.settings, self.policy = settings, policy
        self.published = settings.sampler == "vllm"
        """Weights go by the names of published checkpoints, with adapters merged."""
        self.sender: WeightSender | None = None
        self._thread = ThreadPoolExecutor(1, "weights")
        self._sending: Future[None] | None = None

    @property
    def sent(self) -> int:
        return self.sender.sent if self.sender else 0

    def behind(self) -> bool:
        return ranks.any_rank(self.sender is None or self.sender.group is None)

    def send(self, engines: Sequence[Any], version: int, before: Versions, now: Versions) -> None:
        self.wait()
        if self.sender is None:
            import ray

            host = ray.util.get_node_ip_address()
            self.sender = WeightSender(host, bucket_room(self.policy.model), self.policy.device)
        self._sending = self._thread.submit(self._work, engines, version, before, now)

    def wait(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()

    def close(self) -> None:
        if self.sender is not None:
            self.sender.close()

    def _work(self, engines: Sequence[Any], version: int, before: Versions, now: Versions) -> None:
        with ranks.use_group("weights"), current_gpu(self.policy.device), torch.no_grad():
            for left in range(self.settings.retries, -1, -1):
                told = ranks.all_gather_object(self._attempt(engines, version, before, now))
                faults = [fault for fault in told if fault is not None]
                if not faults:
                    return
                final = [fault.line for fault in faults if not fault.again]
                if final or not left:
                    raise UserError(final[0] if final else self._given_up(faults[0].line, version))
                before = {}

    def _attempt(self, engines: Sequence[Any], version: int, before: Versions, now: Versions) -> Fault | None:
        assert self.sender is not None
        weights = self._weights(before, now)
        settle = functools.partial(self._settle, engines)
        try:
            if self.sender.group is None:
                self._gather(engines)
            self.sender.send(weights, lambda load: [engine.take.remote(load) for engine in engines], settle)
            settle([engine.took.remote(version) for engine in engines])
            return None
        except WeightsLost as error:
            fault = Fault(shorten(error, 300), again=True)
        except UserError as error:
            fault = Fault(str(error), again=False)
        self.sender.close()
        if ranks.world_size() > 1:
            deque(weights, maxlen=0)  # the other learners gather them, and this one with them
        return fault

    def _weights(self, before: Versions, now: Versions) -> Iterator[Named]:
        if self.published:
            return changed_weights(self.policy.model, before, now)
        return trained_weights(self.policy, {name for name, version in now.items() if before.get(name) != version})

    def _gather(self, engines: Sequence[Any]) -> None:
        """Make a new group of the learner and all processes of its engines."""
        assert self.sender is not None
        engine_answers([engine.ready.remote() for engine in engines], self.settings.retries)  # of those that were restarted
        size = self.settings.tensor_parallel if self.published else 1
        meeting = self.sender.meet(size * len(engines))
        asked = [engine.join.remote(meeting, 1 + size * k) for k, engine in enumerate(engines)]
        try:
            self.sender.join(meeting)
        finally:
            self._settle(engines, asked)

    def _settle(self, engines: Sequence[Any], asked: Sequence[Any]) -> None:
        """Wait until each engine has answered. Raises WeightsLost with the names of those that failed."""
        import ray

        _, pending = ray.wait(list(asked), num_returns=len(asked), timeout=broadcast.PATIENCE_S + GRACE_S)
        late = {k for k, one in enumerate(asked) if one in pending}
        for k in late:
            ray.kill(engines[k], no_restart=False)
        if late:
            raise WeightsLost("; ".join(f"{_name(k)} hasn't answered for {broadcast.PATIENCE_S:g} s" for k in sorted(late)))
        told = {k: why for k, why in enumerate(engine_answers(asked, self.settings.retries)) if why}
        restarted = {k: why for k, why in told.items() if why == RESTARTED}  # the others failed because of it
        if told:
            raise WeightsLost("; ".join(f"{_name(k)} {why}" for k, why in (restarted or told).items()))

    def _given_up(self, line: str, version: int) -> str:
        return (
            f"weights of version {version} didn't reach the engines, with compute.retries = {self.settings.retries}: {line}: see "
            'its machine and network, then go on with --resume, or with compute.weight_transfer = "store"'
        )


GRACE_S = 10.0
"""Seconds beyond `broadcast.PATIENCE_S`, in which engines say that they waited for another one in vain."""
RESTARTED = "died"
"""What an engine answers that isn't in the group, as it was started again."""


def _name(k: int) -> str:
    """An engine of this learner by its number among those of all learners."""
    return f"engine {ranks.rank() + k * ranks.world_size()}"


def engine_answers(asked: Sequence[Any], retries: int) -> list[Any]:
    """The engines' answers. retries: `compute.retries`. Raises their UserErrors, and UserError if one died too often."""
    import ray

    try:
        return ray.get(list(asked))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from None
        raise
    except ray.exceptions.RayActorError as error:
        raise UserError(
            f"an engine died more often than compute.retries = {retries} allows ({shorten(error, 200)}): give it more memory or "
            "lower generate.batch_size, then go on with --resume"
        ) from error


def trained_weights(policy: VLM, among: set[str] | None = None) -> Iterator[Named]:
    """The weights that training may have changed: with LoRA the adapters, else all. among: of these names. Sharded weights are
    gathered, so call it on all ranks."""
    for name, parameter in policy.model.named_parameters():
        if (is_adapter(name) or not policy.lora) and (among is None or name in among):
            yield name, full_tensor(parameter.detach())


def packed_weights(policy: VLM) -> Packed:
    """The `trained_weights` for Ray's object store."""
    found: Packed = {}
    for name, value in trained_weights(policy):
        data_B = value.contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
        found[name] = (str(value.dtype).removeprefix("torch."), tuple(value.shape), data_B)
    return found
