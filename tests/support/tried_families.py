"""Tiny checkpoints of families that docs/models.md names as tried, without an adapter and with classes of known parts."""

from __future__ import annotations

import transformers as hf

from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.tiny.checkpoint import HEADS, PATCH, SIDE, eye, text
from mmrl.policies.vlm.tiny.glm import ENDS, NAMED
from mmrl.policies.vlm.tiny.llava import GRIDS
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, template

CELLS = (SIDE // PATCH) ** 2
"""Patches of a picture."""
CLIP = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
SQUARE = {"height": SIDE, "width": SIDE}


def sam(side, **more):
    """A vision tower like that of Segment Anything."""
    sizes = {"hidden_size": 32, "output_channels": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "mlp_dim": 64}
    sizes |= {"image_size": side, "patch_size": 16, "window_size": 4, "global_attn_indexes": [], "initializer_range": 0.02}
    return sizes | more


def aria():
    """Experts, and a resampler with as many queries as the size of a picture asks for. Its processor knows two sizes."""
    tokenizer = make_tokenizer(named={"image_token": "<|img|>"})
    config = hf.AriaConfig(
        text_config=text("aria_text", tokenizer, 32, 2, moe_num_experts=4),
        vision_config=eye("idefics3_vision", 32, 2, image_size=490, patch_size=70),
        projector_patch_to_query_dict={49: 4, 196: 8},
        **ids(tokenizer, image_token_index="<|img|>"),
    )
    images = hf.AriaImageProcessor(max_image_size=490, min_image_size=70)
    sizes = {490: 4, 980: 8}
    processor = hf.AriaProcessor(images, tokenizer, chat_template=template("<|img|>"), size_conversion=sizes)
    return hf.AriaForConditionalGeneration(config), processor


def deepseek_vl_hybrid():
    """Two vision towers, one of which sees pictures in more detail."""
    tokenizer = make_tokenizer(named={"image_token": "<image_placeholder>"})
    config = hf.DeepseekVLHybridConfig(
        text_config=text("llama", tokenizer, 32, 2),
        vision_config=eye("siglip_vision_model", 32, 2, vision_use_head=False),
        high_res_vision_config=sam(128, model_type="sam_vision_model", global_attn_indexes=[0]),
        **ids(tokenizer, image_token_id="<image_placeholder>"),
    )
    colours = {f"{kind}image_{name}": [0.5] * 3 for kind in ("", "high_res_") for name in ("mean", "std")}
    images = hf.DeepseekVLHybridImageProcessor(size=SQUARE, high_res_size={"height": 128, "width": 128}, **colours)
    layout = template("<image_placeholder>")
    processor = hf.DeepseekVLHybridProcessor(images, tokenizer, chat_template=layout, num_image_tokens=CELLS)
    return hf.DeepseekVLHybridForConditionalGeneration(config), processor


def fast_vlm():
    """A tower of timm's."""
    tokenizer = make_tokenizer(named={"image_token": "<image>"})
    narrow = {"layers": [1] * 5, "embed_dims": [32] * 5, "mlp_ratios": [2] * 5}
    config = hf.FastVlmConfig(
        text_config=text("qwen2", tokenizer, 32, 2),
        vision_config={
            "architecture": "fastvit_mci3", "do_pooling": True, "global_pool": "avg", "hidden_size": 64,
            "model_args": narrow, "initializer_range": 0.02,
        },
        image_seq_length=4,
        **ids(tokenizer, image_token_index="<image>"),
    )  # fmt: skip
    images = hf.CLIPImageProcessor(size={"shortest_edge": 128}, crop_size={"height": 128, "width": 128})
    given = {"patch_size": 64, "vision_feature_select_strategy": "full", "chat_template": template("<image>")}
    model = hf.FastVlmForConditionalGeneration(config)
    for weights in model.model.vision_tower.parameters():  # each layer has the picture at a tenth of its size, as initialised
        weights.data *= 10 if weights.ndim > 1 else 1
    return model, hf.LlavaProcessor(images, tokenizer, **given)


def glmga():
    """GLM-4.6V's model with other processors."""
    model, processor = tiny.build("glm46v", hidden=32)
    parts = {name: getattr(model.config, name).to_dict() for name in ("text_config", "vision_config")}
    marks = ids(processor.tokenizer, **{f"{k}_id": token for k, token in (NAMED | ENDS).items()})
    limits = {"size": dict(processor.image_processor.size)}
    readers = (hf.GlmgaImageProcessor(**limits), processor.tokenizer, hf.GlmgaVideoProcessor(**limits))
    made = hf.Glm46VProcessor(*readers, chat_template=processor.chat_template)
    return hf.Glm46VForConditionalGeneration(hf.GlmgaConfig(**parts, **marks)), made


def glm5_next():
    """Kimi's linear attention, keys in blocks that an index chooses, experts, and copies of the hidden states."""
    tokenizer = make_tokenizer(special=list(ENDS.values()), named=NAMED)
    chosen = {"index_n_heads": 16, "index_head_dim": 8, "index_topk": 16, "index_kpool": 4, "hc_mult": 2}
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4}
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2}
    experts["mlp_layer_types"] = ["dense", "sparse"]
    linear = {"linear_head_dim": 8, "linear_num_heads": 4, "layer_types": ["linear_attention", "indexed_attention"]}
    config = hf.Glm5NextConfig(
        text_config=text("glm5_next_text", tokenizer, 32, 2) | chosen | latent | experts | linear,
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": HEADS, "out_hidden_size": 32, "image_size": 56,
            "projection_intermediate_size": 64,
        },
        **ids(tokenizer, **{f"{k}_id": token for k, token in (NAMED | ENDS).items()}),
    )  # fmt: skip
    shown = (f"<|begin_of_{kind}|><|{kind}|><|end_of_{kind}|>" for kind in ("image", "video"))
    parts = (hf.Glm5NextImageProcessor(), tokenizer, hf.Glm5NextVideoProcessor())
    return hf.Glm5NextForConditionalGeneration(config), hf.Glm5NextProcessor(*parts, chat_template=template(*shown))


