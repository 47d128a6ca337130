"""What the learner asks of a policy, whether it writes (`VLM`) or acts (`ActingPolicy`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch

from mmrl.api.frames import Eyes
from mmrl.policies.batches import Outputs
from mmrl.policies.shard import Sharded


class Policy(Protocol):
    """A model whose samples have known log-probabilities."""

    device: torch.device
    model: Any
    """A `torch.nn.Module` with all weights that may be trained."""
    lora: Any
    root: Sharded | None
    """Where its weights are spread over ranks; None where each rank holds all of them."""

    @property
    def width(self) -> int:
        """Of the hidden states that a critic reads."""
        ...

    @property
    def exact_sampler(self) -> bool:
        """What samples is the very pass that learns, so that its log-probabilities are the learner's."""
        ...

    def outputs(self, micro: Any, temperature: float, *, states: bool = False, entropy_gradient: bool = False) -> Outputs:
        """One forward pass over a micro-batch. states: also what a critic reads. entropy_gradient: the entropy has one."""
        ...

    def logprobs(self, micro: Any, temperature: float) -> tuple[torch.Tensor, torch.Tensor]: ...

    def states(self, micro: Any) -> torch.Tensor: ...

    def parameters(self) -> Iterable[tuple[str, torch.nn.Parameter]]:
        """What may be trained, by name, in an order that stays."""
        ...

    def twin(self, frozen: bool = False) -> Policy:
        """A second policy with a copy of the weights as they are now."""
        ...

    @property
    def eyes(self) -> Eyes:
        """How it sees pictures, for tasks."""
        ...

    def save(self, folder: Path) -> None: ...
