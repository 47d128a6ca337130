"""Collectives that a rank leaves if another has met an error (`mmrl.compute.rank_errors`).

On a CPU a rank that waits looks for such an error once a second. What it leaves can never be completed, and the others are one
collective behind, so that nothing more can be sent in its group: `use_instead` names another one for the last save. On a GPU
collectives are queued, and the host doesn't wait for them here: see `mmrl.compute.waking`.
"""

from __future__ import annotations

import contextlib
import datetime
import pickle
import time
from typing import Any, TypeVar

import torch
from torch import distributed

from mmrl.compute import rank_errors

T = TypeVar("T")

LOOK = datetime.timedelta(seconds=1)
"""Between two looks of a rank that waits for the others: has one of them told an error?"""
NEW_NAMES = hasattr(distributed, "all_gather_single")
"""Whether torch is 2.13 or later, which has renamed collectives."""
_left: list[bool] = []
"""Not empty if this rank has left a collective of tensors."""
_open: list[tuple[Any, Any]] = []
"""What this rank has left, of tensors and of objects, and the groups of it."""
_instead: list[Any] = []
"""The process group that takes the place of all others, if there is one: its tensors are on the CPU."""


def begin() -> None:
    """Forget what was left, and that a group takes the place of others. Call it on all ranks, when they are connected."""
    _left.clear()
    _open.clear()
    _instead.clear()


def is_open(group: Any) -> bool:
    """Whether this rank has left a collective in this group."""
    return any(group is other for _, other in _open)


def wait_for_end(patience: float) -> None:
    """Wait for what this rank has left, which fails when the others have freed the group. A thread of gloo's would end the
    process with an error if it were still at it when Python ends. patience: in seconds."""
    until = time.monotonic() + patience
    for work, _ in _open:
        with contextlib.suppress(RuntimeError):
            work.wait(datetime.timedelta(seconds=max(until - time.monotonic(), 0.01)))


def has_left() -> bool:
    """Whether this rank has left a collective of tensors."""
    return bool(_left)


def use_instead(group: Any) -> None:
    """Gather in this group from now on, whose tensors are on the CPU. Call it on all ranks."""
    _instead.append(group)


def instead() -> Any:
    """The group that `use_instead` named; None for none."""
    return _instead[0] if _instead else None


def wait(work: Any, group: Any = None) -> None:
    """Wait for a collective whose tensors are on the CPU. Raises an error that a rank has told meanwhile."""
    try:
        while True:
            try:
                work.wait(LOOK)
                return
            except RuntimeError:
                if work.is_completed():
                    break  # with an error of its own, or just now
            rank_errors.look()
    except BaseException:  # also Ctrl-C
        _open.append((work, group or distributed.group.WORLD))
        raise
    work.wait()


def all_reduce(values: torch.Tensor, op: Any = None, group: Any = None) -> torch.Tensor:
    """Reduce a tensor over the ranks of a group, in place. op: one of torch's; by default the sum."""
    _carry_out(distributed.all_reduce, values, op or distributed.ReduceOp.SUM, group=group)
    return values


def all_to_all(found: torch.Tensor, pieces: torch.Tensor, group: Any = None) -> None:
    """Send piece i of the first dimension to rank i, and find that of rank i there."""
    _carry_out(distributed.all_to_all_single, found, pieces, group=group)


def gather_object(own: T, group: Any = None) -> list[T]:
    """The objects of all ranks of a group, in their order; its tensors are on the CPU. own: plain data and tensors on the CPU."""
    data = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8)
    sizes = _gathered(torch.tensor([len(data)]), group)[:, 0].tolist()
    found = _gathered(torch.nn.functional.pad(data, (0, max(sizes) - len(data))), group)
    return [pickle.loads(part[:size].numpy().tobytes()) for part, size in zip(found, sizes, strict=True)]


def _gathered(own: torch.Tensor, group: Any) -> torch.Tensor:
    """[L] of each rank -> [ranks, L]."""
    found = own.new_empty(distributed.get_world_size(group) * len(own))
    wait(_gather(found, own, group=group, async_op=True), group)
    return found.view(-1, len(own))


def _carry_out(collective: Any, first: torch.Tensor, *rest: Any, group: Any) -> None:
    if not first.is_cpu:
        collective(first, *rest, group=group)
        return
    try:
        wait(collective(first, *rest, group=group, async_op=True), group)
    except BaseException:
        _left.append(True)
        raise


class AllGather:
    """FSDP's all-gather (`FSDPModule.set_custom_all_gather`)."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False) -> Any:
        if other := instead():
            found = output_tensor.cpu()
            _gather(found, input_tensor.cpu(), group=other)
            output_tensor.copy_(found)
            return None
        if async_op:
            return _gather(output_tensor, input_tensor, group=group, async_op=True)
        return _carry_out(_gather, output_tensor, input_tensor, group=group)


class ReduceScatter(AllGather):
    """FSDP's reduce-scatter (`FSDPModule.set_custom_reduce_scatter`)."""

    def __call__(  # type: ignore[override]
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        if not input_tensor.is_cpu or async_op:
            return _scatter(output_tensor, input_tensor, op, group=group, async_op=async_op)
        all_reduce(input_tensor, op, group)  # as gloo does it; but of its own work nobody can tell whether it is complete
        output_tensor.copy_(input_tensor.view(group.size(), *output_tensor.shape)[group.rank()])
        return None


def _gather(found: torch.Tensor, own: torch.Tensor, **options: Any) -> Any:
    return getattr(distributed, "all_gather_single" if NEW_NAMES else "all_gather_into_tensor")(found, own, **options)


def _scatter(own: torch.Tensor, parts: torch.Tensor, op: Any, **options: Any) -> Any:
    return getattr(distributed, "reduce_scatter_single" if NEW_NAMES else "reduce_scatter_tensor")(own, parts, op, **options)
