"""A UserError or a Ctrl-C that one rank alone meets, told to the others through the store that connected them."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

from torch import distributed

from mmrl.api.errors import UserError
from mmrl.compute.crossing import Fault

_entered = [0]
"""How often this process has called `begin`, as all ranks have: the errors of an earlier time are told apart by it."""
_heard: list[UserError] = []
"""What this rank raised because another one has told it."""
_known: list[bool] = []
"""Not empty if all ranks are ending and know it."""
_raised: list[bool] = []
"""Not empty if this rank is ending by an error."""


class Stopped(KeyboardInterrupt):
    """An interrupt that all ranks raise together: nobody has to be told."""


def begin() -> None:
    """Forget all errors. Call it on all ranks, when they are connected."""
    _entered[0] += 1
    _heard.clear()
    _known.clear()
    _raised.clear()


def all_know() -> None:
    """All ranks are ending: from now on `look` does nothing."""
    _known.append(True)


@contextlib.contextmanager
def shared_errors() -> Iterator[None]:
    """Inside the block, a UserError or a Ctrl-C of one rank is told to the others, which raise it as well: within seconds if
    they wait for each other (`mmrl.compute.collectives`; `mmrl.compute.waking` for tensors on GPUs)."""
    try:
        yield
    except Stopped:
        raise
    except (UserError, KeyboardInterrupt) as error:
        _raised.append(True)
        if store := _store():
            fault = Fault.of(error) if isinstance(error, UserError) else None
            with contextlib.suppress(RuntimeError):  # the rank that holds the store is gone
                store.set(_key(), pickle.dumps((distributed.get_rank(), fault)))
        raise
    except RuntimeError:  # as the others have left, or NCCL was aborted
        _raised.append(True)
        raise_told()
        raise


def look() -> None:
    """Raise what a rank has told, if one has, unless all ranks are ending and know it."""
    if not _known:
        raise_told()


def is_unheard() -> bool:
    """Whether a rank has told an error, and this one hasn't raised any. For any thread."""
    return not _raised and bool(_told())


def raise_told() -> None:
    """Raise the UserError or the KeyboardInterrupt that a rank has told, if one has."""
    if told := _told():
        number, fault = pickle.loads(told)
        if fault is None:
            raise KeyboardInterrupt
        _heard.append(fault.error(f"rank {number}"))
        raise _heard[-1]


def _told() -> bytes:
    told = b""
    if store := _store():
        with contextlib.suppress(RuntimeError):  # the rank that holds the store is gone
            told = store.get(_key()) if store.check([_key()]) else b""
    return told


def is_heard(error: UserError) -> bool:
    """Whether this rank raised the error because another one has told it."""
    return any(error is one for one in _heard)


def _store() -> Any:
    """That of whoever connected the ranks: mmrl, Ray Train or a caller. None for a single process."""
    several = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    return distributed.distributed_c10d._get_default_store() if several else None


def _key() -> str:
    return f"mmrl/error/{_entered[0]}"
