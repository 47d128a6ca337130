"""Policies with the shapes of published Qwen2.5-VL models and random weights that are made on the device. Not a benchmark itself.

Nothing is written to disk or read from it, and the host holds no weights, so that 7B takes seconds on a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from mmrl.compute.devices import prepare_device
from mmrl.config.sections import LoraConfig, PolicyConfig
from mmrl.policies.vlm import tiny, vlm
from mmrl.policies.vlm.vlm import VLM
from model_shapes import CONFIGS

SIZES = ("tiny", "narrow", "3b", "7b")
EVERYWHERE = ["vision", "projector", "language"]
"""`target_modules` of adapters in all parts."""


def sized_parser(description: str | None, work: Mapping[str, Any], tiny_work: Mapping[str, Any]) -> argparse.ArgumentParser:
    """`--size`, `--device` and an option for each number of the work. What isn't given is filled in by `sized`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="3b")
    parser.add_argument("--device", default="cuda")
    for name, value in work.items():
        kind: dict[str, Any] = {"nargs": "+"} if isinstance(value, Sequence) else {}
        told = f"{_told(value)}; {_told(tiny_work[name])} with --size tiny"
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=told, **kind)
    return parser


def _told(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, Sequence) else str(value)


def sized(args: argparse.Namespace, work: Mapping[str, Any], tiny_work: Mapping[str, Any]) -> argparse.Namespace:
    """The arguments with the work of their size, where they don't say another."""
    for name, value in (tiny_work if args.size == "tiny" else work).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def check_room(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse 7B without adapters."""
    if args.size == "7b" and not args.lora:
        parser.error("--size 7b needs --lora RANK: its optimiser's state doesn't fit on one GPU")


def name_of(size: str) -> str:
    """`policy.model` of a size: what `mmrl plan` knows, or a tiny model."""
    named = {"tiny": "tiny:qwen2_5_vl", "narrow": "Qwen/Qwen2.5-VL-3B"}
    return named.get(size) or f"Qwen/Qwen2.5-VL-{size.upper()}"


def config_of(size: str, small: Any) -> Any:
    """The published shapes with the ids of a tiny model's config, so that the tiny model's processor works."""
    import transformers

    published, tied = CONFIGS[size], CONFIGS[size]["tie_word_embeddings"]
    text = small.text_config.to_dict() | published["text_config"] | {"rope_theta": 1e6, "layer_types": None}
    text["tie_word_embeddings"] = tied
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ids = {name: getattr(small, name) for name in names}
    return transformers.Qwen2_5_VLConfig(
        text_config=text, vision_config=published["vision_config"], tie_word_embeddings=tied, **ids
    )


def built(size: str, device: str, dtype: torch.dtype, attention: str = "sdpa") -> tuple[Any, Any]:
    """(model of that size with random weights on the device, a tiny model's processor)."""
    import transformers

    if size == "tiny":
        model, processor = tiny.build("qwen2_5_vl", dtype=dtype, attention=attention)
        return model.to(device), processor
    small, processor = tiny.build("qwen2_5_vl")
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.Qwen2_5_VLForConditionalGeneration._from_config(
            config_of(size, small.config), dtype=dtype, attn_implementation=attention
        )
    model.generation_config.eos_token_id = small.generation_config.eos_token_id
    return model, processor


@contextlib.contextmanager
def weights_made(size: str, device: str) -> Iterator[None]:
    """Inside, policies get the model of `built` instead of what `policy.model` names, unless the size is tiny."""
    real = vlm.load

    def load(config: PolicyConfig, name: str, seed: int) -> tuple[Any, Any]:
        prepare_device(device, config.dtype)
        return built(size, device, getattr(torch, config.dtype), config.dense_attention)

    if size != "tiny":
        vlm.load = load
    try:
        yield
    finally:
        vlm.load = real


def loaded(
    size: str,
    device: str,
    dtype: str = "bfloat16",
    lora: int = 0,
    parts: Sequence[str] = EVERYWHERE,
    batch_invariant: bool = False,
) -> VLM:
    """A policy of that size that never ends a completion. lora: rank of adapters in these parts, 0 to train all weights."""
    adapters = LoraConfig(rank=lora, alpha=lora, target_modules=[*parts]) if lora else None
    with weights_made(size, device):
        told: dict[str, Any] = {"dtype": dtype, "lora": adapters, "batch_invariant": batch_invariant}
        policy = VLM(PolicyConfig(model=name_of(size), **told), device=device)
    policy.bias_V[list(policy.eos)] = -torch.inf
    return policy
