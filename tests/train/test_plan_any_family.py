"""Families whose layers and pictures a plan counts by passes without numbers, against what torch keeps and computes of tiny
models."""

import json
import math
import resource

import numpy as np
import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.api.media.sounds import Waveform
from mmrl.api.types import Prompt, user_message
from mmrl.config.load import parse_config
from mmrl.config.sections import LoraConfig, PolicyConfig, RlStage
from mmrl.policies.vlm import attention, tiny
from mmrl.policies.vlm.experts import has_experts
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.plan import predict
from mmrl.train.plan.any_family import shapes_of
from mmrl.train.plan.attention import Attention
from mmrl.train.plan.families import SHOWN
from mmrl.train.plan.kept import activations, counted, recompute_bytes
from mmrl.train.plan.kinds import adapted, without_layers
from mmrl.train.plan.machines import GPUS
from mmrl.train.plan.memory import cache_token
from mmrl.train.plan.seconds import CostModel
from mmrl.train.plan.seen import SECONDS
from mmrl.train.plan.skeletons import skeleton
from mmrl.train.plan.sources import find_shapes
from mmrl.train.plan.trained import trained
from mmrl.train.resolve import with_algorithm_defaults
from plan_cases import a_micro_batch, kept

SIDE = 112
OFF = {"ernie4_5_vl_moe": 0.02}
"""By what share planned activations may be off, where it isn't 0.01: its experts for pictures are narrower."""
DAILY = "llama4"
FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
HEARING = "qwen2_audio"
FAMILIES = [*(f for f in tiny.FAMILIES if f != HEARING and tiny.model_type(f"tiny:{f}:layers=3") in SHOWN)]


def both(family, dtype="float32", **more):
    """(the policy, its shapes with a picture)."""
    config = PolicyConfig(model=f"tiny:{family}:hidden=128,layers=3", dtype=dtype, **more)
    return VLM(config), find_shapes(config).shapes.seeing(SIDE**2)


def test_every_family_is_compared():
    assert {tiny.model_type(f"tiny:{family}:layers=3") for family in (*FAMILIES, HEARING)} == {*SHOWN}


@pytest.mark.parametrize("dtype, size", [pytest.param("float32", 4, marks=pytest.mark.slow), ("bfloat16", 2)])
def test_sounds_are_counted_in_the_place_of_pictures(dtype, size):
    vlm, shapes = both(HEARING, dtype)
    rate = vlm.processor.feature_extractor.sampling_rate
    sound = Waveform(samples_T=np.zeros(SECONDS * rate, dtype=np.float32), rate=rate)
    prompt = Prompt(messages=[user_message("what is it", sound)], id="p")
    micro, planned = a_micro_batch(vlm, 70, patches=shapes.seen.patches, prompt=prompt)
    bare = Prompt(messages=[user_message("what is it")], id="bare")
    assert shapes.tokens_of(1) + 2 == len(vlm.encode(prompt).ids) - len(vlm.encode(bare).ids)
    with attention.small_blocks():
        assert activations(shapes, planned, size, dense=False) == pytest.approx(kept(vlm, micro), rel=0.01)


@pytest.mark.parametrize("dtype, size", [pytest.param("float32", 4, marks=pytest.mark.slow), ("bfloat16", 2)])
@pytest.mark.parametrize("family", [f if f == DAILY else pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES])
def test_activations_are_what_torch_keeps(family, dtype, size):
    vlm, shapes = both(family, dtype)
    assert dict(shapes.named()) == {name: tuple(p.shape) for name, p in vlm.model.named_parameters()}
    micro, planned = a_micro_batch(vlm, 70, size=(SIDE, SIDE), patches=shapes.seen.patches)
    capped = size * len(micro.target_L) * len(vlm.bias_V) * (vlm.family.capabilities.head == "softcap")  # of the head, too
    with attention.small_blocks():
        found = kept(vlm, micro) - capped
    assert activations(shapes, planned, size, dense=False) == pytest.approx(found, rel=OFF.get(family, 0.01))
    blocks = Attention("auto", "cpu", shapes.text.capped).by_blocks(planned.length)
    if family != "kimi_k25":  # whose values are narrower than its keys, so that on a CPU torch's attention keeps all pairs
        found = kept(vlm, micro) - capped
        assert activations(shapes, planned, size, dense=not blocks) == pytest.approx(found, rel=OFF.get(family, 0.01))
    if family == "paligemma":  # whose processor takes no prompt without a picture
        assert shapes.tokens_of(SIDE**2) == int((vlm.encode(cases.prompt(0)).ids == vlm.model.config.image_token_id).sum())
        return
    shown, bare = (len(vlm.encode(cases.prompt(0, images=n, size=(SIDE, SIDE))).ids) for n in (1, 0))
    assert shapes.tokens_of(SIDE**2) + 2 == shown - bare, "with what stands before and behind it"


