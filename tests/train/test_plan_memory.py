"""What a plan says that memory is taken by, against the bytes that torch holds on a CPU."""

import pytest
import torch
from transformers.masking_utils import causal_mask_function

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.config.sections import LoraConfig, PartConfig, PolicyConfig, PreferenceStage, RlStage, RunConfig, SftStage
from mmrl.policies.batches import Credit
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.nf4 import nf4_layers
from mmrl.policies.vlm import attention, block_masks, tiny
from mmrl.policies.vlm import vlm as vlms
from mmrl.policies.vlm.block_masks import block_mask
from mmrl.policies.vlm.packed_rows import PackedRows
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate import cache as caches
from mmrl.rollout.generate.cache import ReservedLayer
from mmrl.train.plan import attention as chosen
from mmrl.train.plan import predict
from mmrl.train.plan.any_family import shapes_of
from mmrl.train.plan.attention import Attention
from mmrl.train.plan.kept import activations, passing, recompute_bytes
from mmrl.train.plan.machines import GPUS, MIB
from mmrl.train.plan.memory import (
    LOGIT_CHUNK,
    PREFETCHED,
    ROOM,
    cache_capacity,
    cache_token,
    logits,
    peaks,
    pixels,
    resident,
    update,
    usable,
)
from mmrl.train.plan.published import PUBLISHED
from mmrl.train.plan.teams import whole_rows
from mmrl.train.plan.traced import trace_both
from mmrl.train.plan.trained import AT_ONCE, stepped_bytes, trained, weight_bytes
from mmrl.train.plan.workload import Micro, Sizes, workload
from mmrl.train.resolve import with_algorithm_defaults
from mmrl.train.update import offload, prefetch
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.pack_conversations import pack
from plan_cases import kept

RL = RlStage(kind="rl", steps=1)
EXPERTS = ("qwen3_vl_moe", "glm4v_moe", "qwen3_omni_moe")
"""Families with a mixture of experts."""


def run_file(**sections):
    data = {"name": "x", "tasks": [{"id": "classification/digits"}], "policy": {"model": "Qwen/Qwen2.5-VL-3B"}} | sections
    return RunConfig.model_validate({"stages": [{"kind": "rl", "steps": 1, "prompts_per_step": 4, "group_size": 4}]} | data)


def a_micro_batch(vlm, size=(112, 112)):
    """Two groups with a picture each, and what a plan takes them for."""
    prompts = [cases.prompt(0, size=size) for _ in range(2)]
    rollouts = cases.rollouts(vlm, prompts, longest=40)
    batch = pack(rollouts, Credit(advantages=torch.ones(8)), vlm, shared_prefix=True, budget=10_000)
    (micro,) = batch.micro
    rows, length = micro.ids_BS.shape
    patches = int(micro.media["image_grid_thw"].prod(-1).sum())
    return micro, Micro(rows=rows, length=length, patches=patches, targets=len(micro.target_L))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", [*cases.FAMILIES, *EXPERTS])
def test_activations_are_what_torch_keeps(family, dtype):
    """To 2%: what runs along tokens is counted one by one; indices, masks of pictures and the like are not."""
    vlm = VLM(PolicyConfig(model=f"tiny:{family}:hidden=128,layers=3", dtype=dtype))
    shapes, b = shapes_of(vlm.model.config.to_dict(), family), 4 if dtype == "float32" else 2
    micro, planned = a_micro_batch(vlm)
    assert activations(shapes, planned, b) == pytest.approx(kept(vlm, micro), rel=0.02)
    with attention.small_blocks():
        found = kept(vlm, micro)
    assert activations(shapes, planned, b, dense=False) == pytest.approx(found, rel=0.02)


