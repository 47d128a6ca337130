"""Data parallel ranks: the processes that train together. All run the same program with the same seeds.

Expensive work (images, sampling, judging, forward and backward passes) is split among the ranks, and the results are gathered on
all of them. With one process these functions do nothing.
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
from mmrl.compute import collectives, rank_errors
from mmrl.compute.crossing import Fault
from mmrl.compute.processes import LAUNCHED, RANK_LOST_EXIT_CODE
from mmrl.compute.waking import Waker, abort_nccl

T = TypeVar("T")


class RankLost(UserError):
    """Another rank died. The run itself is not at fault and can be resumed from its newest checkpoint."""


COLLECTIVE_TIMEOUT = datetime.timedelta(hours=4)
"""Timeout of a collective: another rank may have the longest completions or a slow verifier. The death of a rank is noticed at
once."""
LEAVING_S = 30.0
"""Seconds that a rank waits at its end for the others to end too."""
CLOSED = "another rank has closed its sampler"
"""What a sampler's thread raises as a RuntimeError if the others won't sample with it."""
_groups: dict[str, Any] = {}
"""Purpose -> process group for objects. Each thread has its own group, so that collectives of different threads don't mix."""
_thread = threading.local()
_waited = [0.0]
"""Seconds that the main thread waited for other ranks."""


def rank() -> int:
    """This process's rank, from 0."""
    return distributed.get_rank() if _is_one_of_several() else 0


def world_size() -> int:
    """Number of ranks."""
    return distributed.get_world_size() if _is_one_of_several() else 1


def is_first() -> bool:
    """Whether this is the first rank, which writes the run folder and the terminal's output."""
    return rank() == 0


def local_device() -> str:
    """This rank's GPU on its machine, as ":N"; empty for a single process, which takes the first."""
    return f":{torch.cuda.current_device()}" if world_size() > 1 else ""


def local_size() -> int:
    """Number of ranks on this machine. A process that isn't a rank may have inherited their variables: it is alone."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if world_size() > 1 else 1


def local_rank() -> int:
    """This process's number among the ranks of this machine, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0")) if world_size() > 1 else 0


def owns(number: int) -> bool:
    """Whether the item with this index is in this rank's share: each rank has every `world_size`-th item."""
    return number % world_size() == rank()


def _is_one_of_several() -> bool:
    if not distributed.is_available() or not distributed.is_initialized():
        return False
    return distributed.get_world_size() > 1  # vLLM in this process makes a group of size one


# -- tensors --------------------------------------------------------------------------------------------------------------


