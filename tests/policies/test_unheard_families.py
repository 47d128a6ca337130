"""Classes of transformers that nothing in mmrl names get full speed from the probe, without a line of code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from transformers.video_utils import VideoMetadata

from coded_families import apertus1p5, chameleon, emu3
from later_families import CLASSES, QWEN_MARKS, SIZE, lacking, molmo2
from mmrl.api.errors import UserError
from mmrl.api.media.clips import VideoFrames
from mmrl.api.types import Prompt
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.coordinate_formats import known_format
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.known_families import class_of
from mmrl.policies.vlm.tiny.checkpoint import eye, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, template
from mmrl.policies.vlm.vlm import VLM
from mmrl.testing import check_policy
from tried_families import TRIED, sam


def idefics2():
    """Pictures of any shape go through a resampler of learned queries."""
    named = {"image_token": "<image>", "image_boundary_token": "<fake_token_around_image>", "end_of_utterance_token": "<eou>"}
    tokenizer = make_tokenizer(named=named)
    config = hf.Idefics2Config(
        text_config=text("mistral", tokenizer, 32, 2, head_dim=8, sliding_window=None),
        vision_config=eye("", 32, 2),
        perceiver_config={
            "hidden_size": 32, "resampler_n_latents": 6, "resampler_depth": 1, "resampler_n_heads": 4, "resampler_head_dim": 8,
            "num_key_value_heads": 2,
        },
        **ids(tokenizer, image_token_id="<image>"),
    )  # fmt: skip
    images = hf.Idefics2ImageProcessor(size={"shortest_edge": 21, "longest_edge": 28}, do_image_splitting=False)
    processor = hf.Idefics2Processor(images, tokenizer, image_seq_len=6, chat_template=template("<image>"))
    return hf.Idefics2ForConditionalGeneration(config), processor


def vipllava():
    """Several layers of the vision tower, side by side."""
    tokenizer = make_tokenizer(named={"image_token": "<image>"})
    config = hf.VipLlavaConfig(
        text_config=text("llama", tokenizer, 32, 2),
        vision_config=eye("clip_vision_model", 32, 3),
        vision_feature_layers=[-1, -2],
        image_seq_length=16,
        **ids(tokenizer, image_token_index="<image>"),
    )
    processor = hf.LlavaProcessor(
        hf.CLIPImageProcessor(size={"shortest_edge": 28}, crop_size=28),
        tokenizer,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template("<image>"),
    )
    return hf.VipLlavaForConditionalGeneration(config), processor


def qwen4_exp():
    """Gated DeltaNet, attention to blocks that an index chooses, experts, and two copies of the hidden states."""
    tokenizer = make_tokenizer()
    config = tiny.build("qwen3_5_moe", hidden=32, layers=4)[0].config
    language = {k: v for k, v in config.text_config.to_dict().items() if k not in ("model_type", "intermediate_size")}
    language |= {"hc_count": 2, "hc_lowrank": 8, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16}
    language |= {"indexer_budget": 1024, "indexer_compress_ratio": 4}
    vision = {k: v for k, v in config.vision_config.to_dict().items() if k not in ("model_type", "deepstack_visual_indexes")}
    marks = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    marks |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    config = hf.Qwen4ExpConfig(text_config=language, vision_config=vision, tie_word_embeddings=True, **ids(tokenizer, **marks))
    return hf.Qwen4ExpForConditionalGeneration(config), tiny.build("qwen3_5_moe", hidden=32)[1]


def cosmos3_edge():
    """Types of tokens, by which it counts positions, have to be asked for."""
    tokenizer = make_tokenizer()
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    config = hf.Cosmos3EdgeConfig(
        text_config=text("cosmos3_edge_text", tokenizer, 32, 2, head_dim=8, rope_parameters=rope),
        vision_config={k: v for k, v in eye("", 32, 2, num_patches=16).items() if k != "image_size"},
        projector_hidden_size=64,
        **ids(tokenizer, **QWEN_MARKS),
    )
    sizes = {"size": {"shortest_edge": 14 * 14, "longest_edge": 14 * 14 * 64}, "patch_size": 7}
    images, videos = hf.Cosmos3EdgeImageProcessor(**sizes), hf.Cosmos3EdgeVideoProcessor(**sizes)
    processor = hf.Cosmos3EdgeProcessor(images, tokenizer, videos, chat_template=tokenizer.chat_template)
    return hf.Cosmos3EdgeForConditionalGeneration(config), processor


def cosmos3_omni():
    """Qwen3-VL's parts."""
    model, processor = tiny.build("qwen3_vl", hidden=32)
    parts = {name: getattr(model.config, name).to_dict() for name in ("text_config", "vision_config")}
    config = hf.Cosmos3OmniConfig(**parts, **ids(processor.tokenizer, **QWEN_MARKS))
    return hf.Cosmos3OmniForConditionalGeneration(config), processor