def test_blocks_are_those_of_the_mask():
    assert (block_masks.BLOCK, attention.LONG["cpu"]) == (chosen.BLOCK, chosen.LONG)
    few = ((500, 0, 0), (128, 128, 3), (300, 57, 5), (1000, 200, 5), (90, 10, 4), (129, 300, 2))
    periodic = ((70, 96, 19), (128, 64, 9), (5, 1, 300), (130, 129, 9), (0, 384, 4))  # where completions begin at places again
    for prompt, completion, members in (*few, *periodic):
        segment = torch.cat([torch.zeros(prompt), torch.arange(1, members + 1).repeat_interleave(completion)])[None].long()
        rule, length = PackedRows(segment, object).rule(causal_mask_function), segment.shape[1]
        made = block_mask(batch_size=1, q_length=length, kv_length=length, mask_function=rule, device="cpu")
        assert chosen.blocks(prompt, completion, members) == int(made.kv_num_blocks.sum() + made.full_kv_num_blocks.sum())
    assert chosen.blocks(128 * 10**10, 128, 2) == 10**10 * (10**10 + 1) // 2 + 2 * (10**10 + 1), "a loop over it would take hours"


def test_who_has_a_dense_mask():
    row = Micro(rows=2, length=1000, patches=0, targets=1, prompt=500, completion=100, members=((5, 1), (4, 1)))
    assert Attention("auto", "cpu").pairs(row) == Attention("sdpa", "gpu").pairs(row) == 2 * 1000**2
    assert Attention("auto", "gpu").pairs(row) == 128**2 * (chosen.blocks(500, 100, 5) + chosen.blocks(500, 100, 4))
    assert [Attention(*x).by_blocks(1025) for x in (("auto", "cpu"), ("eager", "gpu"))] == [True, False]
    assert Attention("flex_attention", "cpu").by_blocks(10) and not Attention("auto", "cpu").by_blocks(1024)


def test_a_longer_row_pays_for_its_mask_once():
    shapes = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], "")
    one = activations(shapes, Micro(rows=1, length=4096, patches=0, targets=1), 2)
    four = activations(shapes, Micro(rows=4, length=1024, patches=0, targets=1), 2)
    assert one - four == 2 * (4096**2 - 4 * 1024**2)
    assert activations(shapes, Micro(rows=1, length=4096, patches=0, targets=1), 2, dense=False) < one - 2 * 4096**2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_checkpointing_keeps_what_goes_into_layers(dtype):
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=128,layers=3", dtype=dtype))
    shapes, b = shapes_of(vlm.model.config.to_dict(), ""), 4 if dtype == "float32" else 2
    micro, planned = a_micro_batch(vlm)
    with gradient_checkpointing(vlm.model):
        found = kept(vlm, micro)
    # cosines and sines aren't handed to torch to keep then: the layers' arguments hold them
    assert activations(shapes, planned, b, True) == pytest.approx(found, rel=0.12)
    assert recompute_bytes(shapes, planned, b) > (activations(shapes, planned, b) - activations(shapes, planned, b, True)) / 6


