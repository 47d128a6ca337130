"""What the core's own algorithms share: where their functions are, and the bounds of their settings."""

from __future__ import annotations

from mmrl.api.specs import SURROGATE_BOUNDS, Bounds

ADVANTAGE = "mmrl.algorithms.advantage:"
LOSS = "mmrl.algorithms.loss:"

SHARE, NOT_NEGATIVE, POSITIVE = Bounds(low=0, high=1), Bounds(low=0), Bounds(low=1e-6)
CLIP = {name: SURROGATE_BOUNDS[name] for name in ("clip_low", "clip_high")}
"""Bounds that other losses share with the default one."""
SPREAD = {"epsilon": NOT_NEGATIVE}
"""Bounds of the settings of `group_relative`."""
