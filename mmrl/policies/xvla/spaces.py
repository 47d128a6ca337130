"""The action spaces of X-VLA: what the numbers of an action are, how each is learned, and which of them the network reads.

They are those of lerobot 0.6.1 (policies/xvla/action_hub.py), which has X-VLA's own (2toINF/X-VLA, models/action_hub.py) and
more. D numbers of an action as the network has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from mmrl.api.errors import UserError

HANDS = ("ee6d", "agibot_ee6d")
"""Spaces whose numbers are the places, turns and grippers of two hands."""
MODES = (*HANDS, "joint", "franka_joint7", "auto", "so101_bimanual")
Part = tuple[Sequence[int], float]
"""Numbers, and the weight of the mean of their squared errors in the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    mode: str
    size: int
    """D."""
    real: int
    """The first ones, which a robot may have; the others are there for the weights of the pretrained model."""
    parts: tuple[Part, ...]
    grippers: tuple[int, ...] = ()
    coins: bool = False
    """The grippers' numbers are logits of 1, learned by cross-entropy with equal shares of a weight."""
    coin_weight: float = 0.0
    hidden: bool = False
    """The network doesn't read the grippers' numbers, neither of an action nor of a state, and its own go through a sigmoid."""

    def errors(self, predicted: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """[..., D]: shares of the published loss; the sum over D, averaged over actions, is that loss. actions: as they are
        demonstrated; those of logits are the shares of 1."""
        found = numbers_of(self, predicted.device)
        squared = (predicted - actions) ** 2
        crossed = binary_cross_entropy_with_logits(predicted, actions.clamp(0, 1), reduction="none")
        return torch.where(found.tossed, crossed, squared) * found.weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A space's numbers, [D] each."""

    weights: torch.Tensor
    """float32: the published loss of an action is the sum of its numbers' errors with these weights."""
    scales: torch.Tensor
    """float32: how large a number's error is that counts as much as one of 1 where a loss has the weight 1: positions in metres
    count 500 times."""
    unread: torch.Tensor
    """bool: numbers that the network doesn't read."""
    tossed: torch.Tensor
    """bool: numbers that are logits."""


@cache
def numbers_of(space: Space, device: torch.device) -> Numbers:
    """Those on a device, which are made once."""
    weights, scales, grippers = torch.zeros(space.size), torch.ones(space.size), torch.zeros(space.size, dtype=torch.bool)
    for numbers, weight in space.parts:
        at = list(numbers)
        weights[at] += weight / len(at)
        scales[at] = scales[at].clamp_max(1 / math.sqrt(weight))
    grippers[list(space.grippers)] = True
    if space.coins:
        weights[grippers] = space.coin_weight / len(space.grippers)
    made = {"weights": weights, "scales": scales, "unread": grippers & space.hidden, "tossed": grippers & space.coins}
    return Numbers(**{name: tensor.to(device) for name, tensor in made.items()})


def space_of(mode: str, dims: int, most: int) -> Space:
    """dims: numbers of the robot's action. most: `max_action_dim`, D of the mode `auto`. Raises UserError for numbers that the
    space can't have."""
    fits = {"joint": (7, 14), "franka_joint7": (7,), "so101_bimanual": (12,), **dict.fromkeys(HANDS, (7, 14, 10, 20))}
    if mode in fits and dims not in fits[mode]:
        told = ", ".join(map(str, fits[mode]))
        why = " (7 for each hand with its turn as axis times angle, 10 with it as six numbers)" if mode in HANDS else ""
        raise UserError(f"policy.options.dims = {dims} doesn't fit the action space {mode}, which has {told}{why}")
    if mode == "auto" and dims > most:
        raise UserError(f"policy.options.dims = {dims} doesn't fit the action space auto, which has at most {most} here")
    if mode in HANDS:
        hands = [(range(at, at + 3), 500.0) for at in (0, 10)] + [(range(at + 3, at + 9), 10.0) for at in (0, 10)]
        if mode == "agibot_ee6d":
            return Space(mode=mode, size=20, real=20, parts=(*hands, ((9, 19), 10.0)), grippers=(9, 19))
        return Space(mode=mode, size=20, real=20, parts=tuple(hands), grippers=(9, 19), coins=True, coin_weight=1.0, hidden=True)
    if mode == "joint":
        joints = tuple(i for i in range(14) if i not in (6, 13))
        return Space(
            mode=mode, size=14, real=14, parts=((joints, 1.0),), grippers=(6, 13), coins=True, coin_weight=0.1, hidden=True
        )
    if mode == "franka_joint7":
        return Space(mode=mode, size=20, real=7, parts=((range(7), 1.0),))
    if mode == "so101_bimanual":
        parts = ((range(12), 1.0), ((5, 11), 1.0), (range(6), 1.0), (range(6, 12), 1.0))
        return Space(mode=mode, size=20, real=12, parts=parts, grippers=(5, 11), hidden=True)
    return Space(mode=mode, size=most, real=dims, parts=((range(dims), 1.0),))


def usual_dims(mode: str) -> int:
    """Numbers of a robot's action where nothing says them."""
    return {"joint": 14, "so101_bimanual": 12}.get(mode, 7)