@pytest.mark.parametrize("on", [False, True])
def test_a_team_divides_activations_and_holds_the_rest_whole(on):
    """By hand: half of each layer, and whole the embeddings, the pixels, the vectors of pictures, and the states of targets."""
    shapes, sizes = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], "it"), Sizes(text=128, images=64, pixels=200_000, completion=512)
    parts = {}
    for team in (1, 2):
        policy = {"model": "Qwen/Qwen2.5-VL-3B", "dtype": "bfloat16"}
        compute = {"learners": 2, "sequence_parallel": team}
        config = run_file(compute=compute, policy=policy, train={"gradient_checkpointing": on})
        work, weights = workload(config, RL, shapes, sizes, 2), trained(shapes, None, RL)
        (parts[team],) = [part for part in update(shapes, config, work, weights, "gpu") if part.name == "activations"]
    worst = max(work.micro, key=lambda m: m.tokens)
    hidden = shapes.text.hidden
    vectors = worst.patches // 4 + worst.tokens + 2 * worst.targets
    whole = 4 * worst.patches * 3 * 2 * 14**2 + 2 * hidden * vectors
    assert parts[2].bytes - whole == pytest.approx(parts[1].bytes / 2, rel=0.02)
    assert parts[2].because == f"{parts[1].because}, divided among 2 learners"
    dense = whole_rows(shapes, worst, 2, 2, True) - whole_rows(shapes, worst, 2, 2, False)
    assert dense == 2 * worst.rows * (worst.length**2 - (-(-worst.length // 2)) ** 2)
    assert whole_rows(shapes, worst, 1, 2, True) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("match", [["language"], ["*language_model*.q_proj", "*language_model*.down_proj"]])
def test_adapters_leave_out_what_frozen_weights_do_not_need(match, dtype):
    lora = LoraConfig(rank=8, target_modules=match)
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=128,layers=3", dtype=dtype, lora=lora))
    shapes = shapes_of(vlm.model.config.to_dict(), "")
    weights = trained(shapes, lora, RL)
    assert weights.adapters == weights.moved == sum(p.numel() for _, p in vlm.parameters()) and not weights.vision
    micro, planned = a_micro_batch(vlm)
    found = activations(shapes, planned, 4 if dtype == "float32" else 2, weights=weights)
    assert found == pytest.approx(kept(vlm, micro), rel=0.06)  # the first layer's input needs no gradient


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "rmsprop", "muon", "adafactor", "adamw_8bit"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_stays_is_what_the_optimiser_holds(optimizer, dtype):
    stage = SftStage(kind="sft", steps=1, optimizer=optimizer, ema_decay=0.9)
    vlm = VLM(PolicyConfig(model="tiny:qwen3_vl:hidden=64,layers=2", dtype=dtype))
    shapes = shapes_of(vlm.model.config.to_dict(), "")
    rule = Optimizer(list(vlm.parameters()), stage)
    for master in rule.masters:
        master.grad = torch.ones_like(master)
    rule.step(0)
    state = [t for name, t in rule.state().items() if not name.endswith(("/master", "/ema", "/step"))]
    config = run_file(policy={"model": "tiny:qwen3_vl", "dtype": dtype}, stages=[stage.model_dump(exclude_unset=True)])
    parts = {p.name: p.bytes for p in resident(shapes, config, stage, trained(shapes, None, stage))}
    assert parts["weights"] == sum(p.nbytes for p in vlm.model.parameters())
    assert parts.get("float32 masters", 0) == sum(
        m.nbytes for m, (_, p) in zip(rule.masters, rule.named, strict=True) if m is not p
    )
    assert parts["gradients"] == sum(4 * m.numel() for m in rule.masters)
    assert parts["mean weights"] == sum(a.nbytes for a in rule.averages)
    assert parts["optimiser"] == sum(t.nbytes for t in state if t.numel() > 1)


def test_frozen_parts_have_no_gradients_and_a_frozen_tower_keeps_nothing():
    shapes = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], "")
    frozen = RL.model_copy(update={"parts": [PartConfig(match=m, freeze=True) for m in ("vision", "projector")]})
    weights = trained(shapes, None, frozen)
    assert weights.moved == 3_085_938_688 and not weights.vision
    micro = Micro(rows=1, length=100, patches=400, targets=1)
    bare = activations(shapes, Micro(rows=1, length=100, patches=0, targets=1), 2)
    assert activations(shapes, micro, 2, weights=weights) == pytest.approx(bare, rel=1e-5)


def test_a_3b_model_by_hand():
    """16 bytes a weight: 2 for itself, 4 for its master, 8 for AdamW, and 4 for its gradient."""
    shapes, config = (
        shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], ""),
        run_file(policy={"model": "Qwen/Qwen2.5-VL-3B", "dtype": "bfloat16"}),
    )
    n = 3_754_622_976
    parts = {p.name: p.bytes for p in resident(shapes, config, RL, trained(shapes, None, RL))}
    assert parts == {"weights": 2 * n, "float32 masters": 4 * n, "optimiser": 8 * n, "gradients": 4 * n}
    reference = {
        p.name: p.bytes for p in resident(shapes, config, RL.model_copy(update={"kl_coef": 0.1}), trained(shapes, None, RL))
    }
    assert reference["reference"] == 2 * n
    cases = (("dpo", {}, 1, 1), ("simpo", {}, 0, 1), ("dpo", {"reference": "none"}, 0, 1))
    for loss, keys, copies, looks in (*cases, ("dpo", {"on_policy_weights": True}, 1, 2), ("kto", {}, 1, 2)):
        pairs = PreferenceStage(kind="preference", steps=1, loss=loss, **keys)
        parts = {p.name: p.bytes for p in resident(shapes, config, pairs, trained(shapes, None, pairs))}
        assert parts.get("reference", 0) == copies * 2 * n, "DPO compares with a copy, SimPO with none"
        work = workload(config.model_copy(update={"stages": [pairs]}), pairs, shapes, Sizes())
        assert (work.group, work.sampled, work.trained, work.looked_at) == (2, (), ((16, 2),), looks)
        assert work.reference == bool(copies)
    turns = RlStage(kind="rl", steps=1, turn_critic={})
    parts = {p.name: p.bytes for p in resident(shapes, config, turns, trained(shapes, None, turns))}
    assert parts["frozen copy"] == 2 * n, "what critics of turns see with"
    eighth = {p.name: p.bytes for p in resident(shapes, config, RL, trained(shapes, None, RL), 0, 8)}
    assert eighth["optimiser"] == n and eighth["gathered for sampling"] == 2 * n - n // 4


