"""On a GPU a policy acts on a CUDA stream of its own, beside the simulators on torch's default stream.

Of two lanes one is stepped while the policy acts for the other. On one stream the kernels of each would wait for the other's, and
so would the host that reads what came of a step. Two events in each call order what depends on each other: a lane is stepped
after its actions were chosen, and the policy looks at it after the step. No host waits for an event.

They also keep memory from being taken anew while the other stream reads it. A lane holds what the policy read and made until its
episodes have ended; what it lets go, it lets go after its stream has waited for the policy.

Simulators keep the default stream, since not all that they call knows of another: Warp frees its memory in the order of the
default stream, and SAPIEN computes there unless each of its systems is told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class ActingStream:
    """The stream on which a policy acts. With one lane there is nothing beside which it could, and on a CPU there are no streams:
    then all methods do nothing, and events are None."""

    def __init__(self, device: torch.device, lanes: int) -> None:
        """device: the policy's."""
        self._device = device
        self._own = torch.cuda.Stream(device) if device.type == "cuda" and lanes > 1 else None

    @contextmanager
    def after(self, stepped: torch.cuda.Event | None) -> Iterator[None]:
        """Inside the block the policy acts, when `stepped` has happened."""
        if self._own is None:
            yield
            return
        with torch.cuda.stream(self._own):
            self.follow(stepped)
            yield

    def mark(self) -> torch.cuda.Event | None:
        """An event: all that this thread has queued so far is done."""
        return None if self._own is None else torch.cuda.current_stream(self._device).record_event()

    def follow(self, event: torch.cuda.Event | None) -> None:
        """What this thread queues from now on begins after the event."""
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)


def on_default_stream(device: torch.device, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A tensor that a simulator on this device makes, to be read on the current stream, which may be the policy's."""
    if device.type != "cuda":
        return make()
    here, there = torch.cuda.current_stream(device), torch.cuda.default_stream(device)
    if here == there:
        return make()
    with torch.cuda.stream(there):
        made = make()
    here.wait_stream(there)
    made.record_stream(here)  # it may be freed while the policy still reads it
    return made
