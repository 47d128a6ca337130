"""Tiny checkpoints of families whose classes not all accepted versions of transformers have."""

from __future__ import annotations

import pytest
import transformers as hf

from coded_families import apertus1p5
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.tiny.checkpoint import eye, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, rows, template

SIZE = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 64}
QWEN_MARKS = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
QWEN_MARKS |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}


def granite_docling():
    """Granite with a projector that is inside the vision tower, and features of several of its layers."""
    places = [f"<row_{row}_col_{column}>" for row in range(1, 3) for column in range(1, 3)]
    tokenizer = make_tokenizer(named={"image_token": "<image>"}, special=["<fake_token_around_image>", "<global-img>", *places])
    config = hf.GraniteDoclingConfig(
        text_config=text("granite_docling_text", tokenizer, 32, 3),
        vision_config=eye("", 32, 3, image_size=56, out_hidden_size=32, scale_factor=4, deepstack_visual_indexes=[0, 1]),
        pad_token_id=tokenizer.pad_token_id,
        **ids(tokenizer, image_token_id="<image>"),
    )
    images = hf.GraniteDoclingImageProcessor(size={"height": 56, "width": 56}, max_patches=4)
    processor = hf.GraniteDoclingProcessor(images, tokenizer, image_seq_len=4, chat_template=template("<image>"))
    return hf.GraniteDoclingForConditionalGeneration(config), processor


def lfm3_vl():
    """Short convolutions, windows and full attention."""
    tokenizer = make_tokenizer()
    kinds = ["conv", "conv", "full_attention", "sliding_attention"]
    config = hf.Lfm3VlConfig(
        text_config=text("lfm3", tokenizer, 32, 4, head_dim=8, sliding_window=16, layer_types=kinds),
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "patch_size": 14, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        projector_hidden_size=64,
        **ids(tokenizer, **QWEN_MARKS),
    )  # fmt: skip
    images, videos = hf.Qwen2VLImageProcessor(size=SIZE), hf.Qwen3VLVideoProcessor(size=SIZE, patch_size=14)
    processor = hf.Lfm3VlProcessor(images, tokenizer, videos, chat_template=tokenizer.chat_template)
    return hf.Lfm3VlForConditionalGeneration(config), processor


def mistral_large4():
    """Keys that an index chooses, layers without rotary embeddings, experts."""
    model, processor = tiny.build("mistral3", hidden=32)
    chosen = {"index_n_heads": 16, "index_head_dim": 8, "index_topk": 16, "num_key_value_heads": 4}  # fewer heads choose by lot
    latent = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2}
    language = text("mistral_large4_text", processor.tokenizer, 32, 4, **chosen, **latent, **experts)
    vision, shown = model.config.vision_config.to_dict(), model.config.image_token_id
    config = hf.MistralLarge4Config(text_config=language, vision_config=vision, image_token_index=shown)
    return hf.MistralLarge4ForConditionalGeneration(config), processor


def hy_v4_vl():
    """Several hidden states side by side, and keys that an index chooses."""
    tokenizer = make_tokenizer()
    chosen = {"index_n_heads": 16, "index_head_dim": 8, "index_topk": 16, "hc_mult": 2}
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    config = hf.HYV4VLConfig(
        text_config=text("hy_v4_vl_text", tokenizer, 32, 3, **chosen, **latent, **experts, rope_parameters=rope),
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 14,
            "out_hidden_size": 32, "max_image_size": 112,
        },
        **ids(tokenizer, image_token_id="<|image_pad|>", video_token_id="<|video_pad|>"),
    )  # fmt: skip
    images, videos = hf.HYV4VLImageProcessor(size=SIZE, patch_size=14), hf.HYV4VLVideoProcessor(patch_size=14)
    processor = hf.HYV4VLProcessor(images, tokenizer, videos, chat_template=tokenizer.chat_template)
    return hf.HYV4VLForConditionalGeneration(config), processor


