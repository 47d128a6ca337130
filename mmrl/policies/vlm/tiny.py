"""Small but real checkpoints of a model family: built from its config, random weights, its own processor and chat layout.

Nothing is downloaded; the code paths are those of the full-size models. `tiny:qwen2_5_vl` in a run file builds the default
size, `tiny:qwen2_5_vl:hidden=256,layers=6` another; `python -m mmrl.policies.vlm.tiny FAMILY FOLDER` writes one to disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mmrl.api.errors import UserError
from mmrl.compute.torchvision import prepare_torchvision
from mmrl.policies.names import tiny_name, tiny_sizes

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "openvla")

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TAGS = ("<think>", "</think>", "<answer>", "</answer>")

CHAT_TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>\
{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

HIDDEN, LAYERS = 128, 2
# Phrases that tasks use, so that a prompt has about ten tokens instead of fifty bytes.
CORPUS = [
    "What digit is shown? What type of object is in the photo? Please choose one from list [ a, b, c].",
    "Please directly output the answer.",
    "Please output the thinking process in <think> </think> and final answer in <answer> </answer> tags.",
    "user assistant 0 1 2 3 4 5 6 7 8 9 yes no",
    "The colour of the shape is red green blue yellow black white circle square triangle",
]


def build(
    family: str = "qwen2_5_vl",
    *,
    hidden: int = HIDDEN,
    layers: int = LAYERS,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    attention: str = "sdpa",
    words: Sequence[str] = (),
) -> tuple[Any, Any]:
    """A model and its processor.

    hidden: width of the language model and the vision tower, a multiple of 32. layers: depth of both. words: texts that get a
    token of their own, 100 at most. Same arguments, same weights.
    """
    if family == "openvla":
        from mmrl.policies.openvla import tiny

        _refuse(family, hidden, layers)
        return tiny.build(hidden, layers, seed, dtype, attention)
    config, kind, tokenizer = _config(family, hidden, layers, words)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind._from_config(config, attn_implementation=attention)
    for parameter in model.parameters():  # not the buffers: rotary frequencies stay float32, as in from_pretrained
        parameter.data = parameter.data.to(dtype)
    ids = {t: tokenizer.convert_tokens_to_ids(t) for t in SPECIAL}
    model.generation_config.eos_token_id = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    return model, _processor(family, tokenizer, config.vision_config.patch_size)


def skeleton(family: str, *, hidden: int = HIDDEN, layers: int = LAYERS) -> Any:
    """The model without its weights, which are on torch's meta device."""
    if family == "openvla":
        from mmrl.policies.openvla import model as openvla
        from mmrl.policies.openvla import tiny

        with torch.device("meta"):
            return openvla.OpenVLA._from_config(tiny.config_of(hidden, layers))
    config, kind, _ = _config(family, hidden, layers)
    with torch.device("meta"):
        return kind._from_config(config)


