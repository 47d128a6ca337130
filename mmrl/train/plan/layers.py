"""The layers of a language model: one of each kind is run on torch's meta device, where tensors have shapes and no numbers, and
what it computes and keeps is counted.

A layer's numbers are so much for each token, so much for each chunk of `CHUNK` tokens in which linear attention goes through a
sequence, and a rest; three passes tell them apart. b is the bytes of a weight.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from mmrl.policies.layers import CACHES, replaced_forwards
from mmrl.policies.vlm.families import decoder_of
from mmrl.train.plan.counter import Counter, Pass
from mmrl.train.plan.kinds import META, adapted, dtype_of, grouped, kinds_of, own_of, without_layers
from mmrl.train.plan.learning import ALL, Learning
from mmrl.train.plan.once import once
from mmrl.train.plan.skeletons import skeleton
from mmrl.train.plan.traced import FusedAttention, saved_by, trace
from mmrl.train.plan.trained import FULL
from mmrl.train.plan.workload import CHUNK, Micro

HALF = 2
"""Bytes of a bfloat16."""
CHOSEN = ("num_experts_per_tok", "moe_k", "moe_top_k", "top_k_experts")
"""Names that configs have for the number of a token's experts."""
LENGTHS = (CHUNK + 1, 2 * CHUNK - 1, 3 * CHUNK - 1)
"""Lengths of the three passes: two chunks twice, and three, none of them full, as their padding costs something, too."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A number that grows with the length of sequences."""

    once: float
    """Of a sequence."""
    token: float
    chunk: float

    def of(self, sequences: float, tokens: float, chunks: float) -> float:
        return self.once * sequences + self.token * tokens + self.chunk * chunks

    @property
    def per_token(self) -> float:
        """Of a token of a long sequence."""
        return self.token + self.chunk / CHUNK


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes that a layer keeps for the backward pass."""

    ragged: Linear
    """Of sequences whose last chunk isn't full."""
    full: Linear
    """Of those that no padding is copied for."""

    def of(self, micro: Micro) -> float:
        """Of a micro-batch."""
        pieces = micro.pieces
        rest = micro.tokens - sum(count * length for count, length in pieces)  # padding behind rows
        one = ((count, length, self.ragged if length % CHUNK else self.full) for count, length in pieces)
        return self.ragged.token * rest + sum(count * kind.of(1, length, -(-length // CHUNK)) for count, length, kind in one)

    def plus(self, token: float) -> Kept:
        """With so many bytes more of each token."""
        return Kept(*(Linear(each.once, each.token + token, each.chunk) for each in (self.ragged, self.full)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A kind of layer."""

    count: int
    """Layers of this kind."""
    flops: Linear
    """Of matrix products, attention left out."""
    pairs: float
    """Floating-point operations of attention for a pair of tokens."""
    moved: Linear
    """Bytes that the other operations read and write."""
    operations: Linear
    loop: float
    """Operations of each expert, where a loop goes over those that tokens hit; of `operations` are those of a token's."""
    held: Linear
    """Most bytes that are there at once where nothing is kept."""
    weights: int
    """All of them but those of experts."""
    experts: int
    """Weights of all experts; 0 without them."""


class Layers:
    """The layers of a model. config: the content of its config.json."""

    def __init__(self, config: str) -> None:
        self.config = config
        self.kinds = kinds_of(skeleton(config))

    @once
    def counted(self, b: int) -> tuple[Layer, ...]:
        """One of each kind, and where there are matrix products around them, such as those of embeddings for each layer, what is
        around them like a layer."""
        model = _model(self.config, b)
        around = self._around(model, b)
        return (*(self._layer(model, numbers, b) for numbers in self.kinds), *([around] if around.weights else ()))

    @once
    def kept_around(self, b: int, learning: Learning = ALL, seen: bool = True) -> Linear:
        """Bytes that the language model keeps around its layers. seen: see `kept`."""
        model, flows = _model(self.config, b, learning), seen or _flows(self.config, learning)[-1]
        return _fitted(lambda tokens: saved_by(*_passed(model, tokens, b, flows, seen)))

    @once
    def kept(self, b: int, dense: bool, learning: Learning = ALL, seen: bool = True) -> tuple[tuple[int, Kept], ...]:
        """(number of layers, bytes that each keeps for the backward pass) of each kind; none of those before the first that
        gradients flow to. dense: with a mask of all pairs of tokens, which is not counted here. seen: whether gradients flow to
        pictures among the tokens."""
        model, flows, found = _model(self.config, b, learning), _flows(self.config, learning), []
        for numbers in _learning_kinds(self.config, learning):
            if not seen and not flows[numbers[0] + 1]:
                continue
            saved = functools.partial(self._saved, model, numbers[0], b, dense, learning, seen)
            ragged, whole = _fitted(saved), [saved(n) for n in (CHUNK, 2 * CHUNK)]
            chunk = whole[1] - whole[0] - ragged.token * CHUNK
            found.append((len(numbers), Kept(ragged, Linear(2 * whole[0] - whole[1], ragged.token, chunk))))
        return tuple(found)

    @functools.cached_property
    def cached(self) -> tuple[int, int, int]:
        """(numbers of keys and values of a token in all layers, layers with a state in their place, numbers of the largest)."""
        from transformers import DynamicCache

        model, n, keys, states, largest = _model(self.config, HALF), LENGTHS[0], 0, 0, 0
        for numbers in self.kinds:
            cache, number = DynamicCache(config=model.config.get_text_config()), numbers[0]
            trace(_called(self.config, decoder_of(model).layers[number], number, n, HALF, True, cache)[0])
            kept = vars(cache.layers[number]) if number < len(cache.layers) else {}  # else it reads those of another layer
            pairs = [kept[name] for name in ("keys", "values") if isinstance(kept.get(name), torch.Tensor)]
            keys += len(numbers) * sum(each.shape[1] * each.shape[-1] for each in pairs)  # of a window there are fewer tokens
            state = sum(each.numel() for each in tree_leaves(kept) if isinstance(each, torch.Tensor)) if not pairs else 0
            states, largest = states + len(numbers) * bool(state), max(largest, state)
        return keys, states, largest

    @functools.cached_property
    def shared(self) -> int:
        """Numbers of a token that all layers are given beside their input, such as cosines and sines."""
        seen = {}
        for (_, *args), kwargs in _given(self.config, LENGTHS[0], FULL):
            for each in tree_leaves((args, kwargs)):
                if isinstance(each, torch.Tensor) and (each.is_floating_point() or each.is_complex()) and each.ndim < 4:
                    seen[each.untyped_storage()._cdata] = each.numel() * (2 if each.is_complex() else 1)
        return sum(seen.values()) // LENGTHS[0]

    @functools.cached_property
    def copies(self) -> int:
        """Of a token's states, which go from layer to layer."""
        (hidden, *_), _ = _given(self.config, LENGTHS[0], FULL)[0]
        return int(hidden.numel() // (LENGTHS[0] * hidden.shape[-1]))

    def _saved(self, model: Any, number: int, b: int, dense: bool, learning: Learning, seen: bool, tokens: int) -> int:
        layer = decoder_of(model).layers[number]
        called = _called(self.config, layer, number, tokens, b, dense, learning=learning, seen=seen)
        with FusedAttention(Counter(), by_tokens=not dense):
            return saved_by(*called)

    def _layer(self, model: Any, numbers: list[int], b: int) -> Layer:
        layer = decoder_of(model).layers[numbers[0]]
        passes: dict[int, Pass] = {}
        for n in LENGTHS:
            call, _ = _called(self.config, layer, numbers[0], n, b, True)
            passes[n] = trace(call)
        call, _ = _called(self.config, layer, numbers[0], LENGTHS[0], b, True)
        more = passes[LENGTHS[0]].operations - trace(call, one=True).operations
        experts = sum(p.numel() for name, p in layer.named_parameters() if p.ndim == 3 and ".experts." in name)
        return Layer(
            count=len(numbers),
            flops=_fitted(lambda n: sum(flops for flops, _ in passes[n].products)),
            pairs=passes[LENGTHS[0]].attention / LENGTHS[0] ** 2,
            moved=_fitted(lambda n: passes[n].moved),
            operations=_fitted(lambda n: passes[n].operations),
            loop=more / max(1, chosen_of(model.config.get_text_config()) - 1),
            held=_fitted(lambda n: passes[n].peak),
            weights=sum(p.numel() for p in layer.parameters()) - experts,
            experts=experts,
        )

    def _around(self, model: Any, b: int) -> Layer:
        passes = {n: trace(_passed(model, n, b, True, False)[0]) for n in LENGTHS}
        flops = _fitted(lambda n: sum(flops for flops, _ in passes[n].products))
        return Layer(
            count=1,
            flops=flops,
            pairs=0.0,
            moved=_fitted(lambda n: passes[n].moved),
            operations=_fitted(lambda n: passes[n].operations),
            loop=0.0,
            held=_fitted(lambda n: passes[n].peak),
            weights=round(flops.token / 2),  # of embeddings few are read
            experts=0,
        )


@functools.lru_cache(8)
def layers_of(config: str) -> Layers:
    """Those of a model, which are counted once."""
    return Layers(config)


def _fitted(measure: Callable[[int], float]) -> Linear:
    one, two, three = (measure(n) for n in LENGTHS)
    token = (two - one) / (LENGTHS[1] - LENGTHS[0])
    chunk = three - two - token * CHUNK
    return Linear(two - token * LENGTHS[1] - 2 * chunk, token, chunk)


def chosen_of(settings: Any) -> int:
    """Experts of a token, by the configuration of a language model; 0 without experts."""
    return next((getattr(settings, name) for name in CHOSEN if getattr(settings, name, None)), 0)


@functools.lru_cache(8)
def _flows(config: str, learning: Learning) -> tuple[bool, ...]:
    """Whether gradients flow to what goes into each layer, and out of the last, if no picture asks for them."""
    if learning.names is None:
        return (True,) * (len(decoder_of(skeleton(config)).layers) + 1)
    found = [bool(_given(config, LENGTHS[0], HALF, learning)[0][0][0].requires_grad)]
    for own in own_of(config, learning.names):
        found.append(found[-1] or bool(own))
    return tuple(found)


@functools.lru_cache(8)
def _learning_kinds(config: str, learning: Learning) -> list[list[int]]:
    """`kinds_of` of which the same weights are trained, and to whose input gradients flow alike."""
    if learning.names is None:
        return kinds_of(skeleton(config))
    own, flows = own_of(config, learning.names), _flows(config, learning)
    return grouped(config, lambda i: (own[i], flows[i]))


@functools.lru_cache(8)
def _model(config: str, b: int, learning: Learning = ALL) -> Any:
    """The model with a layer of each kind, and its weights, or adapters, as they are trained."""
    own = None if learning.names is None else own_of(config, learning.names)
    kinds = grouped(config, lambda i: own and own[i])
    model = adapted(without_layers(skeleton(config), kinds, b), learning.lora)
    for name, weight in model.named_parameters():
        weight.requires_grad_(learning.trains(name))
    return model


@functools.lru_cache(32)
def _given(
    config: str, tokens: int, b: int, learning: Learning = ALL, seen: bool = False
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What the language model gives each of its layers in a pass over one row. Gradients flow to what they flow to in it. seen:
    see `Layers.kept`."""
    model, found = _model(config, b, learning), []

    def noted(layer: Any) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            found.append(tree_map_only(torch.Tensor, _alone, (args, kwargs)))
            return args[0] if args else kwargs["hidden_states"]

        return forward

    layers = decoder_of(model).layers
    with torch.enable_grad():
        with replaced_forwards([*dict.fromkeys(layers)], noted):
            _read(model, tokens, b, seen)
        for held in (value for value in found[0][1].values() if isinstance(value, MutableMapping) and not value):
            for numbers in kinds_of(skeleton(config)):  # some layers keep in it what others read
                args, kwargs = found[numbers[0]]
                layers[numbers[0]](*args, **kwargs)
            held.update(tree_map_only(torch.Tensor, _alone, dict(held)))
    return found


def _alone(given: torch.Tensor) -> torch.Tensor:
    """Without what it was computed from."""
    return given.detach().requires_grad_(given.requires_grad)


def _read(model: Any, tokens: int, b: int, seen: bool) -> torch.Tensor:
    """What the language model makes of one row. seen: see `Layers.kept`."""
    ids = torch.zeros(1, tokens, device=META, dtype=torch.int64)
    mask = torch.empty(1, 1, tokens, tokens, device=META, dtype=dtype_of(b))
    decoder = decoder_of(model)
    hook = decoder.get_input_embeddings().register_forward_hook(lambda _, __, found: found.requires_grad_() if seen else None)
    try:
        found: torch.Tensor = decoder(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        return found
    finally:
        hook.remove()


def _passed(model: Any, tokens: int, b: int, flows: bool, seen: bool) -> tuple[Callable[[], torch.Tensor], list[torch.Tensor]]:
    """(a pass over one row in which layers do nothing, but that gradients may flow through them, nothing). seen: see
    `Layers.kept`."""

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.empty_like(args[0] if args else kwargs["hidden_states"]).requires_grad_(flows)

    def run() -> torch.Tensor:
        with replaced_forwards([*dict.fromkeys(decoder_of(model).layers)], lambda _: forward):
            return _read(model, tokens, b, seen)

    return run, []


def _called(
    config: str,
    layer: Any,
    number: int,
    tokens: int,
    b: int,
    dense: bool,
    cache: Any = None,
    learning: Learning = ALL,
    seen: bool = False,
) -> tuple[Callable[[], torch.Tensor], list[torch.Tensor]]:
    """(a pass of the layer of this number over one row, tensors that all layers share). seen: see `Layers.kept`."""
    (first, *args), kwargs = _given(config, tokens, b, learning, seen)[number]
    hidden = torch.empty_like(first).requires_grad_(seen or learning.names is None or _flows(config, learning)[number])
    taken = inspect.signature(layer.forward).parameters
    given = {name: value for name, value in kwargs.items() if name not in CACHES}
    if not dense or hasattr(layer, "linear_attn"):  # which takes a mask for one of padding
        given["attention_mask"] = None
    if cache is not None:
        given |= {name: cache for name in CACHES if name in taken}
    read = [dict(value) for value in given.values() if isinstance(value, MutableMapping)]
    given = {name: copy.copy(value) if isinstance(value, MutableMapping) else value for name, value in given.items()}
    shared = [each for each in tree_leaves((args, given, read)) if isinstance(each, torch.Tensor)]
    return (lambda: _states(layer(hidden, *args, **given))), shared


def _states(output: Any) -> torch.Tensor:
    """The hidden states in what a layer returns."""
    found: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return found
