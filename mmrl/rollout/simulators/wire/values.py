"""What a message may hold: plain data, tensors, bytes, and types of `mmrl.api.simulators.types`. Nothing else is made of it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

from mmrl.api.errors import shorten
from mmrl.api.simulators.types import ActionSpec, Observation, Transition
from mmrl.rollout.simulators.wire.frames import Broken

TYPES: dict[str, type] = {"observation": Observation, "transition": Transition, "action": ActionSpec}


FEW = 64
"""More texts, such as an instruction for each environment, go into an array: a header is short."""


def encode(value: Any, arrays: list[numpy.ndarray]) -> Any:
    """The value as JSON; tensors and bytes are appended to `arrays`. Raises TypeError for other values."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, numpy.generic):
        return encode(value.item(), arrays)
    if isinstance(value, torch.Tensor):
        arrays.append(value.detach().cpu().contiguous().numpy())
        return {"tensor": len(arrays) - 1}
    if isinstance(value, bytes):
        arrays.append(numpy.frombuffer(value, numpy.uint8))
        return {"bytes": len(arrays) - 1}
    for name, kind in TYPES.items():
        if isinstance(value, kind):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(kind)}
            return {name: {field: encode(one, arrays) for field, one in fields.items()}}
    if isinstance(value, Mapping):
        return {"map": {str(key): encode(one, arrays) for key, one in value.items()}}
    if isinstance(value, Sequence):
        made = "tuple" if isinstance(value, tuple) else "list"
        if len(value) > FEW and _is_texts(value):
            arrays.append(numpy.frombuffer(json.dumps(list(value)).encode(), numpy.uint8))
            return {"texts": [len(arrays) - 1, made]}
        return {made: [encode(one, arrays) for one in value]}
    raise TypeError(f"a {type(value).__name__} can't be sent over a wire")


def decode(tree: Any, arrays: Sequence[numpy.ndarray]) -> Any:
    """The inverse of `encode`. Raises Broken for anything that `encode` doesn't make."""
    try:
        return _decoded(tree, arrays)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise Broken(f"a message can't be read: {type(error).__name__}: {shorten(error, 100)}") from None


def _decoded(tree: Any, arrays: Sequence[numpy.ndarray]) -> Any:
    if isinstance(tree, list):
        raise TypeError("a list that says nothing of its kind")
    if not isinstance(tree, dict):
        return tree
    ((kind, held),) = tree.items()
    if kind in ("tensor", "bytes"):
        if type(held) is not int or held < 0:
            raise ValueError(f"array {held!r}")
        return arrays[held].tobytes() if kind == "bytes" else torch.from_numpy(arrays[held])
    if kind == "texts":
        number, made = held
        found = json.loads(_decoded({"bytes": number}, arrays))
        if made not in ("list", "tuple") or not _is_texts(found):
            raise ValueError("no texts")
        return tuple(found) if made == "tuple" else found
    if kind == "map":
        return {key: _decoded(one, arrays) for key, one in held.items()}
    if kind in ("list", "tuple"):
        found = [_decoded(one, arrays) for one in held]
        return tuple(found) if kind == "tuple" else found
    fields = {field: _decoded(one, arrays) for field, one in held.items()}
    if kind == "observation":
        _check(fields, images=_is_rows, state=_is_tensor_or_none, instructions=_is_texts)
    elif kind == "transition":
        flags = dict.fromkeys(("reward_N", "terminated_N", "truncated_N", "success_N"), _is_tensor)
        flags |= dict.fromkeys(("lost_N", "interventions_NA"), _is_tensor_or_none)
        _check(fields, observation=_is_observation, parts=_is_rows, **flags)
    elif kind == "action":
        _check(fields, dims=lambda v: type(v) is int and v > 0, units=_is_numbers, offsets=_is_numbers)
    return TYPES[kind](**fields)


def _check(fields: Mapping[str, Any], **wanted: Any) -> None:
    for name, fits in wanted.items():
        if not fits(fields[name]):
            raise ValueError(f"its {name} is a {type(fields[name]).__name__}")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_tensor_or_none(value: Any) -> bool:
    return value is None or _is_tensor(value)


def _is_rows(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_tensor, value.values()))


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, int | float) and math.isfinite(one) for one in value)


def _is_observation(value: Any) -> bool:
    return isinstance(value, Observation)
