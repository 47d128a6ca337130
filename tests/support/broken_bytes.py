"""Files that are cut off, or whose bits are flipped."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

CUTS = (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
"""Shares of a file that are left."""


def broken(data: bytes, flips: int, seed: object, cuts: Sequence[float] = CUTS) -> Iterator[tuple[str, bytes]]:
    """(what is wrong, the bytes): the file cut off after each share, then `flips` times with one to 16 bits flipped, half of
    these among the first 64 bytes, where headers are; with zeros after its first 16 bytes; and with other bytes after it."""
    draw = random.Random(f"{seed}")
    for share in cuts:
        yield f"cut off after {share:.0%}", data[: int(len(data) * share)]
    for number in range(flips):
        changed, reach = bytearray(data), min(len(data), 64) if number % 2 else len(data)
        for _ in range(2 ** draw.randint(0, 4)):
            changed[draw.randrange(reach)] ^= 1 << draw.randrange(8)
        yield f"bits flipped, {number}", bytes(changed)
    yield "zeros", data[:16] + bytes(len(data))
    yield "more after it", data + draw.randbytes(1000) + data
