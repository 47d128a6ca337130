"""The interface of packers, which make the batches of an update from rollouts and credit. A policy names its packer: of
conversations (`mmrl.train.update.pack_conversations`), of trajectories (`mmrl.train.update.pack_trajectories`), or a plugin's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mmrl.api.simulators.layout import Ratio
from mmrl.config.sections import RunConfig
from mmrl.policies.batches import Batch, Credit
from mmrl.policies.policy import Policy
from mmrl.registry.importing import load_target

Dealt = Sequence[Batch] | Callable[[int], Sequence[Batch]]
"""An update's mini-batches: the same in each epoch, or a function of the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """Options of packing."""

    keep_zero: bool = False
    """Also compute rollouts whose advantage is zero everywhere; without a KL term, a critic or an entropy bonus they have no
    gradient, and are only counted."""
    minibatches: int = 1
    """Optimiser steps per pass over the rollouts, each on a part of them."""
    seed: int = 0
    """Seed of the assignment to mini-batches, if it is random."""
    ratio: Ratio = "token"
    """The unit of a target, see the stage key `ratio`."""


class Packer(Protocol):
    """Packs rollouts into batches. The class that a policy names is called as `(config, policy)`, with the whole run file."""

    remark: str = ""
    """A note about the packing to show before the run; empty for none."""
    layout: str = ""
    """How rollouts are packed, in one line to show before the run; empty for none."""

    def pack(self, rollouts: Sequence[Any], credit: Credit, options: PackOptions) -> list[Batch]:
        """One batch per mini-batch, of this rank's rollouts. Rollouts whose credit is NaN are left out.

        rollouts: all rollouts of the step, from the policy's collector. Those of other ranks are stubs (`is_stub`).
        """
        ...

    def deal(self, rollouts: Sequence[Any], credit: Credit, options: PackOptions) -> Dealt:
        """The mini-batches of all epochs of an update; see `pack`."""
        ...


def packer_of(config: RunConfig, policy: Policy) -> Packer:
    """Make the packer that the policy names. Raises UserError if it doesn't support the run file."""
    packer: Packer = load_target(policy.packer, f"policy {config.policy.kind!r}: its packer")(config, policy)
    return packer
