"""Tiny ACTs and what they are shown, for the tests of policies."""

from __future__ import annotations

import torch

from mmrl.api.simulators.types import Observation
from mmrl.config.sections import PolicyConfig
from mmrl.policies.act.model import ACT

STATES = "tiny:act:width=16,chunk=5,layers=2,latent=4,pictures=0"
"""It reads the state alone, which takes a hundredth of the time of pictures."""
PICTURES = "tiny:act:width=16,chunk=5,layers=1,latent=4,pictures=1"
SEEDS, CALLS = torch.arange(50, 54), torch.arange(4)


def act(model=STATES, source=None, **options):
    """Options that are None are those of the checkpoint."""
    tiny = {"dims": 3, "chunk": 2, "state": 6} if model.startswith("tiny:") else {}
    return ACT(PolicyConfig(model=model, kind="act"), seed=1, source=source, **{**tiny, **options})


def seen(n=4, seed=0):
    noise = torch.Generator().manual_seed(seed)
    pictures = {
        name: torch.randint(0, 256, (n, high, 64, 3), dtype=torch.uint8, generator=noise)
        for name, high in (("front", 64), ("wrist", 40))
    }
    return Observation(images=pictures, state=torch.randn(n, 6, generator=noise), instructions=["x"] * n)