def hyperclovax_vision_v2():
    """Logits are multiplied by what Granite's are divided by."""
    tokenizer = make_tokenizer()
    vision = tiny.build("qwen2_5_vl", hidden=32)[0].config.vision_config.to_dict()
    config = hf.HyperCLOVAXVisionV2Config(
        text_config=text("hyperclovax", tokenizer, 32, 2, logits_scaling=0.25, residual_multiplier=0.5),
        vision_config=vision,
        **ids(tokenizer, image_token_id="<|image_pad|>", video_token_id="<|video_pad|>"),
    )
    images, videos = hf.Qwen2VLImageProcessor(size=SIZE), hf.Qwen2VLVideoProcessor(size=SIZE)
    processor = hf.HyperCLOVAXVisionV2Processor(images, tokenizer, videos, chat_template=tokenizer.chat_template)
    return hf.HyperCLOVAXVisionV2ForConditionalGeneration(config), processor


def cohere_compass():
    """Windows with rotary embeddings, full attention without; logits are scaled."""
    marks = ["<|IMAGE_PAD|>", "<|VIDEO_PAD|>", "<|VISION_START|>", "<|VISION_END|>"]
    tokenizer = make_tokenizer(special=marks, named={})
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
    kinds["rope_parameters"] = {"sliding_attention": rope, "full_attention": None}
    config = hf.CohereCompassConfig(
        text_config=text("cohere_compass_text", tokenizer, 32, 2, logit_scale=0.25, **kinds),
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": 14, "out_hidden_size": 32,
            "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
        },
        **ids(tokenizer, **dict(zip(QWEN_MARKS, marks, strict=True))),
    )  # fmt: skip
    images, videos = hf.CohereCompassImageProcessor(size=SIZE), hf.CohereCompassVideoProcessor(size=SIZE, patch_size=14)
    layout = template(f"{marks[2]}{marks[0]}{marks[3]}", f"{marks[2]}{marks[1]}{marks[3]}")
    processor = hf.CohereCompassProcessor(images, tokenizer, videos, chat_template=layout)
    return hf.CohereCompassForConditionalGeneration(config), processor


def nemotron_h_omni():
    """Mamba, experts and attention; its class has no output embeddings of its own. It is given another ear, as its own needs a
    package more."""
    named = {"image_token": "<image>", "image_start_token": "<img>", "image_end_token": "</img>", "audio_token": "<so_embedding>"}
    tokenizer = make_tokenizer(named=named, special=["<video>", "<so_start>", "<so_end>"])
    language = text("nemotron_h", tokenizer, 32, 4, head_dim=8, layers_block_type=["mamba", "moe", "attention", "mamba"])
    del language["num_hidden_layers"]
    language |= {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "n_routed_experts": 4}
    language |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32}
    config = hf.NemotronH_Omni_Reasoning_V3_Config(
        text_config=language,
        vision_config=eye("", 32, 2, image_size=56, patch_size=14, video_temporal_patch_size=2),
        vision_hidden_size=32,
        projector_hidden_size=64,
        **ids(tokenizer, image_token_id="<image>", video_token_id="<video>", audio_token_id="<so_embedding>"),
    )
    images = hf.NemotronH_Omni_Reasoning_V3ImageProcessor(patch_size=14, min_num_patches=4, max_num_patches=64)
    processor = hf.NemotronH_Omni_Reasoning_V3Processor(
        images,
        hf.NemotronH_Omni_Reasoning_V3VideoProcessor(),
        tokenizer,
        hf.WhisperFeatureExtractor(),
        chat_template=template("<image>", "<video>"),
    )
    return hf.NemotronH_Omni_Reasoning_V3(config), processor


