"""The coordinate format in which each model family writes boxes and points, and where that is said.

A family without a known format has None: a guess would turn right answers into wrong ones in silence.
"""

from __future__ import annotations

from mmrl.api.coordinates import CoordinateFormat, ImageProcessing
from mmrl.api.errors import UserError
from mmrl.policies.vlm.plugin_families import plugin_family

_THOUSANDTHS = CoordinateFormat.THOUSANDTHS
_QWEN3 = (
    _THOUSANDTHS,
    "QwenLM/Qwen3-VL, README.md at 0f2afbe: the cookbook 2d_grounding writes relative coordinates; PaddlePaddle/ERNIE "
    "issue 1364: "
    "they are divided by 1000",
)
_QWEN35 = (_THOUSANDTHS, "QwenLM/Qwen3.8-Flash-Next issue 4, a maintainer on 2026-08-27: relative, normalised to [0, 1000]")
_GLM = (
    _THOUSANDTHS,
    "zai-org/GLM-V, examples/gui-agent/glm-41v/agent.md and agent_zh.md at 8fc9756: [[xmin, ymin, xmax, ymax]] in thousandths of "
    "width and height, 0 to 999; skills/glmv-grounding/SKILL.md, for the later models: round(x / W * 1000)",
)
_MINICPM = (
    _THOUSANDTHS,
    "OpenSQZ/MiniCPM-V-CookBook issue 39 and OpenBMB/MiniCPM-V issue 982, answers of the team: <box>xmin ymin xmax "
    "ymax</box>, 0 to "
    "1000. Both are about MiniCPM-V 4.5; nothing else was found for 4.6 and 4.7",
)

