"""Tiny models of families that mmrl has no adapter for: each family's own configuration, model and processor, random weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmrl.compute.torchvision import prepare_torchvision
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm import vlm as vlm_module
from mmrl.policies.vlm.vlm import VLM

prepare_torchvision()
import transformers as hf  # noqa: E402

SIDE, PATCH = 28, 7
"""Pixels of a tile and of a patch, for families with tiles."""
IMAGE, VIDEO, START, END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"


def text(kind: str, tokenizer: Any, **more: Any) -> dict[str, Any]:
    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 4096}
    return {"model_type": kind, **sizes, "bos_token_id": None, "pad_token_id": 0, "eos_token_id": tokenizer.eos_token_id, **more}


def eye(kind: str, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {"model_type": kind, **sizes, "image_size": SIDE, "patch_size": PATCH, **more}


def template(placeholder: str) -> str:
    """The chat template with this text in place of a picture."""
    return tiny.CHAT_TEMPLATE.replace(START + IMAGE + END, placeholder)


def gemma3() -> tuple[Any, Any]:
    tokenizer = tiny._tokenizer()
    for name, token in (("boi", START), ("image", IMAGE), ("eoi", END)):
        setattr(tokenizer, f"{name}_token", token)
        setattr(tokenizer, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))
    config = hf.Gemma3Config(
        text_config=text("gemma3_text", tokenizer, head_dim=16, query_pre_attn_scalar=16),
        vision_config=eye("siglip_vision_model", vision_use_head=False),
        mm_tokens_per_image=4,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        image_token_index=tokenizer.image_token_id,
    )
    images = hf.Gemma3ImageProcessor(size={"height": SIDE, "width": SIDE})
    processor = hf.Gemma3Processor(images, tokenizer, chat_template=template(START), image_seq_length=4)
    return hf.Gemma3ForConditionalGeneration(config), processor


def glm4v() -> tuple[Any, Any]:
    tokenizer = tiny._tokenizer(["<|begin_of_video|>", "<|end_of_video|>"])
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
    sizes = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
    tokens = {"image_token_id": IMAGE, "video_token_id": VIDEO, "image_start_token_id": START, "image_end_token_id": END}
    tokens |= {"video_start_token_id": "<|begin_of_video|>", "video_end_token_id": "<|end_of_video|>"}
    config = hf.Glm4vConfig(
        text_config=text("glm4v_text", tokenizer, rope_parameters=rope),
        vision_config={**sizes, "image_size": 56, "patch_size": 14},
        **{name: tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()},
    )
    limits = {"shortest_edge": 4 * 28 * 28, "longest_edge": 100 * 28 * 28}
    images, videos = hf.Glm4vImageProcessor(size=limits), hf.Glm4vVideoProcessor(size=limits)
    processor = hf.Glm4vProcessor(images, tokenizer, videos, chat_template=tiny.CHAT_TEMPLATE)
    return hf.Glm4vForConditionalGeneration(config), processor


def qwen3_5() -> tuple[Any, Any]:
    tokenizer = tiny._tokenizer()
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    linear = {f"linear_{name}_head_dim": 16 for name in ("key", "value")} | {f"linear_num_{n}_heads": 2 for n in ("key", "value")}
    layers = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 32, "rope_parameters": rope}
    sizes = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64, "patch_size": 16}
    tokens = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END}
    config = hf.Qwen3_5Config(
        text_config=text("qwen3_5_text", tokenizer, **linear, **layers),
        vision_config={**sizes, "num_position_embeddings": 256},
        **{name: tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()},
    )
    return hf.Qwen3_5ForConditionalGeneration(config), tiny._processor("qwen3_vl", tokenizer, 16)


def _tiles(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """(model, tokenizer, options of the image processor) of Idefics3 and SmolVLM."""
    rows = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
    tokenizer = tiny._tokenizer(["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *rows])
    tokenizer.image_token = "<image>"
    config = getattr(hf, f"{name}Config")(
        text_config=text("llama", tokenizer),
        vision_config={k: v for k, v in eye("").items() if k != "model_type"},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=0,
    )
    sizes = {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    return getattr(hf, f"{name}ForConditionalGeneration")(config), tokenizer, sizes


def idefics3() -> tuple[Any, Any]:
    model, tokenizer, sizes = _tiles("Idefics3")
    images = hf.Idefics3ImageProcessor(**sizes)
    return model, hf.Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=template("<image>"))


def smolvlm() -> tuple[Any, Any]:
    """The processor reads a package that writes numbers as words, for videos alone."""
    from transformers.models.smolvlm import processing_smolvlm

    model, tokenizer, sizes = _tiles("SmolVLM")
    images, videos = hf.SmolVLMImageProcessor(**sizes), hf.SmolVLMVideoProcessor(**sizes, num_frames=4, fps=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processing_smolvlm, "num2words", str)
        return model, hf.SmolVLMProcessor(images, tokenizer, videos, image_seq_len=4, chat_template=template("<image>"))


def llava_onevision() -> tuple[Any, Any]:
    tokenizer = tiny._tokenizer()
    grids = [[SIDE * high, SIDE * wide] for high in (1, 2) for wide in (1, 2)]
    config = hf.LlavaOnevisionConfig(
        text_config=text("qwen2", tokenizer),
        vision_config=eye("siglip_vision_model", vision_use_head=False),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        video_token_index=tokenizer.convert_tokens_to_ids(VIDEO),
        image_grid_pinpoints=grids,
    )
    images = hf.LlavaOnevisionImageProcessor(size={"height": SIDE, "width": SIDE}, image_grid_pinpoints=grids)
    processor = hf.LlavaOnevisionProcessor(
        images,
        tokenizer,
        hf.LlavaOnevisionVideoProcessor(),
        num_image_tokens=(SIDE // PATCH) ** 2,
        vision_feature_select_strategy="full",
        chat_template=template(IMAGE),
    )
    return hf.LlavaOnevisionForConditionalGeneration(config), processor


def mistral3() -> tuple[Any, Any]:
    tokenizer = tiny._tokenizer(["[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    config = hf.Mistral3Config(
        text_config=text("mistral", tokenizer, head_dim=16, sliding_window=None),
        vision_config=eye("pixtral", image_size=4 * SIDE),
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
    )
    images = hf.PixtralImageProcessor(patch_size={"height": 2 * PATCH, "width": 2 * PATCH}, size={"longest_edge": 4 * SIDE})
    processor = hf.PixtralProcessor(images, tokenizer, patch_size=PATCH, spatial_merge_size=2, chat_template=template("[IMG]"))
    return hf.Mistral3ForConditionalGeneration(config), processor


BUILDERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    build.__name__: build for build in (gemma3, glm4v, qwen3_5, idefics3, smolvlm, llava_onevision, mistral3)
}


@functools.cache
def policy(family: str) -> VLM:
    """A policy whose weights are larger than an initialisation's, so that what a token sees shows in the probabilities."""
    with torch.random.fork_rng(devices=[]), pytest.MonkeyPatch.context() as patch:
        torch.manual_seed(0)
        model, processor = BUILDERS[family]()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, 0.1)
        patch.setattr(vlm_module, "load", lambda *_: (model, processor))
        return VLM(PolicyConfig(model=f"tiny/{family}"))
