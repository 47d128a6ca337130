"""Broadcast weights to samplers in other processes, in buckets, over a process group beside the default one.

Rank 0 of the group is a learner, the others are its samplers' processes. The group is NCCL's where the weights lie on a GPU, else
gloo's. It is made of torch's own classes and not by `torch.distributed.new_group`, since its members have no default group in
common; so do vLLM (`StatelessProcessGroup`) and torchft. A group whose member died can't be mended: a new one is made, with the
next generation number, and members of an earlier one are told apart by it.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import distributed

from mmrl.compute.ray import variable
from mmrl.rollout.generate.weights import Bucket, Named, Place, filled, weights_in

PATIENCE_S = 300.0
"""Seconds in which a member must have joined, or taken a bucket."""
_POLL_S, _LOOK_S = 0.001, 0.5
"""Seconds between two looks at a broadcast, and at whether a member has left."""
_CLOSED = "closed"
"""Key in the group's store: a member has left."""


class Meeting(NamedTuple):
    """Where the members of a group find each other."""

    host: str
    port: int
    generation: int
    """Number of the group among those of a sender, from 1."""
    size: int
    """Number of members, the sender included."""


class Load(NamedTuple):
    """A bucket that is about to be broadcast."""

    generation: int
    places: list[Place]
    room: int
    """Its bytes."""


class WeightsLost(RuntimeError):
    """A broadcast failed: a member died, or wasn't there in time."""


@runtime_checkable
class Receiver(Protocol):
    """Takes weights into a sampler, in one process or several."""

    def join(self, meeting: Meeting, rank: int) -> None:
        """Join a group, in place of an earlier one. rank: of its first process there. Raises RuntimeError, such as
        WeightsLost."""
        ...

    def take(self, load: Load) -> None:
        """Receive and load the next bucket. Raises RuntimeError."""
        ...

    def took(self) -> None:
        """All have arrived: sample with them."""
        ...


class Group:
    """This process's membership of a group. Made by all members at the same time."""

    def __init__(self, meeting: Meeting, rank: int, device: torch.device, store: distributed.TCPStore | None = None) -> None:
        """rank: in the group. device: of the buffers. store: the sender's. Raises WeightsLost if the others aren't there within
        `PATIENCE_S`."""
        self.meeting, self.device = meeting, device
        patience = datetime.timedelta(seconds=PATIENCE_S)
        try:
            self.store = store or distributed.TCPStore(meeting.host, meeting.port, is_master=False, timeout=patience)
            own = distributed.PrefixStore(f"weights-{meeting.generation}", self.store)
            self.group = _backend(own, rank, meeting.size, patience, device)
            self.wait(self.begin(torch.zeros(1, device=device)))  # NCCL connects at its first collective
        except RuntimeError as error:
            raise WeightsLost(f"it can't join at {meeting.host}:{meeting.port}: {error}") from error
        self.buffer_B = torch.empty(0, dtype=torch.uint8, device=device)

    def receive(self, load: Load) -> Iterator[Named]:
        """The weights of the next bucket, as views of a buffer that the next call overwrites. Raises WeightsLost if the load is
        of another generation, or doesn't arrive within `PATIENCE_S`."""
        if load.generation != self.meeting.generation:
            raise WeightsLost(f"weights of generation {load.generation} reached a member of generation {self.meeting.generation}")
        if load.room > len(self.buffer_B):
            self.buffer_B = torch.empty(load.room, dtype=torch.uint8, device=self.device)
        self.wait(self.begin(self.buffer_B[: load.room]))
        return weights_in(self.buffer_B, load.places)

    def begin(self, values: torch.Tensor) -> Any:
        """Begin to broadcast the sender's values into the others'; `wait` waits for what it returns. Raises WeightsLost."""
        if self.group is None:
            raise WeightsLost("this process has left the group")
        try:
            return self.group.broadcast(values, 0)
        except RuntimeError as error:
            raise WeightsLost(str(error)) from error

    def wait(self, work: Any) -> None:
        """Wait until a broadcast is complete. Raises WeightsLost if it fails, or takes longer than `PATIENCE_S`.

        It looks again and again, since `Work.wait` of NCCL doesn't wait on the host, and its own deadline ends the process."""
        began = looked = time.monotonic()
        try:
            while not work.is_completed():
                if (now := time.monotonic()) > began + PATIENCE_S:
                    raise WeightsLost(f"no broadcast within {PATIENCE_S:g} s")
                if now > looked + _LOOK_S:
                    looked = now
                    if self.store.check([_CLOSED]):
                        raise WeightsLost("another member has left the group")
                time.sleep(_POLL_S)
            work.wait()
        except RuntimeError as error:
            self.close()
            raise WeightsLost(str(error)) from error

    def close(self) -> None:
        """Leave the group, and tell the others, who may wait for this process."""
        if self.group is None:
            return
        with contextlib.suppress(RuntimeError):  # the sender, who has the store, may be gone
            self.store.set(_CLOSED, "")
        self.group.abort()
        _left.append(self.group)
        self.group = None