@pytest.mark.parametrize(("sampler", "copies"), [("local", 1), ("vllm", 0)])
def test_who_samples_while_it_learns_holds_both_at_once(sampler, copies):
    """And its own sampler has its own weights; engines have theirs elsewhere."""
    now, late = (predict(run_file(compute={"sampler": sampler, "staleness": k}), GPUS["h200"]).stages[0] for k in (0, 1))
    copy = sum(part.bytes for part in late.parts if part.name == "sampler's copy")
    whole = sum({part.name: part.bytes for part in now.parts}.values())
    assert copy == copies * sum(part.bytes for part in now.parts if part.name == "weights")
    assert late.peaks == {"generate": whole + copy, "update": whole + copy} and late.certain == now.certain + copy
    apart = {"sampler": sampler, "placement": "separate", "engines": 1}
    now, late = (predict(run_file(compute={**apart, "staleness": k}), GPUS["h200"]).stages[0] for k in (0, 1))
    assert now.peaks == late.peaks


def test_logits_come_in_chunks():
    shapes = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], "")
    assert LOGIT_CHUNK == vlms.LOGIT_CHUNK and ROOM == caches.ROOM
    assert logits(shapes, 100, 4) == 100 * 151_936 * 16
    table = 151_936 * 2048
    assert logits(shapes, 10_000, 4) == logits(shapes, 100_000, 4) == 2**25 * 8 + 4 * table
    assert logits(shapes, 10_000, 2) == 2**25 * 10 + 6 * table and logits(shapes, 10_000, 2, trained=False) == 2**25 * 10


def test_the_cache_has_the_room_that_is_said():
    from transformers.cache_utils import DynamicLayer

    prompt = DynamicLayer()
    prompt.update(torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 8))
    layer = ReservedLayer(prompt, 3)
    for n in range(1, 300):
        layer.update(torch.zeros(3, 2, 1, 8), torch.zeros(3, 2, 1, 8))
        if n in (1, 64, 65, 128, 129, 256, 257):
            assert layer.rooms[0].shape[-2] == 5 + cache_capacity(n)
    text = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], "")
    assert cache_token(text, 2) == 36 * 2 * 2 * 2 * 128


def test_micro_batches_are_filled_as_the_packer_fills_them():
    vlm = cases.policy("qwen2_5_vl")
    prompts = [cases.prompt(0) for _ in range(5)]
    encoded = vlm.encode(prompts[0])
    rollouts = cases.rollouts(vlm, prompts, group=4, longest=1)
    shapes, seen = shapes_of(vlm.model.config.to_dict(), ""), encoded.model_sizes[0][0] * encoded.model_sizes[0][1]
    for budget in (10, 60, 100, 1000):
        sizes = Sizes(text=len(encoded.ids) - shapes.tokens_of(seen) - 2, pixels=seen, completion=1)
        config = run_file(
            train={"micro_batch_tokens": budget}, stages=[{"kind": "rl", "steps": 1, "prompts_per_step": 5, "group_size": 4}]
        )
        planned = list(workload(config, config.stages[0], shapes, sizes).micro.elements())
        made = pack(rollouts, Credit(advantages=torch.ones(20)), vlm, shared_prefix=True, budget=budget).micro
        assert sorted(tuple(m.ids_BS.shape) for m in made) == sorted((m.rows, m.length) for m in planned)
        assert sum(len(m.target_L) for m in made) == sum(m.targets for m in planned) == 20
        patches = sorted(int(m.media["image_grid_thw"].prod(-1).sum()) for m in made)
        assert patches == sorted(m.patches for m in planned)
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 5, "group_size": 4, "minibatches": 3}
    config = run_file(stages=[stage], train={"micro_batch_tokens": 1000})
    work = workload(config, config.stages[0], shapes, Sizes(text=9, pixels=seen, completion=1))
    assert [m.targets for m in work.micro.elements()] == [8, 8, 4] and work.updates == 3, "2, 2 and 1 groups"


