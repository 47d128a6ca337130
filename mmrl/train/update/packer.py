"""Rollouts and their credit -> the batches of an update. A policy names its packer: of words
(`mmrl.train.update.pack_conversations`), of calls in simulators (`mmrl.train.update.pack_trajectories`), or a plugin's own."""

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
"""An update's mini-batches: the same in each epoch, or epoch -> those of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """What a step asks of a packer."""

    keep_zero: bool = False
    """Compute rollouts whose advantage is zero everywhere, too: without a KL term, a critic or an entropy bonus they have no
    gradient, and are only counted."""
    minibatches: int = 1
    """Optimiser steps of a pass over the rollouts, each on a part of them."""
    seed: int = 0
    """Fixes what is drawn where the parts are drawn at random."""
    ratio: Ratio = "token"
    """What a target is, see the stage key `ratio`."""


class Packer(Protocol):
    """What an update is made of. The packer that a policy names is called as `(config, policy)`, with the whole run file."""

    remark: str = ""
    """What a person should know about how it packs, before the run; empty for nothing."""

    def pack(self, rollouts: Sequence[Any], credit: Credit, options: PackOptions) -> list[Batch]:
        """A batch for each mini-batch, of the rollouts that this rank holds; a rollout whose credit is NaN is left out.

        rollouts: those that the policy's collector gives, all of the step. On several ranks those with `elsewhere` are stubs.
        """
        ...

    def deal(self, rollouts: Sequence[Any], credit: Credit, options: PackOptions) -> Dealt:
        """The mini-batches of all epochs of an update; see `pack`."""
        ...


def packer_of(config: RunConfig, policy: Policy) -> Packer:
    """The packer that the policy names. UserError where it can't pack as the run file says."""
    packer: Packer = load_target(policy.packer, f"policy {config.policy.kind!r}: its packer")(config, policy)
    return packer
