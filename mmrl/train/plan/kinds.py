"""Layers of which one stands for all of its kind, on torch's meta device."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from mmrl.config.sections import LoraConfig
from mmrl.policies.layers import repeated_layers
from mmrl.policies.vlm import attention
from mmrl.policies.vlm.families import decoder_of
from mmrl.train.plan.alike import is_without_numbers
from mmrl.train.plan.skeletons import skeleton
from mmrl.train.plan.trained import FULL

META = torch.device("meta")


def kinds_of(model: Any) -> list[list[int]]:
    """Numbers of the layers of each kind in the language model; see `alike`."""
    return alike([*decoder_of(model).layers])


def alike(layers: Sequence[torch.nn.Module]) -> list[list[int]]:
    """Numbers of the layers of each kind: those whose weights have the same names and shapes and get gradients alike, and whose
    parts have the same classes and settings, such as a window, or that keys and values are another layer's."""
    settings: list[dict[tuple[str, str], Any]] = [
        {
            (name, key): value
            for name, part in layer.named_modules()
            for key, value in (*vars(part).items(), ("class", str(type(part))))
            if isinstance(value, str | int | float)
        }
        for layer in layers
    ]
    numbers = {key for own in settings for key in own}  # names of what is the layer's number in each
    for i, own in enumerate(settings):
        numbers -= {key for key, value in own.items() if type(value) is not int or value != i}
    found: dict[Any, list[int]] = {}
    for i, layer in enumerate(layers):
        named = (*layer.named_parameters(), *layer.named_buffers())
        weights = tuple((name, tuple(x.shape), x.dtype, x.requires_grad) for name, x in named)
        others = tuple((key, value) for key, value in settings[i].items() if key not in numbers)
        found.setdefault((weights, others), []).append(i)
    return list(found.values())


def kind_by_layer(model: torch.nn.Module) -> dict[torch.nn.Module, Hashable]:
    """What is equal for layers of one kind, of all parts of a model: of layers that hold no others, nor any numbers."""
    layers: dict[type, list[torch.nn.Module]] = {}
    for layer in repeated_layers(model):
        if len(repeated_layers(layer)) == 1 and all(is_without_numbers(x) for x in layer.buffers()):
            layers.setdefault(type(layer), []).append(layer)
    return {own[i]: (kind, n) for kind, own in layers.items() for n, numbers in enumerate(alike(own)) for i in numbers}


def grouped(config: str, key: Callable[[int], Any]) -> list[list[int]]:
    """`kinds_of`, divided further by a key of each layer's number."""
    found: dict[Any, list[int]] = {}
    for kind, numbers in enumerate(kinds_of(skeleton(config))):
        for i in numbers:
            found.setdefault((kind, key(i)), []).append(i)
    return list(found.values())


@functools.lru_cache(8)
def own_of(config: str, names: frozenset[str]) -> tuple[frozenset[str], ...]:
    """Which of these names of weights are of each layer, without what stands before the layer's number."""
    model = skeleton(config)
    layers = decoder_of(model).layers
    before = next(name for name, module in model.named_modules() if module is layers) + "."
    found: list[set[str]] = [set() for _ in layers]
    for number, _, name in (each[len(before) :].partition(".") for each in names if each.startswith(before)):
        found[int(number)].add(name)
    return tuple(map(frozenset, found))


def without_layers(model: Any, kinds: Sequence[Sequence[int]], b: int) -> Any:
    """A copy of a model on the meta device in whose language model the first layer of each kind stands for all of them, which
    keeps its name. kinds: numbers of layers; those of none are left empty."""
    layers = decoder_of(model).layers
    copied: dict[int, Any] = {}
    for first, *others in kinds:
        one = copy.deepcopy(layers[first], copied)
        copied |= {id(layers[i]): one for i in others}
    for layer in layers:
        copied.setdefault(id(layer), torch.nn.Module())
    found = copy.deepcopy(model, copied).to(dtype_of(b)).eval()
    settings = found.config.get_text_config()
    if getattr(settings, "attn_logit_softcapping", None) is not None:  # whose scores mmrl caps block by block
        attention.register()
        settings._attn_implementation = attention.NAMES["blocks"]
    return found


def adapted(model: Any, lora: str) -> Any:
    """The model, with its adapters. lora: JSON of `policy.lora`, or empty."""
    from mmrl.policies.lora import add_adapters

    if lora:
        with META:  # else PEFT makes their weights on the CPU first
            add_adapters(model, LoraConfig.model_validate(json.loads(lora) | {"nf4": []}), 0, META)
    return model


def dtype_of(b: int) -> torch.dtype:
    """Of weights of so many bytes."""
    return torch.float32 if b == FULL else torch.bfloat16
