"""Which weights must be sent to a sampler with its own copy, the buckets that they are sent in, and how another process of this
machine reads them.

Weights are sent in blocks: those of all layers that are children of one module, such as q, k, v and o of an attention. Layers
that vLLM fuses into one lie within a block, because a fused layer can only be loaded as a whole.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from mmrl.policies.lora import is_adapter, merged_weights
from mmrl.policies.shard import full_tensor
from mmrl.policies.vlm.published import conversions_of, published

Named = tuple[str, torch.Tensor]
Place = tuple[str, torch.dtype, tuple[int, ...], int]
"""A weight in a buffer: its name, its dtype, its shape, the byte where it begins."""

LOAD_BYTES = 2**28
"""Bytes that are sent at once, unless a block is larger."""
ALIGNED = 64
"""Weights begin at multiples of this many bytes."""
_PART = re.compile(r".*?\.\d+\.[^.]+")


def parameter_versions(model: torch.nn.Module) -> dict[str, int]:
    """Name of a parameter -> how often torch has written to it. A tied one has all its names."""
    return {name: p._version for name, p in model.named_parameters(remove_duplicate=False)}


def block(name: str) -> str:
    """The module whose children's weights go together with this one, an adapter's or a layer's own: the one that holds the layer,
    or in a numbered layer of the model its part (`layers.3.mlp` with all experts)."""
    layer = name.partition(".lora_")[0] if is_adapter(name) else name.replace(".base_layer.", ".").rpartition(".")[0]
    holder = layer.rpartition(".")[0]
    part = _PART.match(holder)
    return part[0] if part else holder


def changed_weights(model: Any, before: dict[str, int], now: dict[str, int]) -> Iterator[Named]:
    """The weights of all blocks in which one changed, or of all if nothing is known before: detached, with adapters merged, by
    the names of published checkpoints, which have a tied weight once. Sharded weights are gathered, so call it on all ranks."""
    blocks = {block(name) for name, version in now.items() if before.get(name) != version}
    again = now.keys() & model.all_tied_weights_keys  # with an adapter, a head has another name, and is another
    wanted = merged_weights(model, lambda name: name not in again and (not before or block(name) in blocks))
    weights = ((name, full_tensor(value.detach())) for name, value in wanted)
    conversions = conversions_of(model)
    for together in _blocks(weights):
        yield from published(model, conversions, dict(together)).items()


def num_bytes(values: Iterable[torch.Tensor]) -> int:
    """Total bytes of these tensors."""
    return sum(v.numel() * v.element_size() for v in values)


class Bucket:
    """A buffer for whole blocks of weights, one behind the other."""

    def __init__(self, room: int, device: torch.device) -> None:
        """room: its bytes; only a block that is larger makes it grow."""
        self.room = room
        self.buffer_B = torch.empty(room, dtype=torch.uint8, device=device)
        self.places: list[Place] = []
        """Of the weights in it."""
        self.end = 0
        """Bytes that they take."""

    def clear(self) -> None:
        """Forget what is in it."""
        self.places, self.end = [], 0

    def take(self, weights: Sequence[Named]) -> bool:
        """Write a block behind the others; False if it doesn't fit."""
        more = sum(_room(value) for _, value in weights)
        if self.places and self.end + more > self.room:
            return False
        if more > len(self.buffer_B):
            self.buffer_B = torch.empty(more, dtype=torch.uint8, device=self.buffer_B.device)
        for name, value in weights:
            self.places.append((name, value.dtype, tuple(value.shape), self.end))
            _view(self.buffer_B, self.places[-1]).copy_(value)
            self.end += _room(value)
        return True


def filled(weights: Iterable[Named], following: Callable[[], Bucket]) -> Iterator[Bucket]:
    """Buckets with these weights in their order, as many blocks in each as fit. following: gives an empty one, each time that one
    is needed; it may be the last, which was read by then."""
    bucket: Bucket | None = None
    for names in _blocks(weights):
        if bucket is None or not bucket.take(names):
            if bucket is not None:
                yield bucket
            bucket = following()
            bucket.take(names)
    if bucket is not None:
        yield bucket


def bucket_room(model: torch.nn.Module) -> int:
    """Bytes of a bucket for a model's weights: `LOAD_BYTES`, or less if all of them fit in less."""
    return min(LOAD_BYTES, sum(_room(p) for _, p in model.named_parameters(remove_duplicate=False)))


class SharedWeights:
    """A buffer from which other processes of this machine read weights: shared memory, or on a GPU CUDA IPC."""

    def __init__(self, room: int, device: torch.device) -> None:
        """room: see `Bucket`."""
        self.bucket = Bucket(room, device)

    def loads(self, weights: Iterable[Named]) -> Iterator[list[Place]]:
        """Write whole blocks into the buffer, as many at once as fit, and yield their places. Each time overwrites the last."""
        for bucket in filled(weights, self._emptied):
            if bucket.buffer_B.is_cuda:
                torch.cuda.synchronize(bucket.buffer_B.device)
            yield bucket.places

    def handles(self, readers: int) -> list[bytes]:
        """Handles with which `open_shared` opens the buffer, one for each reader."""
        return [bytes(ForkingPickler.dumps(self.bucket.buffer_B)) for _ in range(readers)]

    def _emptied(self) -> Bucket:
        self.bucket.clear()
        return self.bucket


def open_shared(handle: bytes, places: Sequence[Place]) -> Iterator[Named]:
    """The weights in another process's `SharedWeights`, as views of its buffer."""
    return weights_in(pickle.loads(handle), places)


def weights_in(buffer_B: torch.Tensor, places: Sequence[Place]) -> Iterator[Named]:
    """The weights at these places of a buffer, as views of it."""
    return ((place[0], _view(buffer_B, place)) for place in places)


def _view(buffer_B: torch.Tensor, place: Place) -> torch.Tensor:
    _, dtype, shape, first = place
    count = torch.Size(shape).numel() * dtype.itemsize
    return buffer_B[first : first + count].view(dtype).view(shape)


def _room(value: torch.Tensor) -> int:
    return -(-num_bytes([value]) // ALIGNED) * ALIGNED


def _blocks(weights: Iterable[Named]) -> Iterator[list[Named]]:
    """Weights that are next to each other and of one block, together."""
    together: list[Named] = []
    for name, value in weights:
        if together and block(together[-1][0]) != block(name):
            yield together
            together = []
        together.append((name, value))
    if together:
        yield together
