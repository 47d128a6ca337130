"""Layers of language models whose passes a plan counts, against what torch keeps and computes of tiny models on a CPU."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmrl.config.load import parse_config
from mmrl.config.sections import LoraConfig, PolicyConfig, RlStage
from mmrl.policies.vlm import attention
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.plan import predict
from mmrl.train.plan.any_family import shapes_of
from mmrl.train.plan.kept import activations
from mmrl.train.plan.machines import GPUS
from mmrl.train.plan.memory import cache_token
from mmrl.train.plan.published import PUBLISHED
from mmrl.train.plan.seconds import CostModel
from mmrl.train.plan.trained import trained
from mmrl.train.plan.workload import CHUNK
from mmrl.train.resolve import with_algorithm_defaults
from plan_cases import a_micro_batch, kept

RL = RlStage(kind="rl", steps=1)


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
@pytest.mark.parametrize("family", [pytest.param("qwen3_5", marks=pytest.mark.slow), "qwen3_5_moe"])
def test_activations_are_what_torch_keeps(family, dtype):
    """Whether the last chunk of a completion is full or not."""
    vlm = VLM(PolicyConfig(model=f"tiny:{family}:hidden=128,layers=3", dtype=dtype))
    shapes, b = shapes_of(vlm.model.config.to_dict(), family), 4 if dtype == "float32" else 2
    for completion in (70, 2 * CHUNK):
        micro, planned = a_micro_batch(vlm, completion)
        assert activations(shapes, planned, b) == pytest.approx(kept(vlm, micro), rel=3e-3)
        with attention.small_blocks():
            found = kept(vlm, micro)
        assert activations(shapes, planned, b, dense=False) == pytest.approx(found, rel=3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("match", [["language"], ["*language_model*.q_proj", "*language_model*.in_proj_qkv"]])
def test_adapters_leave_out_what_frozen_weights_do_not_need(match, dtype):
    lora = LoraConfig(rank=8, target_modules=match)
    vlm = VLM(PolicyConfig(model="tiny:qwen3_5_moe:hidden=128,layers=3", dtype=dtype, lora=lora))
    shapes = shapes_of(vlm.model.config.to_dict(), "")
    weights = trained(shapes, lora, RL)
    assert weights.adapters == weights.moved == sum(p.numel() for _, p in vlm.parameters()) and not weights.vision
    micro, planned = a_micro_batch(vlm, 70)
    found = activations(shapes, planned, 4 if dtype == "float32" else 2, weights=weights)
    assert found == pytest.approx(kept(vlm, micro), rel=0.06)  # the first layer's input needs no gradient


@pytest.mark.parametrize("family", [pytest.param("qwen3_5", marks=pytest.mark.slow), "qwen3_5_moe"])
def test_operations_are_those_that_torch_counts(family):
    vlm = VLM(PolicyConfig(model=f"tiny:{family}:hidden=64,layers=3", attn_implementation="eager"))
    if "moe" in family:  # torch doesn't count grouped products
        vlm.model.set_experts_implementation("eager")
    clock = CostModel(shapes_of(vlm.model.config.to_dict(), family), GPUS["h200"], "float32", "eager")
    micro, planned = a_micro_batch(vlm, 70, prompts=1)
    solved = {torch.ops.aten.linalg_solve_triangular: lambda a, x, *_, **__: a[-1] * torch.Size(x).numel()}
    with FlopCounterMode(display=False, custom_mapping=solved) as counter:
        vlm.logprobs(micro, 1.0)
    told = sum(n for op, n in counter.get_flop_counts()["Global"].items() if "attention" not in str(op))
    near = clock.tower(planned.patches, planned.patches).attention * clock.rate * clock.machine.fused
    # the tower's attention is one operator, which torch doesn't count on a CPU
    assert told == pytest.approx(clock.forward(planned, planned.patches).flops - near, rel=2e-3)


def test_a_state_has_as_many_numbers_as_a_cache_holds():
    vlm = VLM(PolicyConfig(model="tiny:qwen3_5_moe:hidden=128,layers=3"))
    text = shapes_of(vlm.model.config.to_dict(), "").text
    with torch.no_grad():
        cache = vlm.model(torch.arange(10, 17)[None], use_cache=True)["cache"]
    states = [layer for layer in cache.layers if hasattr(layer, "recurrent_states")]
    held = [state for layer in states for kind in (layer.conv_states, layer.recurrent_states) for state in _all(kind)]
    assert (text.linear, text.layers) == (len(states), 3)
    assert text.linear * text.state == sum(t.numel() for t in held)
    full = [layer for layer in cache.layers if layer not in states]
    assert cache_token(shapes_of(vlm.model.config.to_dict(), ""), 4) * 7 == sum(x.keys.nbytes + x.values.nbytes for x in full)


def _all(states):
    return states.values() if isinstance(states, dict) else states


def test_a_token_pays_for_its_experts_by_hand():
    """Of 40 layers, 10 have attention whose output has a gate, and 30 a delta net of 16 heads of keys and 32 of values."""
    clock = CostModel(shapes_of(PUBLISHED["Qwen/Qwen3.5-35B-A3B"], ""), GPUS["h200"], "bfloat16")
    full = 2048 * (2 * 16 * 256 + 2 * 2 * 256) + 16 * 256 * 2048
    delta = 2048 * (2 * 16 * 128 + 2 * 32 * 128 + 2 * 32) + 32 * 128 * 2048
    expert = 3 * 2048 * 512
    mlp = 2048 * (256 + 1) + 9 * expert
    seen = 4 * 16 * 256 * 101
    assert clock.text(1, 1, 100).flops == pytest.approx(2 * (10 * full + 30 * delta + 40 * mlp) + 10 * seen, rel=2e-3)
    read = 10 * full + 30 * delta + 40 * (2048 * 257 + expert + 256 * (1 - (31 / 32) ** 8) * expert)
    assert clock.text(8, 1, 100).products == pytest.approx(2 * read / clock.stream, rel=2e-3)
    assert cache_token(clock.shapes, 2) == 10 * 2 * 2 * 2 * 256


def test_a_run_of_a_published_one_is_planned():
    """Its weights are divided among the learners, and a penalty keeps scores of 256 experts."""
    policy = {"model": "Qwen/Qwen3.5-35B-A3B", "dtype": "bfloat16", "max_pixels": 401408}
    data = {"name": "x", "tasks": [{"id": "classification/digits"}], "policy": policy, "compute": {"learners": 8}}
    data |= {"train": {"gradient_checkpointing": True}, "generate": {"max_tokens": 512}}
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 8, "group_size": 8}
    plans = [
        predict(with_algorithm_defaults(parse_config(data | {"stages": [stage | more]})), GPUS["h200"], online=False)
        for more in ({}, {"experts": {"aux_loss_coef": 0.01}})
    ]
    plain, penalised = ({part.name: part.bytes for part in plan.stages[0].parts} for plan in plans)
    assert plain["weights"] == 2 * 35_107_181_936 // 8
    tokens = max(m.tokens for m in plans[0].stages[0].work.micro)
    assert penalised["activations"] - plain["activations"] == pytest.approx(2 * 4 * 256 * tokens, rel=0.01), "of a layer, again"
