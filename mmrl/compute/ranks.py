"""The processes that learn together, each a rank. All run the same program with the same seeds.

What is costly (pictures, sampling, judging, passes through the model) is split among them, and what came of it is told to all.
With one process nothing happens.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import distributed

from mmrl.api.errors import UserError
from mmrl.compute.crossing import Fault
from mmrl.compute.processes import LAUNCHED, RANK_LOST_EXIT_CODE

T = TypeVar("T")


class RankLost(UserError):
    """Another rank died: no fault of the run, which goes on from its newest checkpoint."""


COLLECTIVE_TIMEOUT = datetime.timedelta(hours=4)
"""How long a rank waits for what another says, which may have the longest completions, or a slow verifier. That a rank died is
heard of at once."""
LEAVING_S = 30.0
"""How long a rank that ends waits for the others to end too."""
_groups: dict[str, Any] = {}
"""Purpose -> a group over which objects are told. Each thread that tells has its own, so that what one says doesn't meet what
another is waiting for."""
_thread = threading.local()
_waited = [0.0]
"""Seconds that the main thread waited for what others say."""


def rank() -> int:
    """This process's number, from 0."""
    return distributed.get_rank() if _is_one_of_several() else 0


def world_size() -> int:
    """How many learn together."""
    return distributed.get_world_size() if _is_one_of_several() else 1


def is_first() -> bool:
    """Whether this is the process that writes the run folder and speaks to people."""
    return rank() == 0


def local_device() -> str:
    """Which of this machine's GPUs is this rank's, as ":N"; empty for one process, which takes the first."""
    return f":{torch.cuda.current_device()}" if world_size() > 1 else ""


def owns(number: int) -> bool:
    """Whether this rank's share holds what has this number: each has every `world_size`-th."""
    return number % world_size() == rank()


def _is_one_of_several() -> bool:
    if not distributed.is_available() or not distributed.is_initialized():
        return False
    return distributed.get_world_size() > 1  # vLLM in this process makes a group of one


# -- tensors --------------------------------------------------------------------------------------------------------------


def all_reduce_sum(values: torch.Tensor) -> torch.Tensor:
    """The tensor, added up over all ranks in place."""
    if _is_one_of_several():
        distributed.all_reduce(values)
    return values


def all_reduce_max(own: int) -> int:
    """The largest of the ranks' numbers."""
    return max(all_gather_object(own))


# -- objects --------------------------------------------------------------------------------------------------------------


def all_gather_object(own: T) -> list[T]:
    """What each rank says, by rank. Plain data and tensors on the CPU."""
    if not _is_one_of_several():
        return [own]
    found: list[Any] = [None] * world_size()
    purpose, started = getattr(_thread, "purpose", "main"), time.perf_counter()
    collects = gc.isenabled()
    gc.disable()  # it would go over all that was read already, again and again
    try:
        distributed.all_gather_object(found, own, group=_groups.get(purpose))
    finally:
        if collects:
            gc.enable()
    if purpose == "main":
        _waited[0] += time.perf_counter() - started
    return found


def run_and_gather(work: Callable[[], T]) -> list[T]:
    """What each rank makes, by rank. What one of them can't make ends it for all: its UserError is raised on every rank."""
    made: Any = None
    fault: UserError | None = None
    try:
        made = work()
    except UserError as error:
        if not _is_one_of_several():
            raise
        fault = error
    found = all_gather_object((made, None if fault is None else Fault.of(fault)))
    for number, (_, other) in enumerate(found):
        if other is not None:
            if number == rank() and fault is not None:
                raise fault
            raise other.error(f"rank {number}")
    return [one for one, _ in found]


def run_on_all(work: Callable[[], T]) -> T:
    """What this rank makes, once all have made theirs."""
    if not _is_one_of_several():
        return work()
    made: list[T] = []
    run_and_gather(lambda: made.append(work()))
    return made[0]


def broadcast_from_first(work: Callable[[], T]) -> T:
    """What the first rank makes, told to all."""
    return run_and_gather(lambda: work() if is_first() else None)[0]  # type: ignore[return-value]


def gather_sharded(work: Callable[[], Mapping[int, T]], to_stub: Callable[[T], T] = lambda thing: thing) -> list[T]:
    """What all ranks made, each for some numbers, in their order. to_stub: what is told to others in place of a thing."""
    if not _is_one_of_several():
        own = work()
        return [own[number] for number in sorted(own)]
    made: dict[int, T] = {}

    def telling() -> dict[int, T]:
        made.update(work())
        return {number: to_stub(thing) for number, thing in made.items()}

    whole = {number: thing for share in run_and_gather(telling) for number, thing in share.items()} | made
    return [whole[number] for number in sorted(whole)]


