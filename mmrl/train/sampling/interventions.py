"""Steps in which another than the policy acted, such as a person who took over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from mmrl.api.episodes import Trajectory
from mmrl.api.errors import UserError
from mmrl.api.types import Rollout


def stretches(corrected_T: torch.Tensor) -> list[tuple[int, int]]:
    """(first, end) of each stretch of calls in which another acted; the end is excluded."""
    edges = torch.cat([corrected_T.new_zeros(1), corrected_T, corrected_T.new_zeros(1)]).int().diff().cpu()
    return list(zip((edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0].tolist(), strict=True))


@contextlib.contextmanager
def expert_takes_over(collector: Any, share: float) -> Iterator[None]:
    """In this share of the episodes that are played inside, the simulator's expert takes over."""
    collector.interventions = share
    try:
        yield
    finally:
        collector.interventions = 0.0


def refuse_interventions(rollouts: Sequence[Rollout], number: int, kind: str) -> None:
    """Raise UserError if another than the policy acted: what they did has no probability under the policy, and what it led to is
    no merit of the policy's. number, kind: of the stage."""
    taken = sum(isinstance(r, Trajectory) and r.corrected for r in rollouts)
    if taken:
        raise UserError(
            f'stages.{number}: kind = "{kind}" learns from what the policy did, and in {taken} of {len(rollouts)} episodes '
            'another took over: use kind = "off-policy", "recap" or "hg-dagger", or let nobody take over'
        )
