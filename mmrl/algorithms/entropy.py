"""The weight of an entropy bonus that adapts to the entropy."""

from __future__ import annotations


def adapted_bonus(coefficient: float, entropy: float, *, target: float, delta: float, least: float, most: float) -> float:
    """The weight of the next update's entropy bonus: `delta` more if the entropy was at most the target, else `delta` less, kept
    in least..most (He et al., Skywork-OR1, arXiv 2505.22312; TRL's `use_adaptive_entropy`).

    coefficient: this update's weight, at least 0. entropy, target: nats per token. In both sources a weight counts only where the
    last update's entropy was at most the target, and else the bonus is off: `bonus_counts`."""
    moved = coefficient + (delta if entropy <= target else -delta)
    return min(max(moved, least), most)


def bonus_counts(entropy: float | None, target: float) -> bool:
    """Whether the bonus counts in an update. entropy: that of the last update; None before the first."""
    return entropy is not None and entropy <= target
