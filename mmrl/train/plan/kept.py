"""The activations of an update, in bytes.

They are counted operation by operation, as transformers' layers save them for the backward pass in evaluation mode with masked
attention; tests compare the counts with the bytes that torch saves on a CPU. Widths are named as in `mmrl.train.plan.shapes`; b
is the bytes of a weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl.train.plan import experts
from mmrl.train.plan.learning import ALL, Learning
from mmrl.train.plan.seen import Seen
from mmrl.train.plan.shapes import Shapes
from mmrl.train.plan.trained import FULL, Trained
from mmrl.train.plan.workload import Micro

if TYPE_CHECKING:
    from mmrl.train.plan.layers import Kept


LOGIT_CHUNK = 2**25
"""As in `mmrl.policies.vlm.vlm`, which isn't imported here; a test compares them."""


def learning_of(weights: Trained | None) -> Learning:
    """weights: those that are trained; None for all."""
    return weights.learning if weights else ALL


def text_layers(shapes: Shapes, b: int, weights: Trained | None = None, dense: bool = True) -> list[tuple[int, int]]:
    """(number of layers of the language model, bytes per token that each of them keeps for the backward pass). weights: those
    that are trained; None for all. dense: see `_attention`."""
    if _counts(shapes, weights):
        return [(n, round(size.ragged.per_token)) for n, size in _counted(shapes, b, weights, dense)]
    own = _attention(shapes, b, dense)
    return [(n, own + experts.kept(shapes, kind, b, weights)) for n, kind in experts.kinds(shapes)]


def _counts(shapes: Shapes, weights: Trained | None) -> bool:
    """Whether passes are counted, as no formula knows what they keep: of some families, and where some weights are frozen."""
    return shapes.counted or (learning_of(weights) != ALL and bool(shapes.config))


def _counted(shapes: Shapes, b: int, weights: Trained | None, dense: bool, patches: int = 1) -> list[tuple[int, Kept]]:
    """(number of layers, what each keeps) of layers whose passes are counted. patches: of pictures among the tokens."""
    from mmrl.train.plan.layers import layers_of  # imports torch

    seen, more = bool(patches) and (weights is None or weights.vision), 0
    if shapes.text.experts and weights is not None and weights.penalised:
        more = 2 * FULL * shapes.text.experts.count  # a softmax and the logits, for both penalties
    found = layers_of(shapes.config).kept(b, dense, learning_of(weights), seen)
    return [(n, size.plus(more)) for n, size in found]


def _around(shapes: Shapes, micro: Micro, b: int, weights: Trained | None) -> int:
    """Bytes that the language model keeps outside its layers."""
    if not _counts(shapes, weights):
        return (2 * FULL if b == FULL else FULL + b) * shapes.text.hidden * micro.tokens  # the last norm
    from mmrl.train.plan.layers import layers_of  # imports torch

    seen = bool(micro.patches) and (weights is None or weights.vision)
    return round(layers_of(shapes.config).kept_around(b, learning_of(weights), seen).per_token * micro.tokens)


def _layers(shapes: Shapes, micro: Micro, b: int, weights: Trained | None, dense: bool) -> list[tuple[int, int]]:
    """(number of layers, bytes that each of them keeps of a micro-batch), without those that no gradient flows to."""
    if _counts(shapes, weights):
        return [(n, round(size.of(micro))) for n, size in _counted(shapes, b, weights, dense, micro.patches)]
    return [(n, size * micro.tokens) for n, size in text_layers(shapes, b, weights, dense)]


def _attention(shapes: Shapes, b: int, dense: bool) -> int:
    """What a layer keeps besides its MLP. dense: attention has a mask of all pairs of tokens, and torch repeats keys and values
    for every head."""
    t = shapes.text
    attention = 2 * b * t.q + 2 * b * (t.q if dense else t.k) + FULL * t.heads  # queries, the output; log-sum-exps
    if t.turned < 1 and dense:  # the rest of a head is joined to it, so that the output is copied
        attention += b * t.q
    if t.norms:  # of queries and keys
        attention += (FULL + b) * (t.q + t.k) + FULL * (t.heads + t.kv_heads)
    # a norm keeps its input in float32, scaled and weighted, and a root
    return 2 * ((3 * FULL if b == FULL else FULL + 2 * b) * t.hidden + FULL) + attention