def minimax_m3_vl():
    """Blocks of keys, of which an index chooses some."""
    marks = ["]<]image[>[", "]<]video[>[", "]<]start of image[>[", "]<]end of image[>["]
    tokenizer = make_tokenizer(special=marks, named={})
    sparse = {"layer_types": ["full_attention", "minimax_m3_sparse"], "mlp_layer_types": ["dense", "sparse"], "rotary_dim": 4}
    sparse |= {"index_n_heads": 2, "index_head_dim": 8, "head_dim": 8, "dense_intermediate_size": 64}
    sparse |= {"shared_intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2}
    config = hf.MiniMaxM3VLConfig(
        text_config=text("minimax_m3_vl_text", tokenizer, 32, 2, **sparse),
        vision_config=eye("", 96, 2, image_size=56, patch_size=14),
        projector_hidden_size=64,
        **ids(tokenizer, image_token_index=marks[0], video_token_index=marks[1]),
    )
    images, videos = hf.MiniMaxM3VLImageProcessor(), hf.MiniMaxM3VLVideoProcessor()
    processor = hf.MiniMaxM3VLProcessor(images, tokenizer, videos, chat_template=template(marks[0], marks[1]))
    return hf.MiniMaxM3SparseForConditionalGeneration(config), processor


def inkling():
    """Its class leaves out the logits of rows of its embeddings that have no token."""
    marks = ["<|unused_200054|>", "<|unused_200053|>", "<|content_image|>", "<|content_audio_input|>"]
    tokenizer = make_tokenizer(special=marks, named={})
    heads = {"head_dim": 8, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "d_rel": 4}
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    layers = {"mlp_layer_types": ["dense", "sparse"], "local_layer_ids": [0], "sliding_window_size": 16, "rel_extent": 64}
    config = hf.InklingConfig(
        text_config=text("inkling_text", tokenizer, 32, 2, **heads, **experts, **layers)
        | {"unpadded_vocab_size": len(tokenizer)},
        audio_config={"n_mel_bins": 8, "mel_vocab_size": 8},
        vision_config={"patch_size": 40, "hidden_size": 32, "n_layers": 2, "num_attention_heads": 4},
        **ids(tokenizer, image_token_id=marks[0], audio_token_id=marks[1], image_bos_token_id=marks[2]),
        **ids(tokenizer, audio_bos_token_id=marks[3]),
    )
    parts = (hf.InklingFeatureExtractor(), hf.InklingImageProcessor(), tokenizer)
    return hf.InklingForConditionalGeneration(config), hf.InklingProcessor(*parts, chat_template=template(marks[0]))


def pp_chart2table():
    """GOT-OCR 2.0's model with another processor."""
    tokenizer = make_tokenizer(named={"image_token": "<imgpad>"}, special=["<img>", "</img>"])
    config = hf.PPChart2TableConfig(
        text_config=text("qwen2", tokenizer, 32, 2),
        vision_config=sam(64),
        image_seq_length=1,
        **ids(tokenizer, image_token_index="<imgpad>"),
    )
    images = hf.PPChart2TableImageProcessor(size={"height": 64, "width": 64})
    processor = hf.PPChart2TableProcessor(images, tokenizer, chat_template=template("<img><imgpad></img>"))
    return hf.GotOcr2ForConditionalGeneration(config), processor


def deepseek_ocr2():
    """A tower whose queries see what is before them; its processor knows one size without tiles."""
    tokenizer = make_tokenizer(named={"image_token": "<image>"})
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32}
    kinds = {"mlp_layer_types": ["dense", "sparse"]}
    encoder = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = hf.DeepseekOcr2Config(
        text_config=text("deepseek_ocr2_text", tokenizer, 32, 2, **experts, **kinds) | {"num_key_value_heads": 4},
        vision_config={
            "sam_config": sam(768, window_size=8, downsample_channels=[24, 32]),
            "encoder_config": encoder | {"num_key_value_heads": 4, "vocab_size": 8},
        },
        **ids(tokenizer, image_token_id="<image>"),
    )
    images = hf.DeepseekOcr2ImageProcessor(size={"height": 768, "width": 768})
    return hf.DeepseekOcr2ForConditionalGeneration(config), hf.DeepseekOcr2Processor(
        images, tokenizer, chat_template=template("<image>")
    )