def operations(work):
    """Those that torch counts, with attention by its operator of a CPU, which it doesn't."""
    fused = {FUSED: lambda q, k, v, *_, **__: 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])}
    with FlopCounterMode(display=False, custom_mapping=fused) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_operations_are_those_that_torch_counts(family):
    vlm, shapes = both(family, attn_implementation="eager")
    if has_experts(vlm.model) and family not in ("llama4", "step3p7"):  # torch doesn't count grouped products
        vlm.model.set_experts_implementation("eager")
    clock = CostModel(shapes, GPUS["h200"], "float32", "eager")
    micro, planned = a_micro_batch(vlm, 70, prompts=1, size=(SIDE, SIDE), patches=shapes.seen.patches)
    rel = 1e-2 if family in ("ernie4_5_vl_moe", "minicpmv4_6", "minicpmv4_7") else 2e-3  # as docs/plan.md says
    assert clock.forward(planned, planned.patches).flops == pytest.approx(operations(lambda: vlm.logprobs(micro, 1.0)), rel=rel)


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
    kimi, scout = (shapes_of(transformers.AutoConfig.for_model(kind).to_dict(), "") for kind in ("kimi_k25", "llama4"))
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
    runs = [parse_config(data | {"policy": {"model": f"tiny:{family}:hidden=64,layers=2"}}) for family in ("internvl", HEARING)]
    plan = predict(with_algorithm_defaults(runs[0]), GPUS["h200"], online=False)
    work = plan.stages[0].work
    assert work.prompt_tokens == 128 + 2 + plan.found.shapes.tokens_of(2**20) and work.patches > 50
    assert plan.as_json()["model"]["parts"].keys() == {"vision", "projector", "language"}
    heard = predict(with_algorithm_defaults(runs[1]), GPUS["h200"], online=False)
    work = heard.stages[0].work
    assert work.prompt_tokens == 128 + 2 + heard.found.shapes.tokens_of(1) and work.patches > 50


def test_a_step_reads_and_starts_what_tokens_hit():
    """64 tokens hit nearly all experts of a layer, over which Step 3.7's class loops."""
    shapes = find_shapes(PolicyConfig(model="tiny:step3p7:hidden=128,layers=3")).shapes
    clock = CostModel(shapes, GPUS["h200"], "bfloat16")
    one, many = (clock.text(rows, 1, 100) for rows in (1, 64))
    t = shapes.text
    loop = sum(layer.loop * layer.count for layer in counted(shapes, 2))
    more = loop * t.experts.count * (t.experts.hit(64) - t.experts.hit(1))
    assert many.starting - one.starting == pytest.approx(more * clock.machine.launch) and loop > 8 * len(t.where)


def enlarged(processor):
    processor.image_processor.size = {"shortest_edge": 14**2 * 10**9, "longest_edge": 10**12}


def in_tiles(processor):
    processor.image_processor.max_patches = 10**6


def in_tokens(processor):
    processor.image_seq_length = 10**9


def in_squares(processor):
    processor.image_processor.size = {"longest_edge": 10**6}
    processor.image_processor.max_image_size = {"longest_edge": 1}


IN_SQUARES = "size and max_image_size of its processor cut a picture into 16,777,216 tiles, more than the 1,024"


def in_long_squares(processor):
    in_squares(processor)
    processor.image_processor.max_image_size = {"longest_edge": 512}
    processor.image_seq_len = 2**20


@pytest.mark.slow
@pytest.mark.parametrize(
    "family, damage, told",
    [
        ("glm4v", enlarged, "by its processor's files a picture takes more than 4 GiB"),
        ("internvl", in_tiles, "max_patches = 1,000,000 of its processor is more than the 1,024 of a plan"),
        ("llama4", in_tiles, "max_patches = 1,000,000 of its processor is more than the 1,024 of a plan"),
        ("idefics3", in_squares, IN_SQUARES),
        ("idefics3", in_long_squares, "64 tiles of its processor with 1,048,576 tokens each are more than the 1,048,576 tokens"),
        ("smolvlm", in_squares, IN_SQUARES),
        ("gemma3", in_tokens, "image_seq_length = 1,000,000,000 of its processor is more than the 1,048,576 of a plan"),
    ],
)
def test_absurd_files_of_a_processor_are_refused_before_their_work_is_done(family, damage, told):
    """A picture of 10^9 patches, a million tiles, and 10^9 tokens of a picture: nothing near as large is ever made."""
    data = tiny.skeleton(family, hidden=64, layers=3).config.to_dict()
    processor = tiny.processor(family, hidden=64, layers=3)
    damage(processor)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=f"^it: {told}( of a plan)?: (they are|its files are) damaged, copy them again"):
        shapes_of(data, "it", processor).seeing(SIDE**2)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20, "KiB"


@pytest.mark.slow
def test_what_is_damaged_is_refused_at_no_cost():
    """A config.json with more tokens than can be listed, and a chat template without pictures; adapters take no memory."""
    data = tiny.skeleton(DAILY, hidden=128, layers=3).config.to_dict()
    words = data["text_config"]
    with pytest.raises(UserError, match=r"1,073,741,824 tokens are no vocabulary: its config.json is damaged, copy it again$"):
        shapes_of(data | {"text_config": words | {"vocab_size": 2**30}}, "it")
    processor = tiny.processor(DAILY, hidden=128, layers=3)
    processor.chat_template = "no picture"
    with pytest.raises(
        UserError, match=r"^it can't be shown a picture without its weights, and mmrl plan can't count it: (?!prompt)"
    ):
        shapes_of(data, "it", processor).seeing(SIDE**2)

    class Made(TorchDispatchMode):
        on_cpu = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            self.on_cpu += sum(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor) and not x.is_meta)
            return out

    lora = LoraConfig(rank=8, target_modules=["language"]).model_dump_json(exclude_unset=True)
    with Made() as made:
        adapted(without_layers(skeleton(json.dumps(data)), [[0]], 2), lora)
    assert made.on_cpu < 100
