"""An algorithm by its id: how rewards become advantages, which loss, averaged how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mmrl import plugins
from mmrl.algorithms.loss import LossFunction
from mmrl.targets import check_options, load_target
from mmrl.types import Rollout, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A named composition, resolved from its AlgorithmSpec."""

    id: str
    advantage: Callable[..., torch.Tensor]
    """(rewards_N, groups_N, **settings) -> advantages_N; see `mmrl.algorithms.advantage`."""
    settings: Mapping[str, Any]
    loss: LossFunction
    normalise: Literal["token", "sequence"]

    def advantages(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> torch.Tensor:
        """float32 [N]; NaN where the score failed, which keeps the rollout out of the update."""
        groups_N = torch.tensor([r.group for r in rollouts])
        return self.advantage(rewards(scores), groups_N, **self.settings)


def rewards(scores: Sequence[Score]) -> torch.Tensor:
    """float64 [N]; NaN for failed scores."""
    return torch.tensor([torch.nan if s.value is None else s.value for s in scores], dtype=torch.float64)


def load_algorithm(id: str, settings: Mapping[str, Any]) -> Algorithm:
    """The algorithm of an id with some of its settings changed. Raises UserError for an unknown id or setting."""
    registry = plugins.registry()
    spec = registry.get("algorithms", id)
    advantage, merged = registry.target(spec), {**spec.options, **settings}
    check_options(f"algorithm {spec.id!r}", advantage, merged, skip=2)
    return Algorithm(
        id=spec.id,
        advantage=advantage,
        settings=merged,
        loss=load_target(spec.loss, f"loss of algorithm {spec.id!r}"),
        normalise=spec.normalise,
    )