@pytest.mark.parametrize("budget, count", [(1000, 1), (60, 3), (10, 20)])
def test_pictures_are_those_of_two_micro_batches_on_a_gpu_and_of_all_on_a_cpu(budget, count):
    vlm, size = cases.policy("qwen2_5_vl"), 56
    rollouts = cases.rollouts(vlm, [cases.prompt(0, size=(size, size)) for _ in range(5)], group=4, longest=1)
    made = pack(rollouts, Credit(advantages=torch.ones(20)), vlm, shared_prefix=True, budget=budget).micro
    sizes = sorted((m.media["pixel_values"].nbytes for m in made), reverse=True)
    shapes, seen = shapes_of(vlm.model.config.to_dict(), ""), rollouts[0].inputs.model_sizes[0]
    text = len(rollouts[0].inputs.ids) - shapes.tokens_of(seen[0] * seen[1]) - 2
    config = run_file(
        train={"micro_batch_tokens": budget}, stages=[{"kind": "rl", "steps": 1, "prompts_per_step": 5, "group_size": 4}]
    )
    work = workload(config, config.stages[0], shapes, Sizes(text=text, pixels=seen[0] * seen[1], completion=1))
    assert PREFETCHED == prefetch.AT_ONCE and len(made) == work.micro.total() == count
    for kind, held in (("gpu", sizes[:2]), ("cpu", sizes)):
        (part,) = pixels(shapes, work, kind, None)
        assert part.bytes == sum(held) and ("at a time" in part.because) == (kind == "gpu" and count > 2)
        first = next(iter(work.micro))
        rest = sum(part.bytes for part in pixels(shapes, work, kind, first))
        assert rest == sum(held) - first.patches * shapes.pixel_bytes


def test_peaks_are_of_what_is_there_at_once():
    shapes, config = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], ""), run_file()
    parts = resident(shapes, config, RL, trained(shapes, None, RL))
    found = peaks(parts)
    assert found["update"] - found["generate"] == next(p.bytes for p in parts if p.name == "gradients")
    assert usable(GPUS["h200"]) == int((143_771 - 1024) * MIB * 0.98)


# -- what saves memory ----------------------------------------------------------------------------------------------------


def fits(machine, name, **sections):
    """The plan of the page's table: a picture of 401,408 pixels, 128 tokens of text and 512 of an answer, groups of 8."""
    policy = {"model": name, "dtype": "bfloat16", "max_pixels": 401408, **sections.pop("policy", {})}
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 8, "group_size": 8, **sections.pop("stage", {})}
    train = {"gradient_checkpointing": True, **sections.pop("train", {})}
    config = run_file(policy=policy, stages=[stage], generate={"max_tokens": 512}, train=train, **sections)
    return predict(with_algorithm_defaults(config), GPUS[machine], online=False)


def test_7b_with_adapters_over_4_bits_fits_24_gb_and_3b_in_full_with_8_bit_states_48():
    """8-bit states alone aren't enough for 3B: its masters and gradients are float32. Those states halve what is moved."""
    lora = {"rank": 32, "alpha": 64.0}
    seven, three = "Qwen/Qwen2.5-VL-7B", "Qwen/Qwen2.5-VL-3B"
    assert not fits("rtx-4090", seven, policy={"lora": lora}).fits
    assert fits("rtx-4090", seven, policy={"lora": {**lora, "nf4": ["language"]}}).fits
    plain, eight = (fits("l40s", three, stage={"optimizer": rule}) for rule in ("adamw", "adamw_8bit"))
    assert not plain.fits and not eight.fits and eight.stages[0].peak < plain.stages[0].peak - 19 * 2**30
    both = [fits("l40s", three, stage={"optimizer": rule}, train={"offload_optimizer": True}) for rule in ("adamw", "adamw_8bit")]
    assert all(plan.fits for plan in both)
    moved = [next(s.seconds for s in plan.stages[0].seconds if s.name == "update: offload") for plan in both]
    assert moved[1] < 0.6 * moved[0]