def janus():
    """It can also write pictures, by a head that isn't used here."""
    named = {"image_token": "<image_placeholder>", "boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = make_tokenizer(named=named)
    codes = {"embed_dim": 8, "num_embeddings": 16, "latent_channels": 8, "base_channels": 32, "channel_multiplier": [1, 1]}
    codes |= {"num_res_blocks": 1, "num_patches": 4, "projection_dim": 32, "image_token_embed_dim": 32}
    config = hf.JanusConfig(
        text_config=text("llama", tokenizer, 32, 2),
        vision_config=eye("", 32, 2, mlp_ratio=2, projection_dim=32, num_image_tokens=CELLS),
        vq_config=codes,
        **ids(tokenizer, image_token_id="<image_placeholder>"),
    )
    images = hf.JanusImageProcessor(size=SQUARE)
    processor = hf.JanusProcessor(images, tokenizer, template("<image_placeholder>"), num_image_tokens=CELLS)
    return hf.JanusForConditionalGeneration(config), processor


def llava_next_video():
    """LLaVA-NeXT with frames, of which a token stands for four."""
    tokenizer = make_tokenizer(named={"image_token": "<image>", "video_token": "<video>"})
    config = hf.LlavaNextVideoConfig(
        text_config=text("llama", tokenizer, 32, 2),
        vision_config=eye("clip_vision_model", 32, 2),
        image_grid_pinpoints=GRIDS,
        **ids(tokenizer, image_token_index="<image>", video_token_index="<video>"),
    )
    videos = hf.LlavaNextVideoVideoProcessor(size={"shortest_edge": SIDE}, crop_size=SQUARE)
    images = hf.LlavaNextImageProcessor(size={"shortest_edge": SIDE}, crop_size=SQUARE, image_grid_pinpoints=GRIDS)
    processor = hf.LlavaNextVideoProcessor(videos, images, tokenizer, template("<image>", "<video>"), **CLIP)
    return hf.LlavaNextVideoForConditionalGeneration(config), processor


def qianfan_ocr():
    """InternVL's parts; its processor puts the tiles of a picture in the place of another sign."""
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    tokenizer = make_tokenizer(named=named, special=["<image>"])
    config = hf.QianfanOCRConfig(
        text_config=text("qwen3", tokenizer, 32, 2, head_dim=8),
        vision_config=eye("", 32, 2, drop_path_rate=0.0),
        image_seq_length=CELLS // 4,
        **ids(tokenizer, image_token_id="<IMG_CONTEXT>"),
    )
    images = hf.GotOcr2ImageProcessor(size=SQUARE)
    processor = hf.QianfanOCRProcessor(images, tokenizer, CELLS // 4, chat_template=template("<image>"))
    return hf.QianfanOCRForConditionalGeneration(config), processor


def video_llava():
    """Pictures and videos of eight frames, through towers of their own."""
    tokenizer = make_tokenizer(named={"image_token": "<image>", "video_token": "<video>"})
    config = hf.VideoLlavaConfig(
        text_config=text("llama", tokenizer, 32, 2),
        vision_config=eye("clip_vision_model", 32, 2),
        image_seq_length=CELLS,
        video_seq_length=8 * (CELLS + 1),
        **ids(tokenizer, image_token_index="<image>", video_token_index="<video>"),
    )
    sizes = {"size": {"shortest_edge": SIDE}, "crop_size": SQUARE}
    images, videos = hf.VideoLlavaImageProcessor(**sizes), hf.VideoLlavaVideoProcessor(**sizes)
    processor = hf.VideoLlavaProcessor(images, videos, tokenizer, chat_template=template("<image>", "<video>"), **CLIP)
    return hf.VideoLlavaForConditionalGeneration(config), processor


TRIED = (aria, deepseek_vl_hybrid, fast_vlm, glmga, glm5_next, janus, llava_next_video, qianfan_ocr, video_llava)