def _config(family: str, hidden: int, layers: int, words: Sequence[str] = ()) -> tuple[Any, Any, Any]:
    """(configuration, the model's class, tokenizer)."""
    _refuse(family, hidden, layers)
    prepare_torchvision()
    import transformers

    tokenizer = _tokenizer(words)
    ids = {t: tokenizer.convert_tokens_to_ids(t) for t in SPECIAL}
    heads = 4
    half = hidden // heads // 2  # rotary pairs per head, split into time, height and width
    side = half * 3 // 8
    text: dict[str, Any] = dict(
        vocab_size=512,
        hidden_size=hidden,
        intermediate_size=hidden * 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        pad_token_id=ids["<|endoftext|>"],
        eos_token_id=ids["<|im_end|>"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [half - 2 * side, side, side]},
    )
    vision: dict[str, Any] = dict(
        depth=layers,
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_heads=heads,
        out_hidden_size=hidden,
        patch_size=14,
        spatial_merge_size=2,
        temporal_patch_size=2,
    )
    shared: dict[str, Any] = dict(
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    if family == "qwen2_vl":
        vision.update(embed_dim=hidden, mlp_ratio=2)
        config, kind = transformers.Qwen2VLConfig, transformers.Qwen2VLForConditionalGeneration
    elif family == "qwen2_5_vl":
        vision.update(window_size=112, fullatt_block_indexes=[layers - 1])
        config, kind = transformers.Qwen2_5_VLConfig, transformers.Qwen2_5_VLForConditionalGeneration
    else:
        text.update(head_dim=hidden // heads)
        text["rope_parameters"]["mrope_interleaved"] = True
        vision.update(patch_size=16, num_position_embeddings=256, deepstack_visual_indexes=[0])
        config, kind = transformers.Qwen3VLConfig, transformers.Qwen3VLForConditionalGeneration
    return config(text_config=text, vision_config=vision, **shared), kind, tokenizer


def parse(name: str, seed: int) -> dict[str, Any]:
    """`tiny:FAMILY[:key=value,...]` -> keyword arguments of `build`."""
    family, sizes = tiny_sizes(name, {"hidden": HIDDEN, "layers": LAYERS}, seed)
    _refuse(family, sizes["hidden"], sizes["layers"])
    return {"family": family, **sizes}


def full_name(name: str, seed: int) -> str:
    """`name` with everything that `parse` would add, so that it stands for the same weights whatever the seed of a run."""
    options = parse(name, seed)
    return tiny_name(options.pop("family"), options)


def _refuse(family: str, hidden: int, layers: int) -> None:
    if family not in FAMILIES:
        raise UserError(f"no tiny {family!r}: choose one of {', '.join(FAMILIES)}", key="policy.model")
    if hidden % 32 or not 32 <= hidden <= 4096 or not 1 <= layers <= 64:
        raise UserError(
            f"tiny hidden={hidden}, layers={layers}: hidden must be a multiple of 32 up to 4096, layers 1 to 64",
            key="policy.model",
        )


def vocabulary(family: str = "qwen2_5_vl") -> dict[str, int]:
    """Token -> id; the same in all families of Qwen."""
    if family == "openvla":
        from mmrl.policies.openvla import tiny

        return dict(tiny.tokenizer_of().get_vocab())
    return _tokenizer().get_vocab()


def _tokenizer(words: Sequence[str] = ()) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS * 20, trainer)
    bpe.add_tokens([AddedToken(t, normalized=False) for t in (*TAGS, *words)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=list(SPECIAL[1:])
    )
    tokenizer.image_token, tokenizer.video_token = "<|image_pad|>", "<|video_pad|>"
    tokenizer.vision_start_token, tokenizer.vision_end_token = "<|vision_start|>", "<|vision_end|>"
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _processor(family: str, tokenizer: Any, patch: int) -> Any:
    import transformers

    cell = (2 * patch) ** 2  # pixels behind one visual token
    limits = {"shortest_edge": 4 * cell, "longest_edge": 1024 * cell}
    images = transformers.Qwen2VLImageProcessor(patch_size=patch, size=limits)
    if family == "qwen3_vl":
        videos = transformers.Qwen3VLVideoProcessor(patch_size=patch, size=limits)
        return transformers.Qwen3VLProcessor(
            image_processor=images, tokenizer=tokenizer, video_processor=videos, chat_template=CHAT_TEMPLATE
        )
    videos = transformers.Qwen2VLVideoProcessor(patch_size=patch, size=limits)
    kind = transformers.Qwen2VLProcessor if family == "qwen2_vl" else transformers.Qwen2_5_VLProcessor
    return kind(image_processor=images, tokenizer=tokenizer, video_processor=videos, chat_template=CHAT_TEMPLATE)


def save(folder: str, family: str = "qwen2_5_vl", **options: Any) -> None:
    """Write a checkpoint that transformers and vLLM load like any other."""
    model, processor = build(family, **options)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("folder")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    save(args.folder, args.family, hidden=args.hidden, layers=args.layers, seed=args.seed)