def muse_spark():
    """Muse Glimmer's picture part with experts; sounds aren't shown to it here."""
    model, processor = tiny.build("muse_glimmer", hidden=32)
    tokenizer = processor.tokenizer
    tokenizer.add_tokens(["<|audio|>", "<|soft_audio_start|>", "<|soft_audio_end|>"], special_tokens=True)
    experts = {"moe_intermediate_size": 32, "moe_hidden_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
    vision = {k: v for k, v in model.config.vision_config.to_dict().items() if k != "model_type"}
    config = hf.MuseSparkConfig(
        text_config=text("muse_spark_text", tokenizer, 32, 4, head_dim=8, sliding_window=16, **experts),
        vision_config=vision,
        audio_config={"hidden_sizes": [8] * 4, "depths": [1] * 4, "out_hidden_size": 32},
        out_hidden_size=128,
        projector_hidden_size=64,
        **ids(tokenizer, image_token_id="<|patch|>", video_token_id="<|video|>", audio_token_id="<|audio|>"),
    )
    sounds = hf.MuseSparkFeatureExtractor()
    parts = (processor.image_processor, processor.video_processor, tokenizer, sounds)
    return hf.MuseSparkForConditionalGeneration(config), hf.MuseSparkProcessor(*parts, chat_template=processor.chat_template)


def minicpm_ocr():
    """MiniCPM-V 4.6's parts, with processors that count the lines of a page."""
    model, processor = tiny.build("minicpmv4_6", hidden=32, layers=2)
    language = model.config.text_config.to_dict()
    vision = {k: v for k, v in model.config.vision_config.to_dict().items() if k != "model_type"} | {"insert_layer_id": 0}
    marks = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    shown = ids(processor.tokenizer, **marks)
    config = hf.MiniCPMOcrConfig(text_config=language, vision_config=vision, insert_layer_id=0, **shown)
    sizes = {"scale_resolution": 56, "patch_size": 7}
    parts = (hf.MiniCPMOcrImageProcessor(**sizes), hf.MiniCPMOcrVideoProcessor(**sizes), processor.tokenizer)
    layout = template(*marks.values())
    return hf.MiniCPMOcrForConditionalGeneration(config), hf.MiniCPMOcrProcessor(*parts, chat_template=layout)


def dots3_note():
    """Windows, full attention, and keys that an index chooses; sounds aren't shown to it here."""
    marks = ["<|imgpad|>", "<|video_pad|>", "<|audio_comp_pad|>"]
    tokenizer = make_tokenizer(special=marks, named={})
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    chosen = {"index_n_heads": 16, "index_head_dim": 8, "index_topk": 16, "qk_rope_head_dim": 8}
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2}
    experts["shared_experts_intermediate_size"] = 32
    windows = {"layer_types": ["indexed_attention", "sliding_attention", "full_attention", "sliding_attention"]}
    windows |= {"sliding_window": 16, **{f"swa_{name}": value for name, value in {**latent, **heads}.items()}}
    config = hf.Dots3NoteConfig(
        text_config=text("dots3_note_text", tokenizer, 32, 4, **latent, **chosen, **experts, **windows) | heads,
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "adapter_in_dim": 32,
            "adapter_out_dim": 32, "mlp_layer_types": ["dense", "dense"],
        },
        audio_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "feature_size": 16,
            "downsample_hidden_size": 8, "adapter_input_size": 32, "adapter_out_dim": 32,
        },
        **ids(tokenizer, image_token_id=marks[0], video_token_id=marks[1], audio_token_id=marks[2]),
    )  # fmt: skip
    still = {"size": SIZE, "temporal_patch_size": 1}
    parts = (hf.Qwen2VLImageProcessor(**still), tokenizer, hf.Qwen3VLVideoProcessor(**still, patch_size=14))
    sounds = hf.Dots3NoteFeatureExtractor(feature_size=16)
    processor = hf.Dots3NoteProcessor(*parts, sounds, chat_template=template(*marks[:2]))
    return hf.Dots3NoteForConditionalGeneration(config), processor


def inkling2():
    """Attention that counts tokens by their place in the row, and short convolutions."""
    return _inkling2("Inkling2", "inkling2_text", ["hybrid_sliding", "hybrid"])


