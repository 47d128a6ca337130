"""The reference model of a KL penalty: a frozen copy of the policy, or its own model with adapters disabled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch

from mmrl.api.errors import UserError
from mmrl.policies.batches import ActionMicroBatch, MicroBatch
from mmrl.policies.lora import disable_adapters, is_adapter
from mmrl.policies.policy import Policy
from mmrl.policies.shard import distribute_like


class Reference:
    """The policy at the time when this object was made, or the policy without its adapters."""

    def __init__(self, policy: Policy, adapters: bool, decay: float = 0.0) -> None:
        """adapters: use the policy's own model with its adapters disabled, which needs memory only for weights that are trained
        beside adapters, such as a head, and never changes. decay: what `follow` keeps of the copy; with it the copy's weights are
        also kept in float32, as smaller types would round its small steps away. Raises UserError if weights beside adapters are
        spread over learners."""
        self.policy, self.decay = policy, decay
        self.copy = None if adapters else policy.clone(frozen=True)
        self.means: dict[str, torch.Tensor] = {}
        """The copy's weights in float32, with a decay."""
        if decay and self.copy is not None:
            self.means = {name: weight.detach().float().clone() for name, weight in self._weights(self.copy)}
        self.beside: dict[str, torch.Tensor] = {}
        """Those weights, as they were."""
        if adapters:
            self.beside = {name: p.detach().clone() for name, p in policy.parameters() if not is_adapter(name)}
        if self.beside and policy.root is not None:
            raise UserError(
                f"the reference can't be the policy without adapters: each learner holds a shard of {next(iter(self.beside))}, "
                'which is trained beside them: set the stage\'s reference = "frozen", or compute.weights = "replicated"'
            )

    def logprobs(self, micro: MicroBatch | ActionMicroBatch, temperature: float) -> torch.Tensor:
        """float32 [L], without gradient, of the micro-batch's target tokens."""
        with torch.no_grad(), self._model() as model:
            return model.logprobs(micro, temperature)[0]

    def each(self, micros: Sequence[MicroBatch | ActionMicroBatch], temperature: float) -> Iterator[torch.Tensor]:
        """`logprobs` of each micro-batch, computed when it is asked for; where weights are exchanged for it, all at the first, so
        that they are exchanged once."""
        if self.copy is not None or not self.beside:
            yield from (self.logprobs(micro, temperature) for micro in micros)
            return
        with torch.no_grad(), self._model() as model:
            found = [model.logprobs(micro, temperature)[0] for micro in micros]
        yield from found

    def follow(self) -> None:
        """Copy the policy's present weights, or with a decay move towards them: decay x the copy + (1 - decay) x the policy."""
        if self.copy is not None:
            with torch.no_grad():
                for (name, mine), (_, now) in zip(self._weights(self.copy), self._weights(self.policy), strict=True):
                    mine.copy_(self.means[name].lerp_(now.float(), 1 - self.decay) if self.means else now)

    def state(self) -> dict[str, torch.Tensor]:
        """The weights that it keeps; empty if there are none."""
        return dict(self.means or self._kept())

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state` returned. Raises UserError where a weight of it is missing."""
        if lacks := [name for name in self._kept() if name not in tensors]:
            raise UserError(
                f"the checkpoint has no {lacks[0]} of the reference model, which earlier versions of mmrl didn't keep: go on "
                "with the version that wrote it, or begin a new run from its policy (policy.model)"
            )
        with torch.no_grad():
            for name, weight in self._kept().items():
                kept = self.means.get(name, weight)
                kept.copy_(distribute_like(tensors[name], kept))
                if kept is not weight:
                    weight.copy_(kept)

    def _kept(self) -> dict[str, torch.Tensor]:
        return self.beside if self.copy is None else dict(self._weights(self.copy))

    @contextlib.contextmanager
    def _model(self) -> Iterator[Policy]:
        if self.copy is not None:
            yield self.copy
            return
        with disable_adapters(self.policy.model), self._as_they_were():
            yield self.policy

    @contextlib.contextmanager
    def _as_they_were(self) -> Iterator[None]:
        """Inside, the weights that are trained beside adapters have their old values. A backward pass that is still to come reads
        the present ones again."""
        now = [(p.data, self.beside[name]) for name, p in self._weights(self.policy) if name in self.beside]
        present = [data.clone() for data, _ in now]
        try:
            for data, old in now:
                data.copy_(old)
            yield
        finally:
            for (data, _), value in zip(now, present, strict=True):
                data.copy_(value)

    @staticmethod
    def _weights(policy: Policy) -> list[tuple[str, torch.nn.Parameter]]:
        return list(policy.parameters())