_left: list[Any] = []
"""Groups that this process has left. They are kept, since gloo's destructor waits for broadcasts that are under way."""


def _backend(store: Any, rank: int, size: int, patience: datetime.timedelta, device: torch.device) -> Any:
    if device.type == "cuda":
        torch.cuda.set_device(torch.cuda.current_device() if device.index is None else device.index)  # per thread
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = 4 * patience
        # `Group.wait` looks at errors and at the time; NCCL's watchdog would end the process for either
        with variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"):
            return distributed.ProcessGroupNCCL(store, rank, size, options)
    return distributed.ProcessGroupGloo(store, rank, size, patience)


class WeightSender:
    """The sender's side: rank 0 of the group."""

    def __init__(self, host: str, room: int, device: torch.device) -> None:
        """host: this machine's address for the receivers. room: bytes of a bucket."""
        self.host, self.room, self.device = host, room, device
        self.generation = 0
        self.sent = 0
        """Bytes of the weights in the last `send`."""
        self.group: Group | None = None
        """None until `join`, and after a fault."""
        self._store: distributed.TCPStore | None = None

    def meet(self, receivers: int) -> Meeting:
        """Open a new group; the receivers join it while this process calls `join`."""
        self.close()
        self.generation += 1
        self._store = distributed.TCPStore(
            self.host, 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=PATIENCE_S)
        )
        return Meeting(self.host, self._store.port, self.generation, 1 + receivers)

    def join(self, meeting: Meeting) -> None:
        """Join the group that `meet` opened. Raises WeightsLost if a receiver isn't there within `PATIENCE_S`."""
        made: list[Group | WeightsLost] = []

        def work() -> None:
            try:
                made.append(Group(meeting, 0, self.device, self._store))
            except WeightsLost as error:
                made.append(error)
            except Exception as error:  # noqa: BLE001  what is wrong here is told at once, and not that nobody joined
                made.append(WeightsLost(f"{type(error).__name__}: {error}"))

        thread = threading.Thread(target=work, daemon=True)  # NCCL waits for its members without a deadline
        thread.start()
        thread.join(PATIENCE_S)
        if not made or isinstance(made[0], WeightsLost):
            raise WeightsLost(str(made[0]) if made else f"nobody joined within {PATIENCE_S:g} s")
        self.group = made[0]

    def send(self, weights: Iterable[Named], announce: Callable[[Load], Any], settle: Callable[[Any], None]) -> None:
        """Broadcast weights in buckets: while one is on the wire, the next is gathered and written, so that two buckets are in
        use.

        announce: asks all receivers to take a load; returns what `settle` waits for. Raises WeightsLost, or what `settle`
        raises."""
        group = self.group
        assert group is not None, "join first"
        self.sent = 0
        empty = deque([Bucket(self.room, self.device) for _ in range(2)])  # made anew, as an update has no use for them
        flying = deque[tuple[Bucket, Any, Any]]()

        def land() -> None:
            bucket, asked, work = flying[0]
            settle(asked)
            group.wait(work)
            flying.popleft()
            bucket.clear()
            empty.append(bucket)

        def following() -> Bucket:
            if not empty:
                land()
            return empty.popleft()

        try:
            for bucket in filled(weights, following):
                flying.append((bucket, announce(Load(self.generation, bucket.places, bucket.end)), None))
                flying[-1] = (*flying[-1][:2], group.begin(bucket.buffer_B[: bucket.end]))
                self.sent += bucket.end
            while flying:
                land()
        except WeightsLost:
            self.close()
            for _, asked, _ in flying:
                settle(asked)  # which knows whose fault it is
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the group, if there is one; receivers that wait in it are told."""
        if self.group is not None:
            self.group.close()
        self.group = None
