"""What a child process writes in answer to a request, within bounds of time and size."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator

from mmrl.api.processes import ChildProcess
from mmrl.api.processes.tree import queued_s

ENDS_S = 0.5
"""Time that a process which closed its output has to end, at least."""


class TookTooLong(Exception):
    """The process had not answered in time."""


class EndedEarly(Exception):
    """The process ended with an error; the message says how."""


def answer_to(child: ChildProcess, request: bytes, seconds: float, most: int) -> bytes:
    """What the process writes to stdout until it ends; at most about `most` bytes, after which it isn't waited for.

    child: with pipes; it reads 8 bytes that hold the length of the request, and the request. seconds: its time. What it waits for
    a processor, on a machine that others keep busy, doesn't count, up to twice that time. Raises TookTooLong and EndedEarly; the
    caller closes the process.
    """
    began = time.monotonic()

    def remaining() -> float:
        passed = time.monotonic() - began
        return seconds + min(queued_s(child.pid), 2 * seconds) - passed

    output = b""
    for part in exchange(child, len(request).to_bytes(8, "big") + request, remaining, close=True):
        output += part
        if len(output) > most:
            return output
    ended = child.exit_code(max(ENDS_S, remaining()))
    if ended is None:
        raise TookTooLong
    if ended != 0:
        raise EndedEarly(child.how_it_ended())
    return output


def exchange(child: ChildProcess, request: bytes, remaining: Callable[[], float], close: bool = False) -> Iterator[bytes]:
    """Send a request and yield what the process writes to stdout, as it comes, until it closes that. Its stderr is kept.

    child: with pipes. remaining: the seconds that are left. close: close its stdin behind the request. Raises TookTooLong.
    """
    assert child.popen.stdin and child.popen.stdout
    to, of, errors = child.popen.stdin.fileno(), child.popen.stdout.fileno(), child.stderr.fileno()
    os.set_blocking(to, False)  # it may never read
    left, poll = memoryview(request), select.poll()  # `select.select` takes no descriptor above 1023
    for descriptor, event in ((to, select.POLLOUT if request else 0), (of, select.POLLIN), (errors, select.POLLIN)):
        if event:
            poll.register(descriptor, event)
    while True:
        if (seconds_left := remaining()) <= 0:
            raise TookTooLong
        ready = [descriptor for descriptor, _ in poll.poll(seconds_left * 1000)]  # if none, it has more time, if it was in line
        if to in ready:
            try:
                left = left[os.write(to, left) :]
            except BrokenPipeError:
                left = left[:0]  # it died, and its stdout ends, too
            if not left:
                poll.unregister(to)
                if close:
                    child.popen.stdin.close()
        if errors in ready and not child.listen():  # a full pipe would hold it up
            poll.unregister(errors)
        if of in ready:
            if not (part := os.read(of, 1 << 16)):
                return
            yield part
