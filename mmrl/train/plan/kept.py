"""The activations of an update, in bytes: what the passes of a layer of each kind, and of a picture, keep for the backward pass,
as many times as there are of them. Tests compare them with the bytes that torch saves on a CPU. b is the bytes of a weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl.train.plan.learning import ALL, Learning
from mmrl.train.plan.shapes import Shapes
from mmrl.train.plan.trained import FULL, Trained
from mmrl.train.plan.workload import Micro

if TYPE_CHECKING:
    from mmrl.train.plan.layers import Kept, Layer, Layers


LOGIT_CHUNK = 2**25
"""As in `mmrl.policies.vlm.vlm`, which isn't imported here; a test compares them."""


def learning_of(weights: Trained | None) -> Learning:
    """weights: those that are trained; None for all."""
    return weights.learning if weights else ALL


def _passes(shapes: Shapes) -> Layers:
    from mmrl.train.plan.layers import layers_of  # imports torch

    return layers_of(shapes.config)


def counted(shapes: Shapes, b: int) -> tuple[Layer, ...]:
    """The passes of the language model's layers."""
    return _passes(shapes).counted(b)


def without_gradients(shapes: Shapes, b: int) -> int:
    """Bytes per token that a layer holds at once where nothing is kept."""
    return round(max(layer.held.per_token for layer in counted(shapes, b)))


def passing(shapes: Shapes, b: int) -> int:
    """Bytes per token that are there for a moment in a layer's forward pass, beside what it keeps: the copies of a token for its
    experts, weighted, and in the order of tokens again, as transformers makes them by default (`grouped_mm`)."""
    experts = shapes.text.experts
    return 2 * b * experts.chosen * shapes.text.hidden if experts else 0


def text_layers(shapes: Shapes, b: int, weights: Trained | None = None, dense: bool = True) -> list[tuple[int, int]]:
    """(number of layers of the language model, bytes per token that each of them keeps for the backward pass). weights: those
    that are trained; None for all. dense: attention has a mask of all pairs of tokens, and torch repeats keys and values for
    every head."""
    return [(n, round(size.ragged.per_token)) for n, size in _kept(shapes, b, weights, dense)]


def _kept(shapes: Shapes, b: int, weights: Trained | None, dense: bool, patches: int = 1) -> list[tuple[int, Kept]]:
    """(number of layers, what each keeps), without those that no gradient flows to. patches: of pictures among the tokens."""
    seen, more = bool(patches) and (weights is None or weights.vision), 0
    if shapes.text.experts and weights is not None and weights.penalised:
        more = 2 * FULL * shapes.text.experts.count  # a softmax and the logits, for both penalties
    return [(n, size.plus(more)) for n, size in _passes(shapes).kept(b, dense, learning_of(weights), seen)]


def _around(shapes: Shapes, micro: Micro, b: int, weights: Trained | None) -> int:
    """Bytes that the language model keeps outside its layers."""
    seen = bool(micro.patches) and (weights is None or weights.vision)
    return round(_passes(shapes).kept_around(b, learning_of(weights), seen).per_token * micro.tokens)


def _layers(shapes: Shapes, micro: Micro, b: int, weights: Trained | None, dense: bool) -> list[tuple[int, int]]:
    """`_kept` of a micro-batch."""
    return [(n, round(size.of(micro))) for n, size in _kept(shapes, b, weights, dense, micro.patches)]


def _scores(shapes: Shapes, micro: Micro) -> int:
    """Bytes that a layer keeps of the scores of all pairs of tokens: capped, their softmax in float32, and that in b bytes."""
    return 2 * FULL * shapes.text.heads * micro.rows * micro.length**2


def _states(shapes: Shapes, micro: Micro, b: int, weights: Trained | None) -> int:
    """Bytes of the states that targets are predicted from: a frozen head keeps them where its logits are computed again."""
    again = micro.targets * shapes.text.vocabulary > LOGIT_CHUNK
    held = weights is None or again or weights.shares["head"] or weights.adapted_parts["head"]
    return b * shapes.text.hidden * micro.targets if held else 0


def activations(
    shapes: Shapes,
    micro: Micro,
    b: int,
    checkpointing: bool = False,
    weights: Trained | None = None,
    dense: bool = True,
    offload: bool = False,
) -> int:
    """Bytes that a forward pass keeps for the backward pass, without logits. With checkpointing, each layer keeps its input;
    `recompute_bytes` comes on top. weights: those that are trained; None for all. dense: see `text_layers`. offload: of these
    inputs, two are on the device at a time."""
    t, tokens = shapes.text, micro.tokens
    found = _states(shapes, micro, b, weights)
    if weights is not None and not weights.inner:
        return found
    found += _around(shapes, micro, b, weights)
    if layers := _layers(shapes, micro, b, weights, dense):
        found += b * t.shared * tokens
        if dense:
            found += b * t.masks * micro.rows * micro.length**2  # which layers share
    many = sum(n for n, _ in layers)
    if checkpointing:
        found += tokens * (min(2, many) if offload else many) * b * t.copies * t.hidden
    else:
        found += sum(n * size for n, size in layers) + (many * _scores(shapes, micro) if dense and t.capped else 0)
    if not micro.patches or shapes.seen is None or (weights is not None and not weights.vision):
        return found
    seen, own = shapes.seen, learning_of(weights)
    if checkpointing:
        inputs = seen.inputs(b, own)
        size = inputs.whole - inputs.moved * offload
    else:
        size = seen.kept(b, own).whole
    return found + size * micro.patches // seen.patches + round(seen.per_token(b, own).kept * tokens)


def recompute_bytes(shapes: Shapes, micro: Micro, b: int, weights: Trained | None = None, dense: bool = True) -> int:
    """Bytes of the one layer that checkpointing recomputes at a time."""
    if weights is not None and not weights.inner:
        return 0
    text = max((size for _, size in _layers(shapes, micro, b, weights, dense)), default=0)
    text += _scores(shapes, micro) if text and dense and shapes.text.capped else 0
    if not micro.patches or shapes.seen is None or (weights is not None and not weights.vision):
        return text
    return max(text, shapes.seen.kept(b, learning_of(weights)).layer * micro.patches // shapes.seen.patches)
