"""Values of `policy.model`: a folder, a name on the hub, or `tiny:FAMILY:key=value,...` for a small random model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from mmrl.api.errors import UserError

TINY_OF_ONE_SIZE = (
    "openvla",
    *("gemma3", "gemma4", "paligemma", "llava", "llava_onevision", "mistral3", "pixtral", "deepseek_vl"),
    *("internvl", "smolvlm", "idefics3", "aya_vision", "cohere2_vision", "ovis2", "kimi_k25"),
)
"""Families of tiny models whose pictures or tiles have sizes of their own, which a smoke run leaves alone."""


def refuse_path(name: str, cure: str) -> None:
    """Raise UserError for a name that looks like a folder and isn't one. A hub name has at most one slash; it is not looked
    up."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"{name!r} is not a folder: {cure}", key="policy.model")


def base_name(model: str, seed: int, full_name: Callable[[str, int], str]) -> str:
    """The base model's name as written into saved adapters, valid from any folder. full_name: completes that of a tiny model."""
    if model.startswith("tiny:"):
        return full_name(model, seed)
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def tiny_sizes(name: str, sizes: Mapping[str, int], seed: int) -> tuple[str, dict[str, int]]:
    """`tiny:FAMILY[:key=value,...]` -> (family, sizes and seed: those of the name, and the given ones for the rest). Raises
    UserError for an unknown or invalid part."""
    _, family, *rest = name.split(":")
    found = {**sizes, "seed": seed}
    for item in filter(None, ",".join(rest).split(",")):
        key, _, value = item.partition("=")
        if key not in found or not re.fullmatch(r"[0-9]{1,19}", value):
            example = tiny_name(family, sizes)
            raise UserError(f"{name!r}: {item!r} is not understood: write {example}", key="policy.model")
        found[key] = int(value)
    return family, found


def tiny_name(family: str, sizes: Mapping[str, int]) -> str:
    """The inverse of `tiny_sizes`."""
    return f"tiny:{family}:" + ",".join(f"{key}={value}" for key, value in sizes.items())