def all_reduce_sum(values: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all ranks, in place."""
    return collectives.all_reduce(values) if _is_one_of_several() else values


def all_reduce_max(own: int) -> int:
    """The maximum of a number over all ranks."""
    return max(all_gather_object(own))


# -- objects --------------------------------------------------------------------------------------------------------------


def all_gather_object(own: T) -> list[T]:
    """The objects of all ranks, in the order of ranks. own: plain data and tensors on the CPU."""
    if not _is_one_of_several():
        return [own]
    started = time.perf_counter()
    collects = gc.isenabled()
    gc.disable()  # it would scan the objects that were unpickled so far again and again
    try:
        objects = collectives.gather_object(own, object_group())
    finally:
        if collects:
            gc.enable()
    if _purpose() == "main":
        _waited[0] += time.perf_counter() - started
    return objects


def _purpose() -> str:
    return getattr(_thread, "purpose", "main")


def object_group() -> Any:
    """The process group of this thread's objects; None, for the default one, outside of `process_group`."""
    return _groups.get("ending" if _purpose() == "main" and _left == [True] else _purpose())


def meet() -> None:
    """Wait until all ranks are here. Raises an error that a rank has told meanwhile (`mmrl.compute.rank_errors`), which won't
    come. Call it before work whose collectives are of tensors."""
    if _is_one_of_several():
        meeting = distributed.all_reduce(torch.zeros(1), group=object_group(), async_op=True)  # a barrier, but never of GPUs
        collectives.wait(meeting, object_group())


def run_and_gather(work: Callable[[], T]) -> list[T]:
    """Call `work` on each rank and return the results of all ranks. A UserError of one rank is raised on every rank."""
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
    """Call `work` on each rank, wait for all, and return this rank's result. A UserError of one rank is raised on every rank."""
    if not _is_one_of_several():
        return work()
    made: list[T] = []
    run_and_gather(lambda: made.append(work()))
    return made[0]


def broadcast_from_first(work: Callable[[], T]) -> T:
    """Call `work` on the first rank and return its result on all ranks."""
    return run_and_gather(lambda: work() if is_first() else None)[0]  # type: ignore[return-value]


def gather_sharded(work: Callable[[], Mapping[int, T]], to_stub: Callable[[T], T] = lambda thing: thing) -> list[T]:
    """Call `work` on each rank for its share of items (index -> item), and return the items of all ranks in order.

    to_stub: makes what other ranks get in place of an item."""
    if not _is_one_of_several():
        own = work()
        return [own[number] for number in sorted(own)]
    made: dict[int, T] = {}

    def work_to_stubs() -> dict[int, T]:
        made.update(work())
        return {number: to_stub(thing) for number, thing in made.items()}

    whole = {number: thing for share in run_and_gather(work_to_stubs) for number, thing in share.items()} | made
    return [whole[number] for number in sorted(whole)]


Reduction = Literal["sum", "mean", "max"]
"""How a metric is reduced over ranks."""


def reduce_metrics(own: Mapping[str, float], reductions: Mapping[str, Reduction]) -> dict[str, float]:
    """Reduce metrics over all ranks; the default reduction is the mean. Ranks without a metric don't count in it."""
    by_name: dict[str, list[float]] = {}
    for metrics in all_gather_object(dict(own)):
        for name, value in metrics.items():
            by_name.setdefault(name, []).append(value)
    return {name: _reduced(values, reductions.get(name, "mean")) for name, values in by_name.items()}


def _reduced(values: list[float], how: Reduction) -> float:
    return max(values) if how == "max" else sum(values) / (len(values) if how == "mean" else 1)


def reset_wait_time() -> None:
    """Set this rank's `wait_time` to 0."""
    _waited[0] = 0.0


def wait_time() -> dict[str, float]:
    """`ranks/wait_s`: the longest time in seconds that the main thread of a rank has waited for other ranks since
    `reset_wait_time`. Empty for a single process."""
    return {"ranks/wait_s": max(all_gather_object(_waited[0]))} if _is_one_of_several() else {}


def any_rank(own: bool) -> bool:
    """Whether `own` is true on any rank."""
    return any(all_gather_object(own))


@contextlib.contextmanager
def use_group(purpose: str) -> Iterator[None]:
    """Inside the block, collectives of this thread use their own process group. For threads other than the main one."""
    _thread.purpose = purpose
    try:
        yield
    finally:
        del _thread.purpose


def neighbours(size: int, backend: str | None = None) -> Any:
    """The process group of this rank and those beside it: ranks 0..size - 1, size..2 size - 1, ... size: divides the number of
    ranks. backend: by default that of all ranks, for tensors on any device. Call it on all ranks."""
    purpose = f"{size} neighbours {backend or ''}"
    if purpose not in _groups:
        for first in range(0, world_size(), size):
            made = distributed.new_group(list(range(first, first + size)), COLLECTIVE_TIMEOUT, backend)
            if first <= rank() < first + size:
                _groups[purpose] = made
    return _groups[purpose]


# -- beginning and end ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def process_group(on_gpu: bool = True) -> Iterator[None]:
    """Inside the block, the processes that torchrun, `mmrl.compute.processes` or Ray started are connected. on_gpu: each takes
    one of its machine's GPUs, if there are any.

    A UserError of one rank is shared (`mmrl.compute.rank_errors`): all ranks end by it, only the first one raises it, and the
    others exit without a message. If the others can't come to the end, the rank that met the error raises it too. Raises RankLost
    if the other ranks died or can't be reached.
    """
    if not distributed.is_available() or (not distributed.is_initialized() and _started() < 2):
        yield
        return
    own, device = not distributed.is_initialized(), _take_gpu() if on_gpu and torch.cuda.is_available() else None
    if own:
        _begin(device)
    for purpose, patience in (
        ("main", COLLECTIVE_TIMEOUT),
        ("ahead", COLLECTIVE_TIMEOUT),
        ("weights", COLLECTIVE_TIMEOUT),
        ("ending", COLLECTIVE_TIMEOUT),  # for objects of the main thread: in "main" a rank may still be waited for
        ("leaving", datetime.timedelta(seconds=LEAVING_S)),
    ):
        _groups[purpose] = distributed.new_group(backend="gloo", timeout=patience)
    _left.clear()
    rank_errors.begin()
    collectives.begin()
    if device is not None:
        wake_by(abort_nccl)
    try:
        with rank_errors.shared_errors():
            yield
    except UserError as error:
        if all_ranks_ending():
            another_says_it = not is_first()
        else:  # the rank that met it does, on the same terminal
            another_says_it = LAUNCHED in os.environ and rank_errors.is_heard(error)
        if another_says_it:
            raise SystemExit(2) from None
        raise
    except RuntimeError as error:  # torch raises it if the other ranks can't be reached
        if not _is_of_others(error):
            raise
        if LAUNCHED in os.environ:
            raise SystemExit(RANK_LOST_EXIT_CODE) from error
        raise RankLost(
            f"rank {rank()}: another of the {world_size()} ranks died or can't be reached: see its messages, and continue from "
            "the newest checkpoint with --resume"
        ) from error
    finally:
        _disconnect(own)


def wake_by(abort: Callable[[], None]) -> None:
    """Until the ranks part, end waits for tensors by this function if one has told an error."""
    _wakers.append(Waker(rank_errors.is_unheard, abort))


def _disconnect(everything: bool) -> None:
    """Free the process groups; those first in which this rank has left nothing, as another may wait for them to be freed."""
    while _wakers:
        _wakers.pop().stop(LEAVING_S)
    groups = sorted(_groups.values(), key=collectives.is_open)
    _groups.clear()
    while groups and not collectives.is_open(groups[0]):
        distributed.destroy_process_group(groups.pop(0))
    collectives.wait_for_end(LEAVING_S)
    for group in groups:
        distributed.destroy_process_group(group)
    if everything:
        distributed.destroy_process_group()


def _started() -> int:
    """The number of ranks in this process's environment variables. Raises UserError if RANK and WORLD_SIZE contradict."""
    number, count = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if "WORLD_SIZE" in os.environ and not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise UserError(f"RANK = {number!r} must be below WORLD_SIZE = {count!r}: leave both to torchrun, or unset them")
    return int(count)


def _take_gpu() -> torch.device:
    """The GPU of this rank, which becomes the current one: ranks have the first ones of their machine, also where Ray gives each
    several, of which it would take the first."""
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _begin(device: torch.device | None) -> None:
    where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
    try:
        distributed.init_process_group("cpu:gloo,cuda:nccl" if device else "gloo", device_id=device)
    except (RuntimeError, ValueError) as error:
        text = str(error).splitlines()[0]
        cure = "choose another port (torchrun --master-port)" if "in use" in text or "EADDRINUSE" in text else "see its log"
        raise UserError(f"the ranks can't connect at {where}: {text[:200]}: {cure}") from error


def _is_of_others(error: RuntimeError) -> bool:
    text = str(error)
    return isinstance(error, distributed.DistBackendError) or any(
        part in text
        for part in ("Connection closed by peer", "Connection reset by peer", "gloo", "NCCL", "Timed out waiting", CLOSED)
    )


_wakers: list[Waker] = []
"""One on a GPU."""
_left: list[bool] = []
"""The cached result of `all_ranks_ending`."""


def all_ranks_ending() -> bool:
    """Whether all ranks are about to end, so that they can do something together for the last time. The result of the first call
    is cached. If a rank has left a collective of tensors, gathering goes through the host from now on."""
    if not _is_one_of_several():
        return True
    if not _left:
        for waker in _wakers:
            waker.stop(LEAVING_S)
        left = torch.tensor([float(collectives.has_left() or any(waker.woke for waker in _wakers))])
        try:
            distributed.all_reduce(left, group=_groups["leaving"])
            _left.append(True)
        except RuntimeError:
            _left.append(False)
        rank_errors.all_know()
        if _left[0] and left.item():
            collectives.use_instead(_groups["ending"])
            for waker in _wakers:
                waker.wake()  # also what this rank has queued for those that have left
    return _left[0]
