"""Values of `policy.model`: a folder, a name on the hub, or `tiny:FAMILY:key=value,...` for a small random model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mmrl.api.errors import UserError, check_path

LIMITED = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe", "glm46v"),
    *("glm_ocr", "paddleocr_vl", "exaone4_5", "hunyuan_vl", "video_llama_3"),
    *("ernie4_5_vl_moe", "lfm2_vl", "minicpmv4_6", "minicpmv4_7", "qwen2_5_omni", "qwen3_omni_moe"),
)
"""Families whose pictures may have any small number of pixels; those of others, or their tiles, have sizes of their own."""

HEARING = ("qwen2_audio",)
"""Families that hear sounds and see nothing."""
OMNI = ("qwen2_5_omni", "qwen3_omni_moe")
"""Families that hear and see, by the `model_type` of the whole model, which is also the name of its tiny one."""


def takes_small_pictures(model: str) -> bool:
    """Whether a smoke run may set limits on the pixels of this model's pictures."""
    return _kind(model) in LIMITED


def tiny_that_hears(model: str) -> str:
    """The tiny model that stands for one that hears; empty for others."""
    kind = _kind(model)
    return "tiny:qwen2_audio" if kind in HEARING else "tiny:qwen2_5_omni" if kind in OMNI else ""


def _kind(model: str) -> str:
    """The `model_type` of a model, of a thinker the whole model's: by its settings, or, for one that hears on the hub, by its
    name; empty if neither tells."""
    if model.startswith("tiny:"):
        return model.split(":")[1]
    if Path(model).is_dir():
        return str(_settings(model).get("model_type", "")).removesuffix("_thinker")
    name = model.lower()
    return "qwen2_audio" if "qwen2-audio" in name else "qwen2_5_omni" if re.search(r"qwen[\d.]+-omni", name) else ""


def _settings(model: str) -> Mapping[str, object]:
    """The table in a folder's config.json; empty if there is none."""
    try:
        settings = json.loads((Path(model) / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def refuse_path(name: str, cure: str) -> None:
    """Raise UserError for a name that looks like a folder and isn't one. A hub name has at most one slash; it is not looked
    up."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        where = "" if name.startswith(("/", "~")) else f"; {check_path(name)}"
        raise UserError(f"{name!r} is not a folder: {cure}{where}", key="policy.model")


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


@dataclass(frozen=True, slots=True)
class Size:
    """A size in the name of a tiny model."""

    usual: int
    """Where the name doesn't say it."""
    low: int
    high: int
    step: int = 1
    """It is a multiple of this."""

    def allows(self, value: int) -> bool:
        return value % self.step == 0 and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"a multiple of {self.step} from {self.low} to {self.high}" if self.step > 1 else f"from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyNames:
    """The names `tiny:FAMILY[:key=value,...]` of a family of tiny policies that act."""

    family: str
    called: str
    """How a person calls such a policy."""
    sizes: Mapping[str, Size]
    others: str = "a folder or hub name of one"
    """What else `policy.model` may be."""

    def parse(self, name: str, seed: int) -> dict[str, int]:
        """Its sizes and seed. Raises UserError for another family's name, and for an unknown or invalid part."""
        if name.split(":")[1] != self.family:
            raise UserError(f"{name!r} is no {self.called}: write tiny:{self.family}, or {self.others}", key="policy.model")
        _, found = tiny_sizes(name, {key: size.usual for key, size in self.sizes.items()}, seed)
        wrong = [f"{key} must be {size}" for key, size in self.sizes.items() if not size.allows(found[key])]
        if wrong:
            raise UserError(f"{name!r}: {', '.join(wrong)}: change {'it' if len(wrong) == 1 else 'them'}", key="policy.model")
        return found

    def full_name(self, name: str, seed: int) -> str:
        """`name` with everything that `parse` would add, so that it stands for the same weights whatever the seed of a run."""
        return tiny_name(self.family, self.parse(name, seed))
