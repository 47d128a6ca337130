"""Families whose layers and pictures a plan counts by passes without numbers, against what torch keeps and computes of tiny
models."""

import json

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.config.sections import LoraConfig, PolicyConfig, RlStage
from mmrl.policies.vlm import attention, tiny
from mmrl.policies.vlm.experts import has_experts
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.plan import experts, predict
from mmrl.train.plan.any_family import counted_shapes
from mmrl.train.plan.configs import PASSES
from mmrl.train.plan.kept import activations, recompute_bytes
from mmrl.train.plan.layers import adapted, without_layers
from mmrl.train.plan.machines import GPUS
from mmrl.train.plan.memory import cache_token
from mmrl.train.plan.seconds import CostModel
from mmrl.train.plan.skeletons import skeleton
from mmrl.train.plan.sources import find_shapes
from mmrl.train.plan.trained import trained
from mmrl.train.resolve import with_algorithm_defaults
from plan_cases import a_micro_batch, kept

SIDE = 112
OFF = {"muse_glimmer": 0.07, "aya_vision": 0.03}
"""By what share planned activations may be off, where it isn't 0.02."""
DAILY = "llama4"
FAMILIES = [*(f for f in tiny.FAMILIES if tiny.model_type(f"tiny:{f}:layers=3") in PASSES)]


def both(family, dtype="float32", **more):
    """(the policy, its shapes with a picture)."""
    config = PolicyConfig(model=f"tiny:{family}:hidden=128,layers=3", dtype=dtype, **more)
    return VLM(config), find_shapes(config).shapes.seeing(SIDE**2)


def test_every_family_is_compared():
    assert {tiny.model_type(f"tiny:{family}:layers=3") for family in FAMILIES} == {*PASSES}


@pytest.mark.parametrize("dtype, size", [pytest.param("float32", 4, marks=pytest.mark.slow), ("bfloat16", 2)])
@pytest.mark.parametrize("family", [f if f == DAILY else pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES])
def test_activations_are_what_torch_keeps(family, dtype, size):
    vlm, shapes = both(family, dtype)
    assert dict(shapes.named()) == {name: tuple(p.shape) for name, p in vlm.model.named_parameters()}
    micro, planned = a_micro_batch(vlm, 70, size=(SIDE, SIDE), patches=shapes.seen.patches)
    with attention.small_blocks():
        found = kept(vlm, micro)
    assert activations(shapes, planned, size, dense=False) == pytest.approx(found, rel=OFF.get(family, 0.02))
    if family != "kimi_k25":  # whose values are narrower than its keys, so that on a CPU torch's attention keeps all pairs
        assert activations(shapes, planned, size) == pytest.approx(kept(vlm, micro), rel=OFF.get(family, 0.02))
    shown, bare = (len(vlm.encode(cases.prompt(0, images=n, size=(SIDE, SIDE))).ids) for n in (1, 0))
    assert shapes.tokens_of(SIDE**2) + 2 == pytest.approx(shown - bare, abs=2), "what stands before and behind it"


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_operations_are_those_that_torch_counts(family):
    vlm, shapes = both(family, attn_implementation="eager")
    if has_experts(vlm.model) and family not in ("llama4", "step3p7"):  # torch doesn't count grouped products
        vlm.model.set_experts_implementation("eager")
    clock = CostModel(shapes, GPUS["h200"], "float32", "eager")
    micro, planned = a_micro_batch(vlm, 70, prompts=1, size=(SIDE, SIDE), patches=shapes.seen.patches)
    with FlopCounterMode(display=False) as counter:
        vlm.logprobs(micro, 1.0)
    told = sum(n for op, n in counter.get_flop_counts()["Global"].items() if "attention" not in str(op))
    near = clock.tower(planned.patches, planned.patches).attention * clock.rate * clock.machine.fused
    found = clock.forward(planned, planned.patches).flops  # some towers' attention is an operator that torch doesn't count
    rel = 1e-2 if family == "ernie4_5_vl_moe" else 2e-3  # whose experts for pictures are narrower
    assert found == pytest.approx(told, rel=rel) or found - near == pytest.approx(told, rel=rel)


@pytest.mark.slow
@pytest.mark.parametrize("match", [["language"], ["language", "vision"]])
def test_adapters_leave_out_what_frozen_weights_do_not_need(match):
    lora = LoraConfig(rank=8, target_modules=match)
    vlm, shapes = both("internvl", "bfloat16", lora=lora)
    weights = trained(shapes, lora, RlStage(kind="rl", steps=1))
    assert weights.moved == sum(p.numel() for _, p in vlm.parameters()) and weights.vision == ("vision" in match)
    micro, planned = a_micro_batch(vlm, 70, size=(SIDE, SIDE), patches=shapes.seen.patches)
    assert activations(shapes, planned, 2, weights=weights) == pytest.approx(
        kept(vlm, micro), rel=0.08
    )  # the first layer's input needs no gradient
    again, whole = (activations(shapes, planned, 2, on, weights) for on in (True, False))
    assert again + recompute_bytes(shapes, planned, 2, weights) < whole * 0.6


