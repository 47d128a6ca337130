"""Counter-based random numbers: a function of a seed and of their use, the same on every device and in every batch.

The numbers of a random generator depend on what was drawn before, and so on the number and order of environments. These don't:
row n of a batch gets the numbers of its own seed, at any index. The mixing function is that of SplitMix64 (Steele et al., Fast
splittable pseudorandom number generators, 2014, figure 17).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


_GOLDEN, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685
"""0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB as int64: products wrap around."""


def uniform(seeds_n: torch.Tensor, *use: int | torch.Tensor, shape: tuple[int, ...] = ()) -> torch.Tensor:
    """float32 [n, *shape] in (0, 1), never 0 or 1.

    seeds_n: int64 [n]. use: integers, or int64 [n], that distinguish the uses of a seed (a purpose, a step); the numbers of
    different uses are independent.
    """
    import torch

    state_n = _mixed(seeds_n)
    for number in use:
        state_n = _mixed(state_n ^ (number if isinstance(number, torch.Tensor) else _signed(number)))
    places = torch.arange(math.prod(shape), device=seeds_n.device)
    bits = _mixed(state_n[:, None] + places * _GOLDEN).view(len(seeds_n), *shape)
    return (_shifted(bits, 41).float() + 0.5) / 2**23  # 23 bits and a half are exact


def normal(seeds_n: torch.Tensor, *use: int | torch.Tensor, shape: tuple[int, ...] = ()) -> torch.Tensor:
    """float32 [n, *shape] of the standard normal distribution; see `uniform`."""
    first, second = uniform(seeds_n, *use, shape=(*shape, 2)).unbind(-1)
    return (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()


def _mixed(x: torch.Tensor) -> torch.Tensor:
    x = x + _GOLDEN
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Logical (unsigned) shift to the right."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    """An integer wrapped to int64."""
    return (number + 2**63) % 2**64 - 2**63
