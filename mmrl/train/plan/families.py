"""The families that a plan counts, by `model_type`: a test compares each with what torch computes and keeps."""

GRIDS = (
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v_moe", "qwen3_5", "qwen3_5_moe", "qwen2_5_omni_thinker",
    "qwen3_omni_moe_thinker",
)  # fmt: skip
"""Those whose pictures are grids of patches that follow from their size, so that no processor is needed."""
SHOWN = (
    "gemma3", "internvl", "glm4v", "glm46v", "glm_ocr", "smolvlm", "idefics3", "llava", "llava_next", "llava_onevision",
    "mistral3", "deepseek_vl", "aya_vision", "cohere2_vision", "paddleocr_vl", "exaone4_5", "muse_glimmer", "kimi_k25", "llama4",
    "ernie4_5_vl_moe", "step3p7", "gemma4", "gemma4_unified", "gemma3n", "paligemma", "perception_lm", "phi4_multimodal",
    "granite4_vision", "ovis2", "lfm2_vl", "minicpmv4_6", "minicpmv4_7", "lighton_ocr", "hunyuan_vl", "video_llama_3",
    "qwen2_audio",
)  # fmt: skip
"""Those whose own processor is shown a picture."""
