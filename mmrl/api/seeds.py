"""Derive seeds by name from the run's one seed, so that no use depends on how many random numbers another one drew."""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: str | int) -> int:
    """A seed in [0, 2**63) for this seed and these names, the same on every machine."""
    text = "/".join(str(n) for n in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
