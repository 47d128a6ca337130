"""The answer of a child process to one request, within bounds of time and size."""

from __future__ import annotations

import os
import select
import time

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

    assert child.popen.stdin and child.popen.stdout
    to, of, errors = child.popen.stdin.fileno(), child.popen.stdout.fileno(), child.stderr.fileno()
    os.set_blocking(to, False)  # it may never read
    left, output = memoryview(len(request).to_bytes(8, "big") + request), b""
    poll = select.poll()  # `select.select` takes no descriptor above 1023
    for descriptor, event in ((to, select.POLLOUT), (of, select.POLLIN), (errors, select.POLLIN)):
        poll.register(descriptor, event)
    while len(output) <= most:
        if (seconds_left := remaining()) <= 0:
            raise TookTooLong
        ready = [descriptor for descriptor, _ in poll.poll(seconds_left * 1000)]  # if none, it has more time, if it was in line
        if to in ready:
            try:
                left = left[os.write(to, left) :]
            except BrokenPipeError:
                left = left[:0]  # it died at its start, which is told below
            if not left:
                poll.unregister(to)
                child.popen.stdin.close()
        if errors in ready and not child.listen():  # a full pipe would hold it up
            poll.unregister(errors)
        if of in ready:
            if not (part := os.read(of, 1 << 14)):
                break
            output += part
    else:
        return output
    ended = child.exit_code(max(ENDS_S, remaining()))
    if ended is None:
        raise TookTooLong
    if ended != 0:
        raise EndedEarly(child.how_it_ended())
    return output
