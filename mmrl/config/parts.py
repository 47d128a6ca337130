"""Which part of a model a weight belongs to, by its name, and what patterns of names match."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from mmrl.config.sections import PARTS, PartConfig

# Each is asked of the steps of a dotted name from the left. These are the names in transformers' image-text-to-text models.
_LANGUAGE = re.compile(r"language_model|text_model|text_decoder")
_PROJECTOR = re.compile(
    r"(deepstack_)?merger(_list)?|.*projector|connector|aligner|resampler.*|.*resampler|qformer|query_tokens|image_newline"
    r"|(vision|visual|language|modality|image)_projection|image_to_text_projection|embed_vision"
)
_VISION = re.compile(r"(high_res_)?(visual|vision|image|video|vit|vqmodel|patch_embed).*")
_ACTIONS = re.compile("dit|embed_action_time|action_out_proj")  # the head of a policy that acts: `own`, or pi0's expert
_OTHER = re.compile(r"(audio|speech|sound).*|embed_audio")


def part_of(name: str) -> str:
    """`vision`, `projector`, `language`, `head` or `value`, for a weight's or module's name; "" for another tower's (audio)."""
    steps = name.split(".")
    if steps[0] in ("value", "critic"):
        return "value"
    if "lm_head" in steps or steps[0] == "own" or any(_ACTIONS.fullmatch(step) for step in steps):
        return "head"
    for step in steps:
        if _LANGUAGE.fullmatch(step):
            return "language"
        if _OTHER.fullmatch(step):
            return ""
        if _PROJECTOR.fullmatch(step):
            return "projector"
        if _VISION.fullmatch(step):  # Qwen keeps the projector inside its vision tower
            return "projector" if any(re.fullmatch("merger|deepstack_merger_list", s) for s in steps) else "vision"
    return "language"


def matches(pattern: str, name: str) -> bool:
    """pattern: a part's name, or one of weights in the shell's way (`*.layers.0.*`), case and all."""
    return part_of(name) == pattern if pattern in PARTS else fnmatchcase(name, pattern)


def entry(parts: Iterable[PartConfig], name: str) -> PartConfig | None:
    """The first entry that matches a weight's name: the one that holds for it."""
    return next((part for part in parts if matches(part.match, name)), None)
