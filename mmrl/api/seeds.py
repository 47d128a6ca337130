"""One seed fixes everything: each use derives its own from it by name, so that no use depends on how often another drew."""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: str | int) -> int:
    """A number in [0, 2**63) for this seed and these names, the same on every machine."""
    text = "/".join(str(n) for n in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