def vision_layer(shapes: Shapes, b: int) -> int:
    """Bytes per patch that a layer of the vision tower keeps for the backward pass."""
    v = shapes.vision
    if shapes.gated:
        norms = 2 * ((3 * FULL if b == FULL else FULL + 2 * b) * v.hidden + FULL)
        inner = 4 * b * v.inner
    else:
        norms = 2 * (2 * b * v.hidden + 2 * b)
        inner = (3 if shapes.family == "qwen2_vl" else 2) * b * v.inner  # GELU with a sigmoid keeps the sigmoid too
    many = 7 if v.context else 6  # queries, keys, values together and rotated; the output, of GLM's for each picture and of all
    return norms + many * b * v.hidden + FULL * v.heads + inner


def merger(shapes: Shapes, b: int) -> int:
    """Bytes per token of a picture that its projector keeps for the backward pass."""
    v = shapes.vision
    if not v.context:
        return v.merged * 3 * b * (1 + v.taps)
    norm = (2 * FULL if b == FULL else FULL + b) * v.merged  # then the strided convolution, a norm, and an MLP with a gate
    return norm + b * (v.merged + 4 * v.out + 4 * v.context)


def _scores(shapes: Shapes, micro: Micro) -> int:
    """Bytes that a layer keeps of the scores of all pairs of tokens: capped, their softmax in float32, and that in b bytes."""
    return 2 * FULL * shapes.text.heads * micro.rows * micro.length**2


def _seen(shapes: Shapes, weights: Trained | None) -> Seen | None:
    """A picture whose pass is counted; None where a formula knows what the tower keeps."""
    if shapes.seen or not _counts(shapes, weights):
        return shapes.seen
    from mmrl.train.plan.pictures import gridded  # imports torch

    return gridded(shapes.config)


def _tower(shapes: Shapes, micro: Micro, b: int, weights: Trained | None) -> int:
    """Bytes that a layer of the tower keeps of a micro-batch."""
    if not micro.patches or (weights is not None and not weights.vision):
        return 0
    if seen := _seen(shapes, weights):
        return seen.kept(b, learning_of(weights)).layer * micro.patches // seen.patches
    return vision_layer(shapes, b) * micro.patches


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
    `recompute_bytes` comes on top. weights: those that are trained; None for all. dense: see `_attention`. offload: of these
    inputs, two are on the device at a time."""
    t, v, tokens = shapes.text, shapes.vision, micro.tokens
    found = _states(shapes, micro, b, weights)
    if weights is not None and not weights.inner:
        return found
    found += _around(shapes, micro, b, weights)
    if layers := _layers(shapes, micro, b, weights, dense):
        found += b * (int(2 * t.turned * t.head_dim) if t.shared < 0 else t.shared) * tokens  # cosines and sines
        if dense:
            found += b * t.masks * micro.rows * micro.length**2  # which layers share
    many = sum(n for n, _ in layers)
    if checkpointing:
        found += tokens * (min(2, many) if offload else many) * b * t.copies * t.hidden
    else:
        found += sum(n * size for n, size in layers) + (many * _scores(shapes, micro) if dense and t.capped else 0)
    if not micro.patches or (weights is not None and not weights.vision):
        return found
    if seen := _seen(shapes, weights):
        own, text = learning_of(weights), seen.per_token(b, learning_of(weights))
        size = seen.inputs(b, own) if checkpointing else seen.kept(b, own).whole
        return found + size * micro.patches // seen.patches + round(text.kept * tokens)
    merged = micro.patches // v.merge**2 * merger(shapes, b)
    before = micro.patches * v.hidden * (2 * FULL if b == FULL else FULL + b if shapes.gated else b)
    fixed = micro.patches * (b * v.values + 2 * FULL * (v.hidden // v.heads)) + merged + before
    if checkpointing:
        return found + fixed + (min(2, v.layers) if offload else v.layers) * b * v.hidden * micro.patches
    return found + fixed + v.layers * _tower(shapes, micro, b, weights)


def recompute_bytes(shapes: Shapes, micro: Micro, b: int, weights: Trained | None = None, dense: bool = True) -> int:
    """Bytes of the one layer that checkpointing recomputes at a time."""
    if weights is not None and not weights.inner:
        return 0
    text = max((size for _, size in _layers(shapes, micro, b, weights, dense)), default=0)
    text += _scores(shapes, micro) if text and dense and shapes.text.capped else 0
    return max(text, _tower(shapes, micro, b, weights))
