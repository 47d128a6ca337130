"""Selection of items: stratified splits, k shots per class, base and new classes, the labels offered with one picture.

Names are hashed with a seed, so that an added file moves no other one, and every machine selects the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mmrl import UserError
from mmrl.api.tasks.image_sources import hash_rank


class Item(NamedTuple):
    """One picture of a source."""

    id: str
    """Unique in the source and the same on every machine."""
    label: str
    image: Any
    """The source's key for opening it: a path, or a row's number."""


def by_label(items: Sequence[Item]) -> dict[str, list[Item]]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.label, []).append(item)
    return groups


def split(items: Sequence[Item], fractions: Mapping[str, float], seed: int) -> dict[str, list[Item]]:
    """Each class divided into the splits by their fractions, rounded, but at least one item in each if there are enough.

    Items that the fractions leave over are in no split.
    """
    parts: dict[str, list[Item]] = {name: [] for name in fractions}
    for group in by_label(items).values():
        drawn, start, share = sorted(group, key=lambda item: hash_rank(seed, "split", item.id)), 0, 0.0
        for place, (name, fraction) in enumerate(fractions.items(), 1):
            share += fraction
            end = round(len(drawn) * share)
            if len(drawn) >= len(fractions):
                end = max(start + 1, min(end, len(drawn) - len(fractions) + place))
            parts[name] += drawn[start:end]
            start = end
    return parts


def few_shot(items: Sequence[Item], shots: int, seed: int, where: str) -> list[Item]:
    """`shots` items of each class; more shots include those of fewer. where: the source's name in errors. Raises UserError if a
    class has too few items."""
    chosen = []
    for label, group in by_label(items).items():
        if len(group) < shots:
            raise UserError(
                f"class {label!r} of {where} has {len(group)} images to train on and shots is {shots}: lower it, or add images"
            )
        chosen += sorted(group, key=lambda item: hash_rank(seed, "shots", item.id))[:shots]
    return chosen


def base_and_new(classes: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The first half of the classes, rounded up, and the rest: the protocol of CoOp (Zhou et al., 2022)."""
    half = (len(classes) + 1) // 2
    return tuple(classes[:half]), tuple(classes[half:])


def list_size(count: int) -> int:
    """How many of `count` labels CLS-RL offers: 40%, or all when that is below 30, and 100 at most."""
    share = count * 2 // 5
    return min(count if share < 30 else share, 100)


def offer(label: str, labels: Sequence[str], seed: int, id: str) -> tuple[str, ...]:
    """The labels offered with an item, its own always among them, in random order."""
    others = sorted((other for other in labels if other != label), key=lambda other: hash_rank(seed, "offer", id, other))
    offered = [label, *others[: list_size(len(labels)) - 1]]
    return tuple(sorted(offered, key=lambda one: hash_rank(seed, "shuffle", id, one)))


def harmonic_mean(base: float, new: float) -> float:
    """2BN / (B + N); 0 when either is 0."""
    return 2 * base * new / (base + new) if base > 0 and new > 0 else 0.0