def inkling2_loop():
    """Layers that a pass goes through twice."""
    loop = {"loop_layer_index_start": 1, "loop_layer_index_end": 2, "loop_num_passes": 2, "loop_gate_rank": 4}
    return _inkling2("Inkling2Loop", "inkling2_loop_text", ["hybrid_sliding", "hybrid", "hybrid_sliding"], **loop)


def _inkling2(name, language, kinds, **more):
    """name: of its classes. language: `model_type` of its language model. kinds: of its layers."""
    tokenizer = make_tokenizer(named={"image_token": "<|unused_200054|>"})
    heads = {"head_dim": 8, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "d_rel": 4}
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2}
    windows = {"sliding_window_size": 16, "rel_extent": 64, "n_layers_per_attn_res_block": 1, "layer_types": kinds}
    config = getattr(hf, f"{name}Config")(
        text_config=text(language, tokenizer, 32, len(kinds), **heads, **experts, **windows, **more)
        | {"unpadded_vocab_size": len(tokenizer)},
        vision_config={
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 20, "posemb_grid_size": 4,
            "projection_hidden_dim": 64, "text_hidden_size": 32,
        },
        **ids(tokenizer, image_token_id="<|unused_200054|>"),
    )  # fmt: skip
    processor = hf.Inkling2Processor(hf.Inkling2ImageProcessor(), tokenizer, chat_template=template("<|unused_200054|>"))
    return getattr(hf, f"{name}ForConditionalGeneration")(config), processor


def molmo2():
    """All pictures see each other. As in published checkpoints its placeholders have embeddings and no outputs."""
    tokenizer = make_tokenizer(named={"image_token": "<|image|>", "video_token": "<|video|>"})
    outputs = rows(tokenizer)
    tokenizer.add_tokens([f"<extra_{i}>" for i in range(outputs - len(tokenizer))])
    marks = {"image_start_token_id": "<im_start>", "low_res_image_start_token_id": "<low_res_im_start>"}
    marks |= {"image_end_token_id": "<im_end>", "image_patch_id": "<im_patch>"}
    marks |= {"frame_start_token_id": "<frame_start>", "frame_end_token_id": "<frame_end>"}
    tokenizer.add_tokens([*marks.values(), "<im_col>", "<im_low>"], special_tokens=True)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "hidden_size": 32, "intermediate_size": 64}
    heads |= {"initializer_range": 0.1}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    config = hf.Molmo2Config(
        text_config=text("molmo2_text", tokenizer, 32, 2, head_dim=8, additional_vocab_size=64, rope_parameters=rope)
        | {"vocab_size": outputs},
        vision_config=heads | {"num_hidden_layers": 2, "image_size": [28, 28], "patch_size": 7},
        adapter_config=heads | {"vision_feature_layer": [1, 0], "text_hidden_size": 32},
        **ids(tokenizer, **marks),
    )
    sizes = {"size": {"height": 28, "width": 28}, "patch_size": 7}
    images = hf.Molmo2ImageProcessor(**sizes, max_crops=4, overlap_margins=[1, 1])
    videos = hf.Molmo2VideoProcessor(**sizes, do_rescale=True, do_normalize=True)
    processor = hf.Molmo2Processor(images, videos, tokenizer, chat_template=template("<|image|>", "<|video|>"))
    return hf.Molmo2ForConditionalGeneration(config), processor


CLASSES = {
    granite_docling: "GraniteDocling",
    minicpm_ocr: "MiniCPMOcr",
    lfm3_vl: "Lfm3Vl",
    mistral_large4: "MistralLarge4",
    hy_v4_vl: "HYV4VL",
    muse_spark: "MuseSpark",
    molmo2: "Molmo2",
    dots3_note: "Dots3Note",
    inkling2: "Inkling2",
    inkling2_loop: "Inkling2Loop",
    apertus1p5: "Apertus1p5",
}
"""Families that not all accepted versions of transformers have -> the name of their classes."""


def lacking(build):
    """A mark for tests of a family that the installed transformers may lack."""
    name = f"{CLASSES[build]}ForConditionalGeneration"
    return pytest.mark.skipif(not hasattr(hf, name), reason=f"transformers {hf.__version__} has no {name}")