COORDINATE_FORMATS: dict[str, tuple[CoordinateFormat | None, str]] = {
    "qwen2_vl": (
        _THOUSANDTHS,
        "Wang et al. 2024, Qwen2-VL, arXiv 2409.12191, section 2.2: normalised to [0, 1000); the same in the discussion 5 of the "
        "space maxiw/Qwen2-VL-Detection",
    ),
    "qwen2_5_vl": (
        CoordinateFormat.MODEL_PIXELS,
        "Bai et al. 2025, Qwen2.5-VL, arXiv 2502.13923, section 2: coordinates follow the dimensions of the input; "
        "QwenLM/Qwen3-VL "
        "issue 830: the cookbook spatial_understanding divides by the size after resizing",
    ),
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_5": _QWEN35,
    "qwen3_5_moe": _QWEN35,
    "internvl": (
        _THOUSANDTHS,
        "OpenGVLab/InternVL issue 285, a maintainer: int(x / width * 1000); internvl.readthedocs.io, chat data format, grounding",
    ),
    "glm4v": _GLM,
    "glm4v_moe": _GLM,
    "glm46v": _GLM,
    "minicpmv4_6": _MINICPM,
    "minicpmv4_7": _MINICPM,
    "ernie4_5_vl_moe": (_THOUSANDTHS, "PaddlePaddle/ERNIE issue 1364, the team on 2025-12-01: x / 1000 * width, as in Qwen3-VL"),
    "kimi_k25": (
        CoordinateFormat.UNIT,
        "OSWorld, mm_agents/kimi/kimi_agent.py, the agent for Kimi K2.5 (in ljxpython/OSWorldUse at 4c8127b): positions "
        "up to 1 are "
        "multiplied by width and height; MoonshotAI/Kimi-VL issue 56 reports boxes in [0, 1] for its predecessor",
    ),
    "molmo2": (
        _THOUSANDTHS,
        "the card of allenai/Molmo2-4B: x / 1000 * width, in <points> with the number of the picture and of each point before x "
        "and y, three digits each (a copy: albud1978/CV, src/models/Molmo2-4B/README.md at 83e865d)",
    ),
    "gemma4": (
        CoordinateFormat.THOUSANDTHS_YX,
        "huggingface/blog, gemma4.md at 060165f: box_2d in a picture of 1000 x 1000, without an instruction; its "
        "numbers are y_min, "
        "x_min, y_max, x_max, as in Gemini's",
    ),
    "gemma3": (None, "the model's discussion 38 (google/gemma-3-4b-it), an answer of Google: not documented for Gemma 3"),
    "paligemma": (
        CoordinateFormat.LOCATION_TOKENS,
        "google-research/big_vision, pp/proj/paligemma/segmentation.py at 5f95305: tokens <loc0000> to <loc1023> for "
        "round(1023 * share), y and x of one corner, then of the other; huggingface/blog, paligemma.md at 0995a4e: the order "
        "y_min, x_min, y_max, x_max, before the label",
    ),
    "lfm2_vl": (None, "the card of LiquidAI/LFM2.5-VL-450M names detection and no format that we could read"),
    "aya_vision": (None, "nothing found"),
    "cohere2_vision": (None, "nothing found"),
    "deepseek_vl": (None, "nothing found; deepseek-ai/DeepSeek-VL2 issue 100 is about another model, which writes 0 to 999"),
    "gemma3n": (None, "nothing found; its predecessor and Gemma 4 are above"),
    "idefics3": (None, "nothing found"),
    "llama4": (None, "nothing found"),
    "llava": (None, "nothing found for the format in transformers, which also holds Pixtral"),
    "llava_onevision": (None, "nothing found"),
    "mistral3": (None, "nothing found"),
    "ovis2": (None, "nothing found"),
    "perception_lm": (None, "nothing found"),
    "phi4_multimodal": (None, "nothing found"),
    "smolvlm": (None, "nothing found"),
    "llava_next": (
        None,
        "of a padded square in Visual Genome's rows, and nobody agrees on RefCOCO's: haotian-liu/LLaVA issues 606 and 822",
    ),
    "granite4_vision": (None, "nothing found"),
    "gemma4_unified": (None, "nothing found for Gemma 4 12B; the others of its generation are above"),
    "glm_ocr": (None, "boxes come from a layout detector beside it: 99991/Simple-GLM-OCR issue 2; zai-org/GLM-OCR issue 151"),
    "paddleocr_vl": (None, "nothing found"),
    "exaone4_5": (None, "nothing found"),
    "muse_glimmer": (None, "nothing found"),
    "step3p7": (None, "nothing found"),
    "lighton_ocr": (
        _THOUSANDTHS,
        "the card of lightonai/LightOnOCR-2-1B-bbox-soup: x1,y1,x2,y2 behind a picture in a page, normalised to [0, 1000]",
    ),
    "hunyuan_vl": (
        _THOUSANDTHS,
        "Tencent-Hunyuan/HunyuanOCR, Hunyuan-OCR-master/utils.py at b3005f5: x / 1000 * width, of (x1,y1),(x2,y2)",
    ),
    "video_llama_3": (None, "nothing found"),
    "qwen2_audio": (None, "it sees no pictures"),
    "qwen2_5_omni_thinker": (
        None,
        "QwenLM/Qwen2.5-Omni issues 236 and 392 ask for it, without an answer of the team; its vision tower is that of "
        "Qwen2.5-VL, which writes model-pixels",
    ),
    "qwen3_omni_moe_thinker": (
        _THOUSANDTHS,
        "QwenLM/Qwen3-Omni, README.md at 0309c20: the cookbook object_grounding, which draws bbox_2d / 1000 * width (a copy: "
        "gpubuilders/OmniModel, sdk/omni-sdk/notebooks/object_grounding.py at a1109c3)",
    ),
}
"""`model_type` -> the format, or None, and its source."""


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


def known_format(kind: str) -> tuple[CoordinateFormat | None, str]:
    """(format, source) of a family, of mmrl or of a plugin; (None, "") if nobody knows."""
    spec = plugin_family(kind)
    return (spec.coordinate_format, spec.source) if spec else COORDINATE_FORMATS.get(kind, (None, ""))


def format_of(kind: str, asked: str | None) -> CoordinateFormat | None:
    """The format of a model of this type; None if nobody knows. asked: `policy.frame`. Raises UserError if they differ."""
    known, source = known_format(kind)
    if asked is None or known is None:
        return CoordinateFormat(asked) if asked else known
    if known is not CoordinateFormat(asked):
        raise UserError(
            f"a {kind} model writes {known.value} ({source}), not {asked}: leave it out, or set the task's "
            "options.frame to train it on other numbers",
            key="policy.frame",
        )
    return known
