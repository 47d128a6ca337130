"""The cost of adapters in a plan, beside what they compute on torch's meta device."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from mmrl.api.errors import UserError
from mmrl.config.sections import LoraConfig, RunConfig
from mmrl.policies import lora_products
from mmrl.policies.lora import add_adapters
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.plan import adapters, predict
from mmrl.train.plan.adapters import Adapters, adapted_parts
from mmrl.train.plan.counter import Counter
from mmrl.train.plan.machines import GPUS
from mmrl.train.plan.memory import LOGIT_CHUNK, logits
from mmrl.train.plan.traced import trace_both
from mmrl.train.resolve import with_algorithm_defaults

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


@pytest.mark.parametrize("dtype, size", [(torch.bfloat16, 2), (torch.float16, 2), (torch.float32, 4)], ids=str)
@pytest.mark.parametrize("rank, tokens, wide, out", [(32, 8192, 4096, 11008), (8, 20_000, 1024, 512), (32, 256, 4096, 11008)])
def test_what_adapters_move_and_compute_is_what_they_do_without_numbers(dtype, size, rank, tokens, wide, out):
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"one": torch.nn.Linear(wide, out, bias=False)}).to(dtype)
    add_adapters(model, LoraConfig(rank=rank, target_modules=["one"]), 0, torch.device("meta"))
    layer = model["one"]
    given, slope = torch.empty(tokens, wide, device="meta", dtype=dtype), torch.empty(tokens, out, device="meta", dtype=dtype)
    with_them, without = passed(layer, given, slope), passed(layer.base_layer, given, slope)
    clock = Adapters({"text": ((wide, out, 3),)}, rank, H200, size, H200.flops, splits=dtype == torch.bfloat16)
    for cost, own, bare in zip((clock.forward("text", tokens), clock.backward("text", tokens)), with_them, without, strict=True):
        assert cost.streaming * clock.stream / 3 == pytest.approx(own.moved - bare.moved, rel=0.05)
        split = dtype == torch.bfloat16 and tokens * wide >= lora_products.MANY
        empty = 0 if not split else 3 if own is with_them[0] else 4  # which start nothing
        launch = H200.launch * (1 if own is with_them[0] else H200.behind)
        assert cost.starting / launch / 3 == pytest.approx(own.operations - bare.operations - empty)
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
    added |= {"lm_head.lora_A.default.weight": (4, 8), "lm_head.lora_B.default.weight": (99, 4)}
    assert adapted_parts(added) == {"text": ((8, 32, 3),), "tower": ((16, 16, 3),), "head": ((8, 99, 1),)}
    assert adapted_parts({}) == {"text": (), "tower": (), "head": ()}


def stage_of(lora, model="Qwen/Qwen2.5-VL-7B", dtype="bfloat16"):
    data = {
        "name": "adapted",
        "policy": {"model": model, "dtype": dtype, "lora": lora},
        "tasks": [{"id": "toy/colour"}],
        "stages": [{"kind": "sft", "steps": 1, "batch_size": 32}],
    }
    return predict(with_algorithm_defaults(RunConfig.model_validate(data)), H200, online=False).stages[0]


def planned(*given, **more):
    return {part.name: part.seconds for part in stage_of(*given, **more).seconds}


@pytest.mark.parametrize("dtype, size", [(torch.bfloat16, 2), (torch.float32, 4)], ids=str)
@pytest.mark.parametrize("tokens", [512, 2048])
def test_logits_of_an_adapted_head_are_what_they_are_without_numbers(dtype, size, tokens):
    """More than fit at once are computed again, with all that autograd keeps of them."""
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"lm_head": torch.nn.Linear(256, 2**15, bias=False)}).to(dtype)
        add_adapters(model, LoraConfig(rank=8, target_modules=["lm_head"]), 0, torch.device("meta"))
        x, targets = torch.empty(tokens, 256, dtype=dtype, requires_grad=True), torch.empty(tokens, dtype=torch.int64)
        vlm = SimpleNamespace(bias_V=torch.empty(2**15), _at_once=LOGIT_CHUNK // 2**15)
    vlm.distribution = partial(VLM.distribution, vlm)
    scored = partial(VLM._score, vlm, temperature=1.0, entropy_gradient=False)
    _, backward, _ = trace_both(lambda: VLM._by_chunk(vlm, lambda v, t: scored(v, model["lm_head"], t), x, targets)[0])
    shapes = SimpleNamespace(text=SimpleNamespace(vocabulary=2**15, hidden=256, bounded=False))
    assert logits(shapes, tokens, size, trained=False, adapted=True) == pytest.approx(backward.peak, rel=0.13)


def test_adapters_of_a_head_cost_their_products_by_hand():
    """32 completions of 256 tokens, whose logits are computed for 220 tokens at a time, and again for the backward pass."""
    language, both, alone = (
        stage_of({"rank": 32, "target_modules": list(m)}) for m in (["language"], ["language", "head"], ["head"])
    )
    assert both.weights.moved - language.weights.moved == alone.weights.moved == 32 * (3584 + 152064)
    named = [{part.name: part for part in stage.seconds} for stage in (language, both, alone)]
    forward, backward = (
        named[1][f"update: {which}"].flops - named[0][f"update: {which}"].flops for which in ("forward", "backward")
    )
    once = 2 * 32 * 256 * 32 * (3584 + 152064)
    assert (forward, backward) == (pytest.approx(once, rel=0.01), pytest.approx(2 * once, rel=0.01))
    assert named[1]["update: backward"].seconds > named[0]["update: backward"].seconds + 3 * 32 * 256 * 152064 * 8 / 4.8e12
    memory = [{part.name: part.bytes for part in stage.parts} for stage in (language, both, alone)]
    assert memory[1]["logits"] - memory[0]["logits"] == LOGIT_CHUNK * 2 * 4, "its log-probabilities are kept for autograd"
    assert memory[2]["activations"] < memory[1]["activations"] / 100, "no gradient goes beyond the head"
    assert named[2]["update: backward"].seconds < named[1]["update: backward"].seconds / 3


@pytest.mark.parametrize(
    "model, match", [("Qwen/Qwen2.5-VL-7B", "*.q_porj"), ("Qwen/Qwen2.5-VL-3B", "head")], ids=["no such layer", "tied head"]
)
def test_adapters_that_no_layer_gets_are_refused_as_the_run_refuses_them(model, match):
    with pytest.raises(UserError, match=r"policy\.lora\.target_modules = .* matches no linear layer"):
        planned({"target_modules": [match]}, model)


@pytest.mark.slow
def test_float16_is_planned_without_split_factors_which_are_faster():
    lora = {"target_modules": ["language", "vision"]}
    assert planned(lora)["update: backward"] < planned(lora, dtype="float16")["update: backward"]
