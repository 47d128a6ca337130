"""The cost of adapters in a plan, beside what they compute on torch's meta device."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.sections import LoraConfig
from mmrl.policies import lora_products
from mmrl.policies.lora import add_adapters
from mmrl.train.plan import adapters
from mmrl.train.plan.adapters import Adapters, adapted_parts
from mmrl.train.plan.machines import GPUS
from mmrl.train.plan.traced import Counter

H200 = GPUS["h200"]


def passed(layer, given, slope):
    """(forward, backward) passes of a layer."""
    x = given.clone().requires_grad_()
    counters = Counter(), Counter()
    with counters[0]:
        out = layer(x)
    with counters[1]:
        out.backward(slope)
    return [counter.counted() for counter in counters]


@pytest.mark.parametrize("dtype, size", [(torch.bfloat16, 2), (torch.float32, 4)], ids=str)
@pytest.mark.parametrize("rank, tokens, wide, out", [(32, 8192, 4096, 11008), (8, 20_000, 1024, 512), (32, 256, 4096, 11008)])
def test_what_adapters_move_and_compute_is_what_they_do_without_numbers(dtype, size, rank, tokens, wide, out):
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"one": torch.nn.Linear(wide, out, bias=False)}).to(dtype)
    add_adapters(model, LoraConfig(rank=rank, target_modules=["one"]), 0, torch.device("meta"))
    layer = model["one"]
    given, slope = torch.empty(tokens, wide, device="meta", dtype=dtype), torch.empty(tokens, out, device="meta", dtype=dtype)
    with_them, without = passed(layer, given, slope), passed(layer.base_layer, given, slope)
    clock = Adapters({"text": ((wide, out, 3),)}, rank, H200, size, H200.flops)
    for cost, own, bare in zip((clock.forward("text", tokens), clock.backward("text", tokens)), with_them, without, strict=True):
        assert cost.streaming * clock.stream / 3 == pytest.approx(own.moved - bare.moved, rel=0.05)
        split = size == 2 and tokens * wide >= lora_products.MANY
        empty = 0 if not split else 3 if own is with_them[0] else 4  # which start nothing
        assert cost.starting / H200.launch / 3 == pytest.approx(own.operations - bare.operations - empty)
        if not split:
            assert cost.flops / 3 == pytest.approx(own.flops - bare.flops)


def test_from_how_many_numbers_factors_are_split_is_the_same():
    assert adapters.MANY == lora_products.MANY


def test_matrices_are_counted_by_part_and_shape():
    names = {"model.language_model.layers.{}.mlp.up_proj": (8, 32), "model.visual.blocks.{}.attn.proj": (16, 16)}
    added = {}
    for name, (wide, out) in names.items():
        for number in range(3):
            added |= {f"{name.format(number)}.lora_A.default.weight": (4, wide)}
            added |= {f"{name.format(number)}.lora_B.default.weight": (out, 4)}
    assert adapted_parts(added) == (((8, 32, 3),), ((16, 16, 3),))
    assert adapted_parts({}) == ((), ())
