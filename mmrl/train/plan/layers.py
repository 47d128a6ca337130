"""The layers of a language model that no formula here describes, such as gated delta nets: one of each kind is run on torch's
meta device, where tensors have shapes and no numbers, and what it computes and keeps is counted.

A layer's numbers are so much for each token, so much for each chunk of `CHUNK` tokens in which linear attention goes through a
sequence, and a rest; three passes tell them apart. b is the bytes of a weight.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mmrl.config.sections import LoraConfig
from mmrl.train.plan.skeletons import skeleton
from mmrl.train.plan.traced import Pass, saved_by, trace
from mmrl.train.plan.trained import FULL
from mmrl.train.plan.workload import CHUNK, Micro

META = torch.device("meta")
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
        self.kinds = _kinds(skeleton(config))

    @functools.cache  # noqa: B019  few of these are made, and they are small
    def counted(self, b: int) -> tuple[Layer, ...]:
        return tuple(self._layer(_model(self.config, b), numbers, b) for numbers in self.kinds)

    @functools.cache  # noqa: B019
    def kept(self, b: int, dense: bool, lora: str = "") -> tuple[tuple[int, Kept], ...]:
        """(number of layers, bytes that each keeps for the backward pass) of each kind. dense: with a mask of all pairs of
        tokens, which is not counted here. lora: JSON of `policy.lora`; empty if all weights are trained."""
        model, found = _model(self.config, b, lora), []
        for numbers in self.kinds:
            layer = _decoder(model).layers[numbers[0]]
            saved = functools.partial(_saved, model, layer, b, dense)
            ragged, whole = _fitted(saved), [saved(n) for n in (CHUNK, 2 * CHUNK)]
            chunk = whole[1] - whole[0] - ragged.token * CHUNK
            found.append((len(numbers), Kept(ragged, Linear(2 * whole[0] - whole[1], ragged.token, chunk))))
        return tuple(found)

    def _layer(self, model: Any, numbers: list[int], b: int) -> Layer:
        layer = _decoder(model).layers[numbers[0]]
        passes: dict[int, Pass] = {}
        for n in LENGTHS:
            call, _ = _called(model, layer, n, b, True)
            passes[n] = trace(call)
        experts = sum(p.numel() for name, p in layer.named_parameters() if p.ndim == 3 and ".experts." in name)
        return Layer(
            count=len(numbers),
            flops=_fitted(lambda n: sum(flops for flops, _ in passes[n].products)),
            pairs=passes[LENGTHS[0]].attention / LENGTHS[0] ** 2,
            moved=_fitted(lambda n: passes[n].moved),
            operations=_fitted(lambda n: passes[n].operations),
            held=_fitted(lambda n: passes[n].peak),
            weights=sum(p.numel() for p in layer.parameters()) - experts,
            experts=experts,
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


def _saved(model: Any, layer: Any, b: int, dense: bool, tokens: int) -> int:
    return saved_by(*_called(model, layer, tokens, b, dense), by_tokens=not dense)


def _decoder(model: Any) -> Any:
    return model.model.language_model


def _kinds(model: Any) -> list[list[int]]:
    """Numbers of the layers of each kind: those whose weights have the same names and shapes."""
    found: dict[Any, list[int]] = {}
    for i, layer in enumerate(_decoder(model).layers):
        found.setdefault(tuple((name, tuple(p.shape)) for name, p in layer.named_parameters()), []).append(i)
    return list(found.values())


@functools.lru_cache(8)
def _model(config: str, b: int, lora: str = "") -> Any:
    """The model with a layer of each kind, and its weights, or adapters, as they are trained."""
    from mmrl.policies.lora import add_adapters

    whole = skeleton(config)
    some = {numbers[0] for numbers in _kinds(whole)}  # the others are left empty, which keeps the names of these
    empty = {id(layer): torch.nn.Module() for i, layer in enumerate(_decoder(whole).layers) if i not in some}
    model = copy.deepcopy(whole, empty).to(torch.float32 if b == FULL else torch.bfloat16).eval()
    if lora:
        add_adapters(model, LoraConfig.model_validate(json.loads(lora) | {"nf4": []}), 0, META)
    return model


def _called(model: Any, layer: Any, tokens: int, b: int, dense: bool) -> tuple[Callable[[], torch.Tensor], list[torch.Tensor]]:
    """(a pass of the layer over one row, tensors that all layers share)."""
    decoder, dtype = _decoder(model), torch.float32 if b == FULL else torch.bfloat16
    width = decoder.embed_tokens.weight.shape[1]
    hidden = torch.empty(1, tokens, width, device=META, dtype=dtype, requires_grad=True)
    places = torch.empty(1, tokens, device=META, dtype=torch.int64)
    axes = 3 if "mrope_section" in (decoder.config.rope_parameters or {}) else 0
    angles = decoder.rotary_emb(hidden, places.expand(axes, 1, tokens) if axes else places)
    mask = torch.empty(1, 1, tokens, tokens, device=META, dtype=dtype) if dense else None
    taken = inspect.signature(layer.forward).parameters
    given = {"position_embeddings": angles, "attention_mask": mask, "position_ids": places}
    if hasattr(layer, "linear_attn"):  # which takes a mask for one of padding
        given["attention_mask"] = None
    given = {name: value for name, value in given.items() if name in taken}
    return (lambda: layer(hidden, **given)), [*angles, *([] if mask is None else [mask])]
