"""Rollouts and their credit -> batches: of words (`mmrl.train.update.pack_words`) or of calls
(`mmrl.train.update.pack_tracks`), as the policy is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from mmrl.api.types import Rollout
from mmrl.config.sections import RlStage, Training
from mmrl.policies.batches import Batch, Credit

Forward = Callable[[frozenset[str]], Mapping[str, torch.Tensor]]
Dealt = Sequence[Batch] | Callable[[int], Sequence[Batch]]
"""An update's mini-batches: the same in each epoch, or epoch -> those of it."""


class Packer(Protocol):
    """What an update is made of."""

    def pack(
        self,
        rollouts: Sequence[Rollout],
        credit: Credit,
        stage: Training,
        *,
        keep_zero: bool,
        parts: int = 1,
        seed: int = 0,
        groups: Sequence[int] = (),
    ) -> list[Batch]:
        """`parts` batches, one for each optimiser step of a pass. groups: those that were sampled, where the rollouts' own are
        others by now."""
        ...

    def deal(
        self, rollouts: Sequence[Rollout], credit: Credit, stage: RlStage, *, keep_zero: bool, seed: int, groups: Sequence[int]
    ) -> Dealt:
        """The mini-batches of all epochs of an update; see `pack`."""
        ...

    def measured(
        self, rollouts: Sequence[Rollout], stage: Training, names: frozenset[str], forward: Forward
    ) -> Mapping[str, torch.Tensor]:
        """See `mmrl.algorithms.signals.Measure`. forward: measures in a forward pass."""
        ...
