"""Match weights by name: the part of a model that a weight belongs to, and patterns of names."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from mmrl.api.errors import UserError
from mmrl.config.sections import PARTS, PartConfig

# Each is matched against the components of a dotted name, from the left. The names are those of transformers' models.
_LANGUAGE = re.compile(r"language_model|text_model|text_decoder")
_PROJECTOR = re.compile(
    r"(deepstack_)?merger(_list)?|.*projectors?|connector|aligner|resampler.*|.*resampler|qformer|query_tokens|image_newline"
    r"|(vision|visual|language|modality|image)_projection|image_to_text_projection|embed_vision|visual_embeddings_table"
    r"|vision_adapter"
)
# Qwen's, GLM's, Phi-4's, HunYuan's and Granite Docling's are inside the tower
_INNER_PROJECTOR = re.compile(r"(patch_)?merger|(deepstack_)?merger_list|img_projection.*|connector")
# Gemma 4 12B has no tower: what embeds its patches is beside the projection
_INNER_VISION = re.compile(r"patch_(dense|ln[12])|pos_(embedding|norm)")
_VISION = re.compile(r"(high_res_)?(visual|vision|image|video|vit|vqmodel|patch_embed).*")
_ACTIONS = re.compile(  # action heads besides `own`: of pi0, SmolVLA and GR00T, and their learned noise
    "dit|embed_action_time|action_(in|out)_proj|lm_expert|action_time_mlp_(in|out)|state_proj|action_head|noise_head"
)
_OTHER = re.compile(r"(audio|speech|sound).*|embed_audio")


@functools.lru_cache(1 << 17)  # a plan asks hundreds of times about the same thousands of weights
def part_of(name: str) -> str:
    """The part of a weight or module by its name: `vision`, `projector`, `language`, `head` or `value`; "" for others (audio)."""
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
            return "vision" if step == "embed_vision" and any(_INNER_VISION.fullmatch(s) for s in steps) else "projector"
        if _VISION.fullmatch(step):
            return "projector" if any(_INNER_PROJECTOR.fullmatch(s) for s in steps) else "vision"
    return "language"


def matches(pattern: str, name: str) -> bool:
    """Whether a weight's name matches. pattern: a part, or a case-sensitive shell-style pattern of names (`*.layers.0.*`)."""
    return part_of(name) == pattern if pattern in PARTS else fnmatchcase(name, pattern)


def entry(parts: Iterable[PartConfig], name: str) -> PartConfig | None:
    """The first entry that matches a weight's name, which is the one that applies; None without one."""
    return next((part for part in parts if matches(part.match, name)), None)


def no_layer_to_adapt(match: Sequence[str]) -> UserError:
    """For `policy.lora.target_modules`, none of which matches a linear layer."""
    return UserError(f"policy.lora.target_modules = {match} matches no linear layer: use vision, projector or language")