@pytest.mark.slow
def test_published_mixtures_of_experts_by_hand():
    """DeepSeek V3's sizes, which Kimi K2.5's language model has by default, and Llama 4 Scout's, all of whose experts
    transformers computes for each token."""
    kimi, scout = (counted_shapes(transformers.AutoConfig.for_model(kind).to_dict(), None, "") for kind in ("kimi_k25", "llama4"))
    clock = CostModel(kimi, GPUS["h200"], "bfloat16")
    attention_of = 7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    active = 61 * attention_of + 3 * 3 * 7168 * 18432 + 58 * (9 * 3 * 7168 * 2048 + 256 * 7168)
    assert clock.text(1, 1).flops == pytest.approx(2 * active, rel=2e-3) and active == pytest.approx(35.7e9, rel=0.01)
    assert cache_token(kimi, 2) == 2 * 61 * (512 + 64), "what all heads share, and no keys and values"
    dense = 48 * (5120 * (5120 + 2 * 1024) + 5120 * 5120 + 17 * 3 * 5120 * 8192 + 16 * 5120)
    clock = CostModel(scout, GPUS["h200"], "bfloat16")
    assert clock.text(1, 1).flops == pytest.approx(2 * dense, rel=2e-3)
    assert clock.text(1, 1, 1).products >= 2 * dense / clock.stream, "and reads"


@pytest.mark.slow
def test_a_run_is_planned_with_as_many_tokens_as_tiles_have():
    data = {"name": "x", "tasks": [{"id": "classification/digits"}], "stages": [{"kind": "rl", "steps": 1}]}
    runs = [parse_config(data | {"policy": {"model": f"tiny:{family}:hidden=64,layers=2"}}) for family in ("internvl", "ovis2")]
    plan = predict(with_algorithm_defaults(runs[0]), GPUS["h200"], online=False)
    work = plan.stages[0].work
    assert work.prompt_tokens == 128 + 2 + plan.found.shapes.tokens_of(2**20) and work.patches > 50
    assert plan.as_json()["model"]["parts"].keys() == {"vision", "projector", "language"}
    with pytest.raises(UserError, match=r"is a ovis2, which mmrl plan can't count: it counts qwen2_vl.*step3p7"):
        predict(with_algorithm_defaults(runs[1]), GPUS["h200"], online=False)


def test_a_step_reads_and_starts_what_tokens_hit():
    """64 tokens hit nearly all experts of a layer, over which Step 3.7's class loops."""
    shapes = find_shapes(PolicyConfig(model="tiny:step3p7:hidden=128,layers=3")).shapes
    clock = CostModel(shapes, GPUS["h200"], "bfloat16")
    one, many = (clock.text(rows, 1, 100) for rows in (1, 64))
    t = shapes.text
    loop = sum(layer.loop * layer.count for layer in experts.counted(shapes, 2))
    more = loop * t.experts.count * (experts.share_hit(t.experts, 64) - experts.share_hit(t.experts, 1))
    assert many.starting - one.starting == pytest.approx(more * clock.machine.launch) and loop > 8 * len(t.where)


@pytest.mark.slow
def test_what_is_damaged_is_refused_at_no_cost():
    """A config.json with more tokens than can be listed, and a chat template without pictures; adapters take no memory."""
    data = tiny.skeleton(DAILY, hidden=128, layers=3).config.to_dict()
    words = data["text_config"]
    with pytest.raises(UserError, match=r"1,073,741,824 tokens are no vocabulary: its config.json is damaged, copy it again$"):
        counted_shapes(data | {"text_config": words | {"vocab_size": 2**30}}, None, "it")
    processor = tiny.processor(DAILY, hidden=128, layers=3)
    processor.chat_template = "no picture"
    with pytest.raises(
        UserError, match=r"^it can't be shown a picture without its weights, and mmrl plan can't count it: (?!prompt)"
    ):
        counted_shapes(data, processor, "it").seeing(SIDE**2)

    class Made(TorchDispatchMode):
        on_cpu = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            self.on_cpu += sum(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor) and not x.is_meta)
            return out

    lora = LoraConfig(rank=8, target_modules=["language"]).model_dump_json(exclude_unset=True)
    with Made() as made:
        adapted(without_layers(skeleton(json.dumps(data)), {0}, 2), lora)
    assert made.on_cpu < 100
