"""The MLPs of the language model's layers: one, or experts of which each token goes through some.

Experts are counted as transformers computes them by default, all of a layer in two grouped products (`grouped_mm`, its
integrations/moe.py): each token is copied for each of its experts, and the copies are sorted by expert. b is the bytes of a
weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl.train.plan.shapes import Experts, Shapes
from mmrl.train.plan.trained import FULL, Trained

if TYPE_CHECKING:
    from mmrl.train.plan.layers import Layer

INDEX = 8
"""Bytes of an index."""
INDICES = 4
"""Indices that are kept of each copy: the expert, the token, and the order of copies and back."""


def kinds(shapes: Shapes) -> list[tuple[int, Experts | None]]:
    """(number of layers, their experts)."""
    t = shapes.text
    return [(n, experts) for n, experts in ((t.layers - t.sparse, None), (t.sparse, t.experts)) if n]


def kept(shapes: Shapes, experts: Experts | None, b: int, weights: Trained | None) -> int:
    """Bytes per token that a layer's MLP keeps for the backward pass, all of whose weights are trained. weights: None without a
    penalty of routers."""
    t = shapes.text
    if experts is None:
        return 4 * b * t.inner
    copies = experts.chosen * (b * (2 * t.hidden + 4 * experts.inner + 1) + INDICES * INDEX)
    scores = FULL * experts.count + 3 * FULL * experts.chosen + (FULL * t.hidden if experts.precise and b < FULL else 0)
    if weights is not None and weights.penalised:
        scores += 2 * FULL * experts.count  # a softmax and the logits, for both penalties
    return copies + scores + 4 * b * experts.shared


def passing(shapes: Shapes, b: int) -> int:
    """Bytes per token that are there for a moment in a layer's forward pass, beside what it keeps: the copies of experts,
    weighted, and in the order of tokens again."""
    experts = shapes.text.experts
    return 2 * b * experts.chosen * shapes.text.hidden if experts else 0


def without_gradients(shapes: Shapes, b: int) -> int:
    """Bytes per token that a layer holds at once where nothing is kept."""
    if shapes.counted:
        return round(max(layer.held.per_token for layer in counted(shapes, b)))
    t, experts = shapes.text, shapes.text.experts
    one = b * (3 * t.inner + 3 * t.hidden) if t.layers > t.sparse else 0
    if experts is None:
        return one
    copies = b * experts.chosen * (2 * t.hidden + max(2 * t.hidden, 3 * experts.inner))
    return max(one, copies + FULL * experts.count + b * 3 * t.hidden)


def multiplied(shapes: Shapes) -> int:
    """Weights of all layers' MLPs that a token is multiplied with: those of its experts and the router."""
    return sum(n * int(_layer(shapes, experts, experts.chosen if experts else 0)) for n, experts in kinds(shapes))


def read(shapes: Shapes, tokens: float) -> float:
    """Weights of all layers' MLPs that so many tokens read together, if they choose experts at random: each expert that any of
    them goes through."""
    found = 0.0
    for n, experts in kinds(shapes):
        hit = experts.count * share_hit(experts, tokens) if experts else 0
        found += n * _layer(shapes, experts, hit)
    return found


def counted(shapes: Shapes, b: int) -> tuple[Layer, ...]:
    """The layers of a language model whose passes are counted."""
    from mmrl.train.plan.layers import layers_of  # imports torch

    return layers_of(shapes.config).counted(b)


def share_hit(experts: Experts, tokens: float) -> float:
    """Share of the experts that any of so many tokens goes through, if they choose at random."""
    return 1.0 - (1 - experts.chosen / experts.count) ** tokens


def _layer(shapes: Shapes, experts: Experts | None, many: float) -> float:
    """Weights of a layer's MLP, with so many of its experts."""
    t = shapes.text
    if experts is None:
        return 3 * t.hidden * t.inner
    return t.hidden * (experts.count + 3 * experts.shared + 3 * experts.inner * many)


def moved(shapes: Shapes, b: int) -> float:
    """Bytes per token that the operations between the products read and write, in all layers' MLPs."""
    t = shapes.text
    found = 0
    for n, experts in kinds(shapes):
        if experts is None:
            found += n * 5 * b * t.inner
        else:  # copies are made, weighted, put back into order and added up
            copies = experts.chosen * (5 * experts.inner + 7 * t.hidden)
            found += n * (b * (copies + 5 * experts.shared) + 4 * FULL * experts.count)
    return found
