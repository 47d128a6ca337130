"""What a frozen vision tower saw of pictures, kept within a step, so that the tower looks at each picture once.

A step passes over a prompt's pictures when it samples, where it needs log-probabilities before the update, for a reference that
is the policy without its adapters, and in each epoch of the update. As long as no weight of the tower is trained, which is the
default with adapters, all of these passes see the same, and sampler and learner read the same numbers.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch

from mmrl.api.transfer import stream_of
from mmrl.policies.lora import without_adapters
from mmrl.policies.vlm.slices import pass_team

GRIDS = "image_grid_thw"
"""Argument of the models whose pictures are numbered: a row (time, height, width), in patches, for each picture."""
Sight = tuple[torch.Tensor, ...]
"""What a tower saw of one picture: [tokens, H] of its output, and of each layer that it hands on besides."""
Key = tuple[Any, bool, int, int]
"""A tower, whether its adapters are disabled, a stream, and the number of a picture."""


def numbered(media: Mapping[str, torch.Tensor]) -> tuple[int, ...]:
    """A number for each picture of a prompt; none for models whose pictures have no grids. They are random in 2^64, so that two
    processes don't give one number to two pictures."""
    return tuple(int.from_bytes(os.urandom(8), "big") for _ in media.get(GRIDS, ()))


class VisionCache:
    """What towers saw within a step."""

    def __init__(self, most: int) -> None:
        """most: bytes that are kept. Once they are full nothing comes in, as it would push out what is needed again sooner."""
        self.most, self.bytes = most, 0
        self._kept: dict[Key, Sight] = {}
        self._kinds: dict[Any, type] = {}
        """Tower -> the class of its output."""

    def look(
        self, tower: Any, numbers: Sequence[int], patches: torch.Tensor, grids_n3: torch.Tensor, see: Callable[..., Any]
    ) -> Any:
        """What `see(patches, grids_n3)` gives, for pictures with these numbers. Its `pooler_output` and each of its
        `deepstack_features` have the tokens of one picture behind those of another."""
        stream = stream_of(patches.device)  # what another stream computes may not be there yet
        plain = without_adapters(tower)  # frozen ones that were trained before: the reference sees otherwise
        keys = [(tower, plain, stream, number) for number in numbers]
        new = [i for i, key in enumerate(keys) if key not in self._kept]
        if not new:
            return self._output(tower, [self._kept[key] for key in keys])
        sizes = grids_n3.prod(1).tolist()
        if len(new) < len(keys):
            pieces = patches.split(sizes)
            patches, grids_n3 = torch.cat([pieces[i] for i in new]), grids_n3[new]
        output = see(patches, grids_n3)
        self._kinds[tower] = type(output)
        tokens = [sizes[i] // tower.config.spatial_merge_size**2 for i in new]
        sights = _sights(output, tokens)
        found = dict(zip((keys[i] for i in new), sights, strict=True))
        known = {key: self._kept[key] for key in keys if key in self._kept}
        self._keep(found, sum(x.nbytes for sight in sights for x in sight))
        return self._output(tower, [(found | known)[key] for key in keys]) if known else output

    def _keep(self, found: Mapping[Key, Sight], size: int) -> None:
        """size: bytes of all that was seen with them, a picture as often as it was shown: none of them frees its part alone."""
        if self.bytes + size <= self.most:
            self._kept.update(found)
            self.bytes += size

    def _output(self, tower: Any, sights: Sequence[Sight]) -> Any:
        """The output of a tower that saw these pictures, as its model reads it."""
        first, *more = (torch.cat(layer) for layer in zip(*sights, strict=True))
        return self._kinds[tower](pooler_output=first, **({"deepstack_features": more} if more else {}))


def _sights(output: Any, tokens: Sequence[int]) -> list[Sight]:
    """What was seen of each picture, which has so many tokens."""
    layers = [output.pooler_output, *(getattr(output, "deepstack_features", None) or ())]
    return list(zip(*(layer.split(tokens) for layer in layers), strict=True))


_CACHE: ContextVar[VisionCache | None] = ContextVar("cache", default=None)
_SHOWN: ContextVar[tuple[torch.Tensor, Sequence[int]] | None] = ContextVar("shown", default=None)


@contextlib.contextmanager
def vision_cache(most: int) -> Iterator[VisionCache]:
    """Within it, frozen towers of this thread look at each numbered picture once. most: see `VisionCache`."""
    cache = VisionCache(most)
    token = _CACHE.set(cache)
    try:
        yield cache
    finally:
        _CACHE.reset(token)


@contextlib.contextmanager
def showing(media: Mapping[str, torch.Tensor], numbers: Sequence[int]) -> Iterator[None]:
    """Passes inside are of these media, whose pictures have these numbers; if some have none, they are looked at in each."""
    grids = media.get(GRIDS)
    token = _SHOWN.set(None if grids is None or len(grids) != len(numbers) else (grids, numbers))
    try:
        yield
    finally:
        _SHOWN.reset(token)


def look(tower: Any, patches: torch.Tensor, grids_n3: torch.Tensor, see: Callable[..., Any]) -> Any:
    """What `see(patches, grids_n3)` gives, or gave when the tower looked at these pictures before, if it is frozen."""
    cache, shown = _CACHE.get(), _SHOWN.get()
    if cache is None or shown is None or shown[0] is not grids_n3 or patches.requires_grad or not _is_constant(tower):
        return see(patches, grids_n3)
    return cache.look(tower, shown[1], patches, grids_n3, see)


def _is_constant(tower: Any) -> bool:
    """Whether nothing of it is trained, and this rank looks alone. Of sharded weights each rank has a tower's whole in a pass."""
    return pass_team() is None and not any(p.requires_grad for p in tower.parameters())


def use_vision_cache(model: Any) -> None:
    """Make a model's vision tower use the cache, if it takes the grids of its pictures. model: the one that has the tower."""
    tower = getattr(model, "visual", None)
    if tower is None or "forward" in vars(tower):  # Qwen's own, which does it (`mmrl.policies.vlm.vision`)
        return
    if {"hidden_states", "grid_thw"} <= inspect.signature(type(tower).forward).parameters.keys():
        tower.forward = partial(_forward, tower)


def _forward(tower: Any, hidden_states: torch.Tensor, grid_thw: torch.Tensor, **kwargs: Any) -> Any:
    return look(tower, hidden_states, grid_thw, partial(type(tower).forward, tower, **kwargs))
