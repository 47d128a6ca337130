"""A tiny checkpoint of Llama 3.2 Vision."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers as hf

from mmrl.policies.vlm.tiny.checkpoint import text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, rows, template


def save_mllama(folder: Path) -> Path:
    """A checkpoint in which pictures show. As in published ones, its placeholder has an embedding and no output."""
    tokenizer = make_tokenizer(named={})
    outputs = rows(tokenizer)
    tokenizer.add_tokens([f"<extra_{i}>" for i in range(outputs - len(tokenizer))])
    tokenizer.add_tokens(["<|image|>"], special_tokens=True)
    tokenizer.bos_token = "<|vision_pad|>"
    layers = {"cross_attention_layers": [1, 3], "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    config = hf.MllamaConfig(
        text_config=text("mllama_text_model", tokenizer, 32, 4, **layers) | {"vocab_size": outputs, "bos_token_id": 5},
        vision_config={
            "hidden_size": 32, "num_hidden_layers": 3, "num_global_layers": 1, "attention_heads": 4, "intermediate_size": 64,
            "vision_output_dim": 96, "image_size": 28, "patch_size": 7, "intermediate_layers_indices": [0, 1],
        },
        **ids(tokenizer, image_token_index="<|image|>"),
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = hf.MllamaForConditionalGeneration(config)
        for name, weights in model.named_parameters():
            torch.nn.init.normal_(weights, 0.7 if name.endswith("gate") else float("norm" in name), 0.1)
    images = hf.MllamaImageProcessor(size={"height": 28, "width": 28}, max_image_tiles=4)
    model.save_pretrained(folder)
    hf.MllamaProcessor(images, tokenizer, chat_template=template("<|image|>")).save_pretrained(folder)
    return folder
