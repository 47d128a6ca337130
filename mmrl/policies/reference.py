"""The reference model of a KL penalty: a frozen copy of the policy, or its own model with adapters disabled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch

from mmrl.policies.batches import ActionMicroBatch, MicroBatch
from mmrl.policies.lora import disable_adapters
from mmrl.policies.policy import Policy
from mmrl.policies.shard import distribute_like


class Reference:
    """The policy at the time when this object was made, or the policy without its adapters."""

    def __init__(self, policy: Policy, adapters: bool) -> None:
        """adapters: use the policy's own model with its adapters disabled; this needs no memory and never changes."""
        self.policy = policy
        self.copy = None if adapters else policy.clone(frozen=True)

    def logprobs(self, micro: MicroBatch | ActionMicroBatch, temperature: float) -> torch.Tensor:
        """float32 [L], without gradient, of the micro-batch's target tokens."""
        with torch.no_grad(), self._model() as model:
            return model.logprobs(micro, temperature)[0]

    def reset(self) -> None:
        """Copy the policy's present weights."""
        if self.copy is not None:
            with torch.no_grad():
                for (_, mine), (_, now) in zip(self._weights(self.copy), self._weights(self.policy), strict=True):
                    mine.copy_(now)

    def state(self) -> dict[str, torch.Tensor]:
        """The copy's weights; empty if there is none."""
        return {} if self.copy is None else dict(self._weights(self.copy))

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state` returned."""
        with torch.no_grad():
            for name, parameter in [] if self.copy is None else self._weights(self.copy):
                parameter.copy_(distribute_like(tensors[name], parameter))

    @contextlib.contextmanager
    def _model(self) -> Iterator[Policy]:
        if self.copy is not None:
            yield self.copy
            return
        with disable_adapters(self.policy.model):
            yield self.policy

    @staticmethod
    def _weights(policy: Policy) -> list[tuple[str, torch.nn.Parameter]]:
        return list(policy.parameters())
