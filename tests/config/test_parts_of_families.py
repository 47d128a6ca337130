"""The parts of every family's model: by the names of weights, as the model's own structure has them, and in adapters."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
import torch

from mmrl.api.errors import UserError
from mmrl.config.parts import part_of
from mmrl.config.sections import LoraConfig
from mmrl.policies import lora
from mmrl.policies.names import HEARING
from mmrl.policies.vlm import tiny

ROOT = Path(__file__).parents[2]
QWEN3 = ("visual.blocks.0.attn.qkv.weight", "visual.merger.linear_fc1.weight", "language_model.embed_tokens.weight")
GLM = ("visual.blocks.0.attn.qkv.weight", "visual.merger.gate_proj.weight", "language_model.layers.0.self_attn.q_proj.weight")
TOWER = "vision_tower.encoder.layers.0.self_attn.q_proj.weight"
ATTENTION = "language_model.layers.1.self_attn.q_proj.weight"
LLAVA = (TOWER, "multi_modal_projector.linear_1.weight", ATTENTION)
MINICPM = ("vision_tower.vit_merger.linear_1.weight", "merger.mlp.0.linear_1.weight", ATTENTION)
TEXT = "text_model.layers.0.self_attn.q_proj.weight"
IDEFICS = ("vision_model.encoder.layers.0.mlp.fc1.weight", "connector.modality_projection.proj.weight", TEXT)
PIXTRAL = "vision_tower.transformer.layers.0.attention.q_proj.weight"
EXPECTED = {  # a weight of `model` that is vision, one that is the projector, one that is language
    "qwen2_vl": ("visual.patch_embed.proj.weight", "visual.merger.ln_q.weight", "language_model.norm.weight"),
    "qwen2_5_vl": ("visual.patch_embed.proj.weight", "visual.merger.mlp.0.weight", "language_model.norm.weight"),
    "qwen3_vl": (QWEN3[0], "visual.deepstack_merger_list.0.linear_fc1.weight", QWEN3[2]),
    "qwen3_vl_moe": (*QWEN3[:2], "language_model.layers.0.mlp.experts.gate_up_proj"),
    "qwen3_5": (*QWEN3[:2], "language_model.layers.0.linear_attn.in_proj_qkv.weight"),
    "qwen2_5_omni": ("visual.patch_embed.proj.weight", "visual.merger.mlp.0.weight", "language_model.norm.weight"),
    "qwen3_omni_moe": (QWEN3[0], "visual.merger_list.0.mlp.0.weight", "language_model.layers.0.mlp.experts.gate_up_proj"),
    "qwen3_5_moe": (*QWEN3[:2], "language_model.layers.0.mlp.shared_expert_gate.weight"),
    "gemma3": (TOWER, "multi_modal_projector.mm_input_projection_weight", ATTENTION),
    "gemma4": (
        "vision_tower.patch_embedder.position_embedding_table",
        "embed_vision.embedding_projection.weight",
        "language_model.embed_tokens_per_layer.weight",
    ),
    "gemma3n": ("vision_tower.timm_model.conv_stem.conv.weight", "embed_vision.embedding_projection.weight", ATTENTION),
    "internvl3_5": ("vision_tower.embeddings.cls_token", "multi_modal_projector.layer_norm.weight", ATTENTION),
    "llama4": ("vision_model.class_embedding", "multi_modal_projector.linear_1.weight", "language_model.model.norm.weight"),
    "llava_next": (TOWER, "image_newline", ATTENTION),
    "granite4_vision": (TOWER, "layerwise_projectors.0.query", ATTENTION),
    "gemma4_unified": (
        "embed_vision.patch_dense.weight",
        "embed_vision.multimodal_embedder.embedding_projection.weight",
        ATTENTION,
    ),
    "glm_ocr": GLM,
    "paddleocr_vl": ("visual.vision_model.post_layernorm.weight", "projector.linear_1.weight", ATTENTION),
    "exaone4_5": ("visual.blocks.0.attn.proj.weight", "visual.merger.mlp.0.weight", ATTENTION),
    "muse_glimmer": ("vision_tower.layers.0.norm1.weight", "vision_adapter.fc1.weight", ATTENTION),
    "lighton_ocr": ("vision_encoder.patch_conv.weight", "vision_projection.patch_merger.merging_layer.weight", ATTENTION),
    "hunyuan_vl": ("vision_tower.layers.0.mlp.fc1.weight", "vision_tower.patch_merger.mlp.weight", ATTENTION),
    "video_llama_3": ("vision_model.encoder.layers.0.mlp.fc1.weight", "projector.readout.0.weight", ATTENTION),
    "step3p7": ("vision_model.layers.0.self_attn.q_proj.weight", "multi_modal_projector.weight", ATTENTION),
    "perception_lm": ("vision_tower.timm_model.cls_token", "multi_modal_projector.linear_1.weight", ATTENTION),
    "phi4_multimodal": (
        "embed_tokens_extend.image_embed.img_processor.embeddings.patch_embedding.weight",
        "embed_tokens_extend.image_embed.img_projection_up.weight",
        "layers.0.self_attn.qkv_proj.weight",
    ),
    "paligemma": (TOWER, "multi_modal_projector.linear.weight", ATTENTION),
    "glm4v": GLM,
    "glm46v": GLM,
    "glm4v_moe": (*GLM[:2], "language_model.layers.1.mlp.experts.gate_up_proj"),
    "internvl": ("vision_tower.embeddings.cls_token", "multi_modal_projector.layer_norm.weight", ATTENTION),
    "aya_vision": LLAVA,
    "cohere2_vision": LLAVA,
    "ovis2": ("vision_tower.head_linear.weight", "visual_embeddings_table.weight", ATTENTION),
    "lfm2_vl": (*LLAVA[:2], "language_model.layers.0.conv.conv.weight"),
    "idefics3": IDEFICS,
    "smolvlm": IDEFICS,
    "llava": LLAVA,
    "llava_onevision": (TOWER, "image_newline", ATTENTION),
    "mistral3": (PIXTRAL, "multi_modal_projector.patch_merger.merging_layer.weight", ATTENTION),
    "pixtral": (PIXTRAL, *LLAVA[1:]),
    "deepseek_vl": ("vision_model.encoder.layers.0.mlp.fc1.weight", "aligner.linear1.weight", ATTENTION),
    "minicpmv4_6": MINICPM,
    "minicpmv4_7": MINICPM,
    "kimi_k25": (
        "vision_tower.patch_embed.proj.weight",
        "mm_projector.in_proj.weight",
        "language_model.layers.1.self_attn.kv_b_proj.weight",
    ),
    "ernie4_5_vl_moe": (
        "vision_tower.blocks.0.attn.qkv.weight",
        "resampler_model.spatial_linear.fc1.weight",
        "language_model.layers.0.mlp.vision_moe.experts.gate_up_proj",
    ),
}
HEARS = ("gemma4", "gemma4_unified", "gemma3n", "phi4_multimodal", "qwen2_5_omni", "qwen3_omni_moe")
"""Families with a tower for sounds, which is no part."""
UNADAPTED = {"gemma3": "mm_input_projection_weight", "ovis2": "visual_embeddings_table.weight"}
"""Families whose projector has no linear layer -> its largest weight."""
skeleton = functools.cache(tiny.skeleton)
"""Which no test changes."""


def test_every_family_is_in_the_table():
    assert sorted([*EXPECTED, "openvla", *HEARING]) == sorted(tiny.FAMILIES)


def test_a_model_that_hears_has_a_projector_and_a_language_model():
    """Its encoder is no part."""
    model = skeleton("qwen2_audio")
    names = {name: part_of(name) for name, _ in model.named_parameters()}
    assert {name.split(".")[1] for name, part in names.items() if not part} == {"audio_tower"}
    assert {name.split(".")[1] for name, part in names.items() if part == "projector"} == {"multi_modal_projector"}
    assert {name.split(".")[1] for name, part in names.items() if part == "language"} == {"language_model"}
    assert [name for name, part in names.items() if part == "head"] == ["lm_head.weight"]


@pytest.mark.parametrize("family", ["qwen2_audio", "qwen2_5_omni", "qwen3_omni_moe"])
def test_what_hears_is_matched_by_the_pattern_of_the_docs(family):
    """The tower stands within `model`, or on its own."""
    page = (ROOT / "docs" / "audio.md").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"write the pattern `(.+?)`", page)
    found = lora.target_modules(skeleton(family), [pattern])
    assert found and all("audio_tower" in name.split(".")[:2] for name in found)


@pytest.mark.parametrize("family", EXPECTED)
def test_parts_are_those_of_the_structure(family):
    model = skeleton(family)
    names = {name: part_of(name) for name, _ in model.named_parameters()}
    for part, name in zip(("vision", "projector", "language"), EXPECTED[family], strict=True):
        older = f"model.{name.removeprefix('language_model.')}"  # Qwen-Omni's language model in transformers 5.19
        found = [names[known] for known in (f"model.{name}", name, older) if known in names]
        assert found[:1] == [part]
    inside = {id(p): "language" for p in model.get_decoder().parameters()}
    seeing = model.get_encoder(modality="image")
    if family == "phi4_multimodal":  # pictures and sounds are embedded inside the decoder
        embedded = model.get_decoder().embed_tokens_extend
        inside = {i: part for i, part in inside.items() if i not in {id(p) for p in embedded.parameters()}}
        seeing = embedded.image_embed
    seen = dict(seeing.named_parameters())
    if family == "gemma4_unified":  # it has no tower
        seen = {n: p for n, p in model.model.embed_vision.named_parameters() if not n.startswith("multimodal_embedder")}
    inside |= {id(p): "vision" for p in seen.values()}
    head = model.get_output_embeddings().weight
    for name, p in model.named_parameters():
        if p is head:
            wanted = {"language"} if p is model.get_input_embeddings().weight else {"head"}
        elif id(p) in inside:
            wanted = {inside[id(p)]} | (
                {"projector"} if ("merger" in name or "img_projection" in name) and "vit_merger" not in name else set()
            )
        else:
            wanted = {"", "projector"}
        assert names[name] in wanted, name
    assert set(names.values()) >= {"vision", "projector", "language"}
    assert ("" in names.values()) == (family in HEARS) and all("audio" in n for n, part in names.items() if not part)


@pytest.mark.parametrize("family", EXPECTED)
def test_adapters_by_part(family):
    model = skeleton(family)
    for part in ("vision", "language", "projector"):
        found = lora.target_modules(model, [part])
        assert bool(found) == ((part != "projector" or family not in UNADAPTED) and (part, family) != ("vision", "gemma3n"))
        assert {part_of(name) for name in found} <= {part}


@pytest.mark.parametrize("family", UNADAPTED)
def test_a_projector_without_linear_layers_is_refused_in_one_line(family):
    model, _ = tiny.build(family, hidden=32)
    config = LoraConfig(rank=2, target_modules=["projector", "language"])
    with pytest.raises(UserError) as told:
        lora.add_adapters(model, config, seed=0)
    wanted = (
        f'policy.lora.target_modules: "projector" has no linear layer in a {type(model).__name__}, only weights such as model.'
    )
    assert str(told.value).startswith(wanted) and UNADAPTED[family] in str(told.value) and "\n" not in str(told.value)
    assert str(told.value).endswith("which can't have adapters: use vision, language")
    assert not any(lora.is_adapter(name) for name, _ in model.named_parameters())


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3", "gemma4", "internvl", "glm4v", "idefics3", "lfm2_vl", "kimi_k25"])
def test_adapters_change_nothing_and_are_named_after_the_part(family):
    model, _ = tiny.build(family, hidden=32, spread=0.1)
    ids = torch.arange(20, 32)[None]
    model.eval()
    with torch.no_grad():
        before = model(input_ids=ids).logits
    parts = ["vision", "language"] + [p for p in ["projector"] if family not in UNADAPTED]
    lora.add_adapters(model, LoraConfig(rank=2, target_modules=parts), seed=0)
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, before)
    adapters = [name for name, p in model.named_parameters() if p.requires_grad]
    assert all(lora.is_adapter(name) for name in adapters) and {part_of(name) for name in adapters} == {*parts}
