"""CUDA graphs of the embedded sampler's steps: the kernels of a token are started at once instead of one by one.

A graph replays kernels on the addresses with which they were captured. So a step reads and writes the tensors of a `Room`, whose
number of rows is one of a few and whose tokens are rounded up. Weights that are changed in place are seen by a replay; if any
lies elsewhere, or an adapter is switched, all graphs are captured anew. vLLM and SGLang capture a graph for each of a list of
batch sizes likewise, with one memory pool.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mmrl.api.errors import shorten
from mmrl.compute.cuda_graphs import Capture, CudaCapture, places
from mmrl.policies.vlm import attention
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.rooms import Memory, Room, tokens_of


class DecodeGraphs:
    """The rooms of a sampler and the graphs of their steps."""

    def __init__(self, policy: VLM, batch_size: int, make_capture: Callable[[], Capture] | None = None) -> None:
        """batch_size: rows are decoded by this many, or by a half, a quarter, ... of it, rounded up. make_capture: None captures
        on the policy's GPU."""
        self.policy, self.batch_size = policy, batch_size
        self.make_capture = make_capture or functools.partial(CudaCapture, policy.device)
        self.failure = ""
        """Why nothing can be captured, once that is known."""
        self.unfit: str | None = None
        """Why the model can't be decoded in rooms; None until it was tried, empty if it can."""
        self.captured = 0
        """Number of captures."""
        self.release()

    def release(self) -> None:
        """Free the memory of all rooms and graphs."""
        self.memory = Memory()
        self.rooms: dict[tuple[int, int], Room] = {}
        self.replays: dict[tuple[int, int], Callable[[], torch.Tensor]] = {}
        self._capture: Capture | None = None
        self._weights: tuple[Any, ...] = ()

    def rows_of(self, rows: int) -> int:
        """Rows of a room for so many: the rest are computed and not used."""
        found = max(rows, self.batch_size)
        while found > 1 and -(-found // 2) >= rows:
            found = -(-found // 2)
        return found

    def enter(
        self,
        layers: Sequence[Any],
        from_N: torch.Tensor,
        length: int,
        more: int,
        mask_NL: torch.Tensor | None,
        shift_N: torch.Tensor,
    ) -> Room:
        """A room with these rows of a cache's layers, of `length` tokens each, and place for at most `more`. mask_NL, shift_N: of
        the N rows, see `Room`. Another room's content is lost."""
        self._look_at_weights()
        shape = self.rows_of(len(from_N)), tokens_of(length, more)
        if not self.memory.fits(*shape):
            self.rooms.clear()
            self.replays.clear()
        room = self.rooms.get(shape)
        if room is None:
            room = self.rooms[shape] = Room(*shape, device=from_N.device, positions=shift_N.dtype)
        fill_N = torch.arange(shape[0], device=from_N.device) % len(from_N)  # rows that nobody uses are copies of the first
        room.mask_NS.fill_(1)
        if mask_NL is not None:
            room.mask_NS[:, :length] = mask_NL[fill_N, :length]
        room.shift_N.copy_(shift_N[fill_N])
        self.memory.fill(room, layers, from_N[fill_N], length)
        return room

    def step(self, room: Room, token_N: torch.Tensor) -> torch.Tensor:
        """The logits [N, V] after one more token of the room's first N rows; they are overwritten by the next step."""
        room.token_N1[: len(token_N), 0] = token_N
        key = room.rows, room.tokens
        if key not in self.replays and not self.failure:
            self._captured(room, key)
        replay = self.replays.get(key)
        logits = self.eager(room) if replay is None else replay()
        return logits[: len(token_N)]

    def eager(self, room: Room) -> torch.Tensor:
        """The step, without a graph: logits [rows, V]. Only tensors of the room are read and written, and the weights."""
        with attention.single_tokens():
            logits = self.policy.family.step(room.token_N1, room.mask_NS, room.positions(self.axes), {}, room.cache)
        room.index_1 += 1
        return logits

    @property
    def axes(self) -> int:
        """Of rotary positions."""
        positions = self.policy.blank.positions
        assert positions is not None
        return len(positions)

    def _captured(self, room: Room, key: tuple[int, int]) -> None:
        advanced = [room.index_1, *room.states()]
        before = [tensor.clone() for tensor in advanced]

        def rewind() -> None:
            for tensor, old in zip(advanced, before, strict=True):
                tensor.copy_(old)

        try:
            self._capture = self._capture or self.make_capture()
            self.replays[key] = self._capture(lambda: self.eager(room), rewind)
            self.captured += 1
        except Exception as error:  # noqa: BLE001  CUDA, its libraries and any model may refuse in any way
            self.failure = f"{type(error).__name__}: {shorten(error, 200)}"
            warnings.warn(
                f"generate.cuda_graphs: a step can't be captured: it is as exact without, but slower ({self.failure})",
                stacklevel=2,
            )
            self.replays.clear()
        rewind()

    def _look_at_weights(self) -> None:
        """Drop the graphs if a weight lies elsewhere than when they were captured."""
        now = (*places(self.policy.model), self.policy.family.capabilities)
        if now != self._weights:
            self.replays.clear()
            self._weights = now


def graphs_for(policy: VLM, batch_size: int) -> DecodeGraphs | None:
    """The graphs of a policy's sampler; None, with a warning, on a CPU."""
    if policy.device.type != "cuda":
        warnings.warn(f"generate.cuda_graphs needs a GPU, and the sampler is on {policy.device}: nothing changes", stacklevel=2)
        return None
    return DecodeGraphs(policy, batch_size)
