"""The numbers in which model families write points and boxes, each with its source."""

from __future__ import annotations

from mmrl.api.coordinates import CoordinateFormat, ImageProcessing
from mmrl.api.errors import UserError

THOUSANDTHS, MODEL_PIXELS = CoordinateFormat.THOUSANDTHS, CoordinateFormat.MODEL_PIXELS
FORMATS: dict[str, tuple[CoordinateFormat, str]] = {
    "qwen2_vl": (THOUSANDTHS, "Wang et al. 2024, Qwen2-VL, section 2.2.1"),
    "qwen2_5_vl": (MODEL_PIXELS, "Bai et al. 2025, Qwen2.5-VL, section 2.2.1"),
    "qwen3_vl": (THOUSANDTHS, "Qwen3-VL's cookbook on 2D grounding"),
    "qwen3_vl_moe": (THOUSANDTHS, "Qwen3-VL's cookbook on 2D grounding"),
    "qwen3_5": (THOUSANDTHS, "its maintainers, QwenLM/Qwen3.8-Flash-Next, issue 4"),
    "qwen3_5_moe": (THOUSANDTHS, "its maintainers, QwenLM/Qwen3.8-Flash-Next, issue 4"),
    "glm4v": (THOUSANDTHS, "its maintainers, zai-org/GLM-V, issue 161"),
    "glm4v_moe": (THOUSANDTHS, "its maintainers, zai-org/GLM-V, issue 114"),
    "glm46v": (THOUSANDTHS, "its maintainers, zai-org/GLM-V, issue 114"),
    "internvl": (THOUSANDTHS, "InternVL's documentation, chat data format, grounding"),
}
"""`model_type` -> (format, source). Families that aren't here write location tokens, other orders of the numbers, or numbers that
nobody has said."""


class UnknownFormat(ImageProcessing):
    """How a model processes images of which nobody has said in which numbers it writes coordinates."""

    kind: str

    def __init__(self, known: ImageProcessing, kind: str) -> None:
        object.__setattr__(self, "model_size", known.model_size)
        object.__setattr__(self, "kind", kind)

    @property
    def coordinate_format(self) -> CoordinateFormat:  # type: ignore[override]
        """Raises UserError: a task asks for coordinates."""
        formats = ", ".join(CoordinateFormat)
        raise UserError(
            f"in which numbers a {self.kind} model writes coordinates isn't known, and a task asks for some: set policy.frame "
            f"to what it was trained on ({formats}), or the task's options.frame",
            key="policy.frame",
        )


def format_of(kind: str, asked: str | None) -> CoordinateFormat | None:
    """The format of a model of this type; None if nobody knows. asked: `policy.frame`. Raises UserError if they differ."""
    known, source = FORMATS.get(kind, (None, ""))
    if asked is None or known is None:
        return CoordinateFormat(asked) if asked else known
    if known is not CoordinateFormat(asked):
        raise UserError(
            f"a {kind} model writes {known.value} ({source}), not {asked}: leave it out, or set the task's "
            "options.frame to train it on other numbers",
            key="policy.frame",
        )
    return known