def test_4_bits_by_hand():
    """Of 64 weights 32 bytes, a scale, and a 256th of 4 bytes; the tower and the embeddings have 2 bytes each."""
    shapes = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-7B"], "")
    lora = LoraConfig(nf4=["language"])
    weights = trained(shapes, lora, RL)
    t = shapes.text
    assert weights.nf4 == t.layers * (2 * t.hidden * (t.q + t.k) + 3 * t.hidden * 18944)
    assert weights.nf4_widest == t.hidden * 18944
    config = run_file(policy={"model": "Qwen/Qwen2.5-VL-7B", "dtype": "bfloat16", "lora": lora.model_dump()})
    parts = {p.name: p.bytes for p in resident(shapes, config, RL, weights)}
    assert parts["weights"] == pytest.approx(2 * (weights.whole - weights.nf4) + weights.nf4 * (32 + 1 + 4 / 256) / 64, rel=1e-6)
    assert parts["a whole matrix"] == 2 * weights.nf4_widest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_in_4_bits_take_what_is_planned(dtype):
    lora = LoraConfig(rank=8, target_modules=["language"], nf4=["language", "vision"])
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=128,layers=3", dtype=dtype, lora=lora))
    shapes, b = shapes_of(vlm.model.config.to_dict(), ""), 4 if dtype == "float32" else 2
    weights = trained(shapes, lora, RL)
    layers = [layer for _, layer in nf4_layers(vlm.model)]
    assert weights.nf4 == sum(layer.in_features * layer.out_features for layer in layers)
    everything = [*vlm.model.named_parameters(), *vlm.model.named_buffers()]
    own = [t for n, t in everything if ".lora_" not in n and not n.endswith(("levels", "levels_of_scales", "inv_freq"))]
    assert weight_bytes(weights, b) == pytest.approx(sum(t.nbytes for t in own), rel=0.01)
    micro, planned = a_micro_batch(vlm)
    assert activations(shapes, planned, b, weights=weights) == pytest.approx(kept(vlm, micro), rel=0.06)


@pytest.mark.parametrize(("dtype", "family"), [("float32", "qwen3_vl_moe"), ("bfloat16", "glm4v_moe")])
def test_experts_have_neither_adapters_nor_4_bits(dtype, family):
    """Only the linear layers that peft adapts: no router, and what peft takes for experts by its name only in 4 bits."""
    lora = LoraConfig(rank=8, target_modules=["language"], nf4=["language"])
    vlm = VLM(PolicyConfig(model=f"tiny:{family}:hidden=128,layers=3", dtype=dtype, lora=lora))
    shapes, b = shapes_of(tiny.skeleton(family, hidden=128, layers=3).config.to_dict(), ""), 4 if dtype == "float32" else 2
    weights = trained(shapes, lora, RL)
    assert weights.adapters == weights.moved == sum(p.numel() for _, p in vlm.parameters())
    assert weights.adapted == {"q_proj", "k_proj", "v_proj", "o_proj"}
    layers = [layer for _, layer in nf4_layers(vlm.model)]
    assert weights.nf4 == sum(layer.in_features * layer.out_features for layer in layers) and len(layers) > 8
    micro, planned = a_micro_batch(vlm)
    assert activations(shapes, planned, b, weights=weights) == pytest.approx(kept(vlm, micro), rel=0.06)
    with pytest.raises(UserError, match=r"matches no linear layer|has no linear layer"):
        trained(shapes, LoraConfig(target_modules=["*.experts.*"]), RL)


def test_what_experts_hold_for_a_moment():
    """Of a layer alone, in bfloat16, on torch's meta device: its peak is what it keeps and what passes."""
    layer = tiny.skeleton("qwen3_vl_moe", hidden=256, layers=1).to(torch.bfloat16).model.language_model.layers[0].mlp
    shapes = shapes_of(tiny.skeleton("qwen3_vl_moe", hidden=256, layers=1).config.to_dict(), "")
    tokens = torch.empty(1, 1000, 256, device="meta", dtype=torch.bfloat16, requires_grad=True)
    forward, _, _ = trace_both(lambda: layer(tokens))
    assert forward.peak - forward.kept == pytest.approx(1000 * passing(shapes, 2), rel=0.1)


