"""What a team of learners shares of its rows (`compute.sequence_parallel`), and what each of them holds whole."""

from __future__ import annotations

from dataclasses import replace

from mmrl.train.plan.shapes import Shapes
from mmrl.train.plan.workload import Micro


def slice_of(micro: Micro, team: int) -> Micro:
    """What one of a team computes of a micro-batch that they share."""
    if team == 1:
        return micro
    return replace(micro, prompt=0, completion=0, members=(), length=-(-micro.length // team), patches=-(-micro.patches // team))


def whole_rows(shapes: Shapes, micro: Micro, team: int, b: int, dense: bool) -> int:
    """Bytes that each of a team holds beyond its slice: during a forward pass the pixels, the vectors of all pictures and the
    embeddings that they are put into; the states that targets are predicted from, and with `dense` attention the mask."""
    if team == 1:
        return 0
    t = shapes.text
    mask = b * micro.rows * (micro.length**2 - slice_of(micro, team).length ** 2) if dense else 0
    pixels = round(micro.patches * shapes.pixel_bytes)
    vectors = int(micro.patches * shapes.vectors) * (1 + shapes.taps)
    return mask + pixels + b * t.hidden * (vectors + micro.tokens + 2 * micro.targets)


def bytes_swapped(shapes: Shapes, tokens: int, team: int, b: int) -> float:
    """Bytes that one of a team sends in a forward pass of so many tokens of its own: queries, keys, values and outputs of each
    layer, of which it keeps its own share."""
    t = shapes.text
    return b * (2 * t.q + 2 * t.k) * t.layers * tokens * (team - 1) / team