MOST = (*TRIED, qwen4_exp, cosmos3_omni, hyperclovax_vision_v2, cohere_compass, nemotron_h_omni, minimax_m3_vl)
MOST += (chameleon, emu3, inkling, pp_chart2table, deepseek_ocr2)
LATER = [pytest.param(build, marks=pytest.mark.slow) for build in MOST]
NEW = [pytest.param(build, marks=[pytest.mark.slow, lacking(build)]) for build in CLASSES]
ALONE = dict.fromkeys(
    ("minimax_m3_vl", "mistral_large4", "hy_v4_vl", "dots3_note", "glm5_next"),
    "each token attends to some keys, of which other completions would take places",
)
ALONE |= dict.fromkeys(("inkling_mm_model", "inkling2", "inkling2_loop", "chameleon"), "log-probabilities of a packed row differ")
"""Families whose completions have rows of their own -> why."""
KNOWN = ("glmga", "nemotron_h_omni", "molmo2", "minicpm_ocr", "apertus1p5", "chameleon", "emu3")
"""Families with an adapter, without a tiny checkpoint."""
VIDEOS = (
    "cosmos3_edge",
    "cosmos3_omni",
    "hyperclovax_vision_v2",
    "cohere_compass",
    "minimax_m3_vl",
    "video_llava",
    "llava_next_video",
    "glmga",
    "glm5_next",
    "qwen4_exp",
    "lfm3_vl",
    "hy_v4_vl",
    "muse_spark",
    "molmo2",
    "minicpm_ocr",
    "dots3_note",
)


@pytest.mark.parametrize("build", [idefics2, vipllava, cosmos3_edge, *LATER, *NEW])
def test_a_class_that_nobody_looked_at_shares_its_prompt(build, tmp_path):
    model, processor = build()
    kind = model.config.model_type
    assert kind not in tiny.FAMILIES and (known_format(kind) == (None, "")) == (kind != "molmo2")
    assert (class_of(kind) is Family) == (kind not in KNOWN)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    report = check_policy(str(tmp_path))
    assert report.ok, report
    notes = {r.name: r.note for r in report.results}
    assert ALONE.get(kind, "a group shares its prompt") in notes["a_group_shares_its_prompt"]
    assert ("not checked" not in notes["videos_equal_a_fresh_pass"]) == (kind in VIDEOS)


@pytest.mark.parametrize("build", [chameleon, emu3, pytest.param(apertus1p5, marks=lacking(apertus1p5))])
def test_pictures_that_are_ids_are_no_answers(build):
    model, processor = build()
    signs = ("IMGIMG", "<|visual token", "<|audio token")
    codes = {i for token, i in processor.tokenizer.get_vocab().items() if token.startswith(signs)}
    assert codes and codes <= {*class_of(model.config.model_type)(model, processor).banned_ids()}


@pytest.mark.slow
@lacking(molmo2)
def test_molmo2_reads_pictures_and_frames_as_its_own_forward_does(tmp_path):
    for part in molmo2():
        part.save_pretrained(tmp_path)
    policy = VLM(PolicyConfig(model=str(tmp_path)))
    frames = np.random.default_rng(0).integers(0, 255, (4, 64, 64, 3), np.uint8)
    video = {"type": "video", "video": VideoFrames(frames_THWC=frames, times_s=(0.0, 0.5, 1.0, 1.5), duration_s=2.0)}
    pictures = [{"type": "image", "image": Image.fromarray(frame)} for frame in (frames[0, :, :20], frames[1, :30])]
    given = {"return_tensors": "pt", "text_kwargs": {"add_special_tokens": False}}
    metadata = VideoMetadata(total_num_frames=2000, fps=1000.0, frames_indices=[0, 500, 1000, 1500])
    clip = {"do_sample_frames": False, "video_metadata": [[metadata]]}
    own = ({"images": [[p["image"] for p in pictures]]}, {"videos": [[torch.tensor(frames).permute(0, 3, 1, 2)]], **clip})
    for parts, media in zip((pictures, [video]), own, strict=True):
        inputs = policy.encode(Prompt(messages=[{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}]))
        marks = "".join("<|video|>" if part is video else "<|image|>" for part in parts)
        raw = policy.processor(text=[f"<|im_start|>user\n{marks}What?<|im_end|>\n<|im_start|>assistant\n"], **media, **given)
        assert inputs.ids.tolist() == raw["input_ids"][0].tolist()
        taken = {k: v for k, v in raw.items() if k != "video_metadata"}
        types = {k: v[None] for k, v in inputs.token_types.items()}
        with torch.no_grad():
            wanted, found = policy.model(**taken).logits, policy.model(input_ids=inputs.ids[None], **inputs.media, **types).logits
        assert (wanted - found).abs().max() < 1e-5
    with pytest.raises(UserError, match="reads pictures or a video, and this prompt has both"):
        policy.encode(Prompt(messages=[{"role": "user", "content": [pictures[0], video]}]))
    with pytest.raises(UserError, match="gives one answer"):  # a picture that follows would be seen by those before it
        policy.reader.check_turns()
