"""Where the gap between sampler and learner in bfloat16 comes from: each part of a layer rounds to 16 bits, alone or not at all.

    python benchmarks/gap_parts.py [--size narrow|tiny] [--width 256] [--prompts 2] [--group 4] [--tokens 16]

A model with random weights of bfloat16 computes in float32, and parts of it round what they give to bfloat16, as on a GPU, which
sums in float32. Sampler and learner are mmrl's: the one feeds a token at a time to a cache, the other computes groups that share
their prompt in one row, so that sums differ in their last bits and some fall on the other side of a rounding. `rows` has the mean
gap in nats a token for each case: `none`, `all`, `all but` a part and a part `alone`. `bfloat16` is the gap of torch's own
bfloat16 on this device. `layers` says how such a difference spreads there: a token that is fed to a cache against the same token
at the end of a row, by layer: the relative difference of the hidden states, and the share of numbers that differ. Prints one JSON
object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Collection, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers import DynamicCache

from gap_gpu import gaps
from machine import keep, machine
from mmrl.policies.vlm import attention
from mmrl.policies.vlm.vlm import VLM
from model_shapes import CONFIGS
from on_device import loaded

PARTS = {
    "residual": "the hidden states between layers, behind each sum",
    "norms": "what RMSNorm gives",
    "products": "what the matrices of a layer give",
    "activation": "what SiLU gives, and its product with the other half",
    "rotary": "the products and sums of rotary positions",
    "attention": "attention, within torch's kernel",
    "logits": "what the output embeddings give",
    "pictures": "the vision tower, all of it",
}


def half(x: Any) -> Any:
    return x.bfloat16() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def after(module: nn.Module, _: Any, output: Any) -> Any:
    """A forward hook."""
    return rounded(output)


def before_(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
    """A forward pre-hook. In place, as the residual that goes past a module is the tensor that it is given."""
    given[0].copy_(rounded(given[0]))


@contextlib.contextmanager
def rounding(policy: VLM, parts: Collection[str]) -> Iterator[None]:
    """These parts of the policy's model round inside. What its attention and its tower compute with is bfloat16 itself."""
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen

    text, tower = policy.model.model.language_model, policy.model.model.visual
    real, turn = attention._attended, qwen.apply_rotary_pos_emb

    def attended(module: Any, *given: torch.Tensor, **options: Any) -> Any:
        found, none = real(module, *(half(x) for x in given), **options)
        return found.float(), none

    def turned(*given: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
        return tuple(x.float() for x in turn(*(half(x) for x in given), **options))

    with contextlib.ExitStack() as held:

        def hook(*modules: nn.Module, first: bool = False) -> None:
            for one in modules:
                made = one.register_forward_pre_hook(before_) if first else one.register_forward_hook(after)
                held.callback(made.remove)

        if "attention" in parts:
            held.enter_context(mock.patch.object(attention, "_attended", attended))
        if "rotary" in parts:
            held.enter_context(mock.patch.object(qwen, "apply_rotary_pos_emb", turned))
        for layer in text.layers:
            norms = (layer.input_layernorm, layer.post_attention_layernorm)
            if "residual" in parts:
                hook(layer, norms[1], first=True)
            if "norms" in parts:
                hook(*norms)
            if "products" in parts:
                hook(*(one for one in layer.modules() if isinstance(one, nn.Linear)))
            if "activation" in parts:
                hook(layer.mlp.act_fn)
                hook(layer.mlp.down_proj, first=True)
        if "residual" in parts:
            hook(text.norm, first=True)
        if "norms" in parts:
            hook(text.norm)
        if "logits" in parts:
            hook(policy.model.get_output_embeddings())
        if "pictures" in parts:
            tower.bfloat16()
            held.callback(tower.float)
        yield


def cases() -> Iterator[tuple[str, Collection[str]]]:
    yield "none", ()
    yield "all", PARTS
    for part in PARTS:
        yield f"all but {part}", PARTS.keys() - {part}
        yield f"{part} alone", (part,)
    yield "all but residual, logits", PARTS.keys() - {"residual", "logits"}


@torch.inference_mode()
def layers(policy: VLM, tokens: int = 160) -> dict[int, dict[str, float]]:
    """Layer -> how far its outputs for a token are apart, read in a row of so many tokens and fed to a cache."""
    noise = torch.Generator().manual_seed(0)
    ids_1S = torch.randint(10, len(policy.bias_V), (1, tokens), generator=noise).to(policy.device)
    place = torch.arange(tokens, device=policy.device).expand(3, 1, -1)
    found: list[list[torch.Tensor]] = [[], []]
    whole, cache = (DynamicCache(config=policy.model.config) for _ in range(2))
    policy.family.step(ids_1S[:, :-1], None, place[..., :-1], {}, cache)
    for outputs, first, own in ((found[0], 0, whole), (found[1], tokens - 1, cache)):
        hooks = [
            layer.register_forward_hook(lambda m, a, o, into=outputs: into.append(o[0, -1].float()))
            for layer in policy.model.model.language_model.layers
        ]
        policy.family.step(ids_1S[:, first:], None, place[..., first:], {}, own)
        for one in hooks:
            one.remove()
    pairs = enumerate(zip(*found, strict=True), 1)
    return {
        number: {"apart": float(f"{((a - b).norm() / a.norm()).item():.2g}"), "share": round((a != b).float().mean().item(), 3)}
        for number, (a, b) in pairs
    }


def narrow(width: int) -> None:
    """Give the narrow model another width."""
    CONFIGS["narrow"]["text_config"] |= {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": width // 128,
    }
    CONFIGS["narrow"]["vision_config"]["out_hidden_size"] = width


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["narrow", "tiny"], default="narrow")
    parser.add_argument("--device", default="cpu")
    work = dict(width=256, prompts=2, group=4, tokens=16, pixels=56, prompt_tokens=40, budget=16384)
    for name, default in work.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    args = parser.parse_args()
    narrow(args.width)
    policy = loaded(args.size, args.device, "bfloat16")
    own, spread = gaps(policy, args)["shared"]["mean"], layers(policy)
    policy = loaded(args.size, args.device, "float32")
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.copy_(rounded(weight))
    found: dict[str, Any] = {"bfloat16": float(f"{own:.3g}"), "layers": spread, "rows": {}}
    for name, parts in cases():
        with rounding(policy, parts):
            found["rows"][name] = float(f"{gaps(policy, args)['shared']['mean']:.3g}")
        keep(found)
    print(json.dumps({"benchmark": "gap_parts", **vars(args), "parts": PARTS, **found, "machine": machine()}))


if __name__ == "__main__":
    main()