Reduction = Literal["sum", "mean", "max"]
"""How a metric of all ranks comes from those of each."""


def reduce_metrics(own: Mapping[str, float], reductions: Mapping[str, Reduction]) -> dict[str, float]:
    """Metrics of all ranks from those of each; one without a reduction is averaged. Ranks without a metric don't count in it."""
    found: dict[str, list[float]] = {}
    for one in all_gather_object(dict(own)):
        for name, value in one.items():
            found.setdefault(name, []).append(value)
    return {name: _reduced(values, reductions.get(name, "mean")) for name, values in found.items()}


def _reduced(values: list[float], how: Reduction) -> float:
    return max(values) if how == "max" else sum(values) / (len(values) if how == "mean" else 1)


def reset_wait_time() -> None:
    """From now on, what this rank waits counts in `wait_time`."""
    _waited[0] = 0.0


def wait_time() -> dict[str, float]:
    """`ranks/wait_s`: how long the rank that waited most has waited for the others since `reset_wait_time`, in seconds; nothing
    for one process. What a thread beside the main one waited doesn't count."""
    return {"ranks/wait_s": max(all_gather_object(_waited[0]))} if _is_one_of_several() else {}


def any_rank(own: bool) -> bool:
    """Whether it holds on some rank."""
    return any(all_gather_object(own))


@contextlib.contextmanager
def use_group(purpose: str) -> Iterator[None]:
    """In a thread beside the main one: tell over a group of its own."""
    _thread.purpose = purpose
    try:
        yield
    finally:
        del _thread.purpose


# -- beginning and end ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def process_group(on_gpu: bool = True) -> Iterator[None]:
    """Inside, the processes that torchrun (or `mmrl.compute.processes`, or Ray) started know of each other. on_gpu: each takes
    one of this
    machine's GPUs, if there are any.

    A UserError inside is the first rank's to tell: where all of them end by one, the others end in silence.
    """
    if not distributed.is_available() or (not distributed.is_initialized() and _started() < 2):
        yield
        return
    own = not distributed.is_initialized()
    if own:
        _begin(on_gpu and torch.cuda.is_available())
    for purpose, patience in (
        ("main", COLLECTIVE_TIMEOUT),
        ("ahead", COLLECTIVE_TIMEOUT),
        ("leaving", datetime.timedelta(seconds=LEAVING_S)),
    ):
        _groups[purpose] = distributed.new_group(backend="gloo", timeout=patience)
    _left.clear()
    try:
        yield
    except UserError:
        if all_ranks_ending() and not is_first():
            raise SystemExit(2) from None
        raise
    except RuntimeError as error:  # what torch raises where the others can't be reached
        if not _is_of_others(error):
            raise
        if LAUNCHED in os.environ:
            raise SystemExit(RANK_LOST_EXIT_CODE) from error
        raise RankLost(
            f"rank {rank()}: another of the {world_size()} ranks died or can't be reached: see what it said; the run "
            "goes on from its "
            "newest checkpoint with --resume"
        ) from error
    finally:
        for group in [] if own else _groups.values():
            distributed.destroy_process_group(group)
        _groups.clear()
        if own:
            distributed.destroy_process_group()


def _started() -> int:
    """As one of how many this process was started. UserError where its environment makes no sense of that."""
    number, count = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if "WORLD_SIZE" in os.environ and not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise UserError(f"RANK = {number!r} is none of WORLD_SIZE = {count!r}: leave both to torchrun, or unset them")
    return int(count)


def _begin(on_gpu: bool) -> None:
    where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    device = None
    if on_gpu:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    try:
        distributed.init_process_group("cpu:gloo,cuda:nccl" if device else "gloo", device_id=device)
    except (RuntimeError, ValueError) as error:
        text = str(error).splitlines()[0]
        cure = "choose another port (torchrun --master-port)" if "in use" in text or "EADDRINUSE" in text else "see its log"
        raise UserError(f"the ranks can't meet at {where}: {text[:200]}: {cure}") from error


def _is_of_others(error: RuntimeError) -> bool:
    text = str(error)
    return isinstance(error, distributed.DistBackendError) or any(
        part in text for part in ("Connection closed by peer", "Connection reset by peer", "gloo", "NCCL", "Timed out waiting")
    )


_left: list[bool] = []
"""What `all_ranks_ending` found, once it was asked."""


def all_ranks_ending() -> bool:
    """Whether all ranks are about to end, so that they may still do something together. Asked once, it stays as it was."""
    if not _is_one_of_several():
        return True
    if not _left:
        try:
            distributed.all_reduce(torch.zeros(1), group=_groups["leaving"])
            _left.append(True)
        except RuntimeError:
            _left.append(False)
    return _left[0]