def test_routes_are_kept_and_penalties_keep_scores():
    """Two bytes for each expert of a token in each layer: of all tokens of the step, as R2 keeps them, or of a micro-batch."""
    found = {}
    base = {"kind": "rl", "steps": 1, "prompts_per_step": 8, "group_size": 4}
    for name, more in (
        ("plain", {}),
        ("R2", {"minibatches": 2, "experts": {"router_replay": "R2"}}),
        ("R3", {"experts": {"router_replay": "R3"}}),
        ("aux", {"experts": {"aux_loss_coef": 0.01}}),
        ("frozen", {"experts": {"freeze_router": True}}),
    ):
        config = run_file(policy={"model": "Qwen/Qwen3-VL-30B-A3B", "dtype": "bfloat16"}, stages=[base | more])
        found[name] = predict(with_algorithm_defaults(config), GPUS["h200"], online=False).stages[0]
    parts = {name: {part.name: part.bytes for part in stage.parts} for name, stage in found.items()}
    micro = found["R2"].work.micro
    assert parts["R2"]["routes"] == 2 * 48 * 8 * sum(m.tokens for m in micro.elements()) and "routes" not in parts["plain"]
    assert parts["R3"]["routes"] == 2 * 48 * 8 * max(m.tokens for m in found["R3"].work.micro)
    most = max(m.tokens for m in found["aux"].work.micro)
    assert parts["aux"]["activations"] - parts["plain"]["activations"] == 48 * 2 * 4 * 128 * most
    assert found["plain"].weights.moved - found["frozen"].weights.moved == 48 * 128 * 2048
    assert (found["aux"].work.states, found["R2"].work.states, found["R2"].work.looked_at) == (1, 0, 1)
    named = [{s.name: s.seconds for s in found[name].seconds} for name in ("plain", "aux")]
    looked, forward = named[1]["update: passes without gradients"], named[1]["update: forward"]
    assert "update: passes without gradients" not in named[0] and 0.8 * forward < looked < forward, "no logits"


def test_a_policy_that_sees_less_and_learns_doubles_what_is_kept():
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 8, "group_size": 4}
    once, twice = (
        predict(with_algorithm_defaults(run_file(stages=[stage | {"perception": {"coef": 0.1, "gradient": g}}])), GPUS["h200"])
        for g in ("seen", "both")
    )
    one, two = ({part.name: part.bytes for part in plan.stages[0].parts} for plan in (once, twice))
    assert two["activations"] == 2 * one["activations"] and two["pictures"] > 1.9 * one["pictures"]
    seconds = [{s.name: s.seconds for s in plan.stages[0].seconds} for plan in (once, twice)]
    assert seconds[1]["update: backward"] == pytest.approx(2 * seconds[0]["update: backward"])
    assert seconds[0]["update: passes without gradients"] == pytest.approx(seconds[0]["update: forward"])


def test_an_offloaded_optimiser_is_on_the_device_in_pieces():
    """Pieces are of 2^27 weights, or of the largest: 3B's embeddings."""
    assert AT_ONCE == offload.AT_ONCE
    plain, moved = (fits("h100", "Qwen/Qwen2.5-VL-3B", train={"offload_optimizer": on}) for on in (False, True))
    names = [{p.name for p in plan.stages[0].parts} for plan in (plain, moved)]
    assert names[0] - names[1] == {"float32 masters", "optimiser"}
    weights = moved.stages[0].weights
    assert weights.largest == 151_936 * 2048
    assert stepped_bytes("adamw", weights, 2) == pytest.approx(12 * weights.largest, abs=1)
    seconds = {s.name: s for s in moved.stages[0].seconds}["update: offload"]
    assert seconds.seconds == pytest.approx(2 * 12 * weights.moved / (0.8 * GPUS["h100"].host))
    assert seconds.limit == "the link to the host"


def test_offloaded_inputs_of_layers_are_two():
    shapes = shapes_of(PUBLISHED["Qwen/Qwen2.5-VL-3B"], "")
    micro = Micro(rows=1, length=4096, patches=1024, targets=1)
    there = activations(shapes, micro, 2, True) - activations(shapes, micro, 2, True, offload=True)
    assert there == 2 * ((36 - 2) * 2048 * 4096 + (32 - 2) * 1280 * 1024)
