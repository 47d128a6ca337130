"""Frozen weights in 4 bits: the numbers against bitsandbytes and a slow reference, adapters over them, and files."""

import copy
import importlib.util

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

import vlm_cases as cases
from adapted import ALL, TINY, batch, optimizer_of, policy, scores, train
from mmrl.api.errors import UserError
from mmrl.compute.bitsandbytes import import_bitsandbytes
from mmrl.config.load import parse_config
from mmrl.config.sections import LoraConfig, PolicyConfig
from mmrl.policies.batches import Credit
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.lora import disable_adapters, merged_weights, quantised_layers
from mmrl.policies.nf4 import NF4Linear, nf4_layers
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.weights import changed_weights, parameter_versions
from mmrl.train.checks.compute import check_quantized
from mmrl.train.update.pack_conversations import pack

LEVELS = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip
"""The 16 numbers of NF4, as in appendix E of the paper."""


def layer(rows=24, columns=160, dtype=torch.float32, bias=True, seed=0):
    made = torch.nn.Linear(columns, rows, bias=bias, dtype=dtype)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(torch.randn(p.shape, generator=noise))
    return made


def quantised(family="qwen2_5_vl", dtype="float32", nf4=("language",), **more):
    return policy(family, dtype, target_modules=ALL, nf4=list(nf4), **more)


# -- a layer ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bytes_are_those_of_bitsandbytes_layer(dtype):
    bnb, plain = import_bitsandbytes("this test", "skip it"), layer(columns=128, dtype=dtype)
    theirs = bnb.nn.Linear4bit(128, 24, compute_dtype=dtype, compress_statistics=True, quant_type="nf4")
    theirs.weight = bnb.nn.Params4bit(plain.weight.detach().clone(), compress_statistics=True, quant_type="nf4").to("cpu")
    ours, state = NF4Linear(plain, torch.device("cpu")), theirs.weight.quant_state
    assert torch.equal(ours.packed, theirs.weight.data) and torch.equal(ours.scales, state.absmax)
    assert torch.equal(ours.weight, bnb.functional.dequantize_4bit(theirs.weight.data, state)) and ours.weight.dtype == dtype
    assert ours.packed.nbytes == 24 * 128 // 2 and ours.scales.nbytes == 24 * 128 // 64


@pytest.mark.parametrize(("rows", "columns"), [(24, 160), (3, 64), (5, 96), (8, 3420)])
def test_the_weights_against_a_slow_reference(rows, columns):
    """Each is the level nearest to it, times its block's largest size, which itself has a scale and 8 bits. Blocks may lie across
    rows, as in the tower of Qwen2.5-VL."""
    plain = layer(rows, columns)
    ours = NF4Linear(plain, torch.device("cpu"))
    assert ours.levels.tolist() == LEVELS
    outer = ours.scales_of_scales.repeat_interleave(256)[: len(ours.scales)]
    scale = (ours.levels_of_scales[ours.scales.long()] * outer + ours.offset).numpy()
    flat = plain.weight.detach().numpy().reshape(-1)
    blocks = np.concatenate([flat, np.zeros(-len(flat) % 64, dtype=np.float32)]).reshape(-1, 64)
    largest = np.abs(blocks).max(1)
    assert np.abs(scale - largest).max() < 0.02 * largest.max()
    nearest = np.abs(blocks[:, :, None] / largest[:, None, None] - np.array(LEVELS)).argmin(-1)
    expected = np.array(LEVELS, dtype=np.float32)[nearest] * scale[:, None]
    assert ours.weight.reshape(-1).numpy() == pytest.approx(expected.reshape(-1)[: len(flat)], abs=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_products_and_gradients_are_those_of_the_whole_layer(bias):
    ours = NF4Linear(layer(bias=bias), torch.device("cpu"))
    whole, kept = ours.whole(), []
    one, two = (torch.linspace(-1, 1, 3 * 160).reshape(3, 160).requires_grad_() for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        product = ours(one)
    assert kept == [], "the backward pass makes the weights anew"
    assert torch.equal(product, whole(two)) and torch.equal(product, linear(one, ours.weight, ours.bias))
    product.square().sum().backward()
    whole(two).square().sum().backward()
    assert torch.equal(one.grad, two.grad) and not any(p.requires_grad for p in ours.parameters())


# -- a model ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", cases.FAMILIES)
def test_adapters_start_at_the_quantised_model_and_leave_it_as_it_is(family, dtype):
    vlm = quantised(family, dtype, ["language", "vision", "projector"])
    plain = VLM(PolicyConfig(model=TINY.format(family), dtype=dtype))
    names = [name.removesuffix(".base_layer") for name, _ in nf4_layers(vlm.model)]
    assert names == quantised_layers(plain.model, ALL) and names
    before = scores(vlm)
    assert 0 < (before - scores(plain)).abs().max() < 1
    stored = {n: b.clone() for n, b in vlm.model.state_dict().items() if ".lora_" not in n}
    train(vlm, optimizer_of(vlm))
    assert (scores(vlm) - before).abs().max() > 0.01
    with disable_adapters(vlm.model):
        assert torch.equal(scores(vlm), before)
    assert all(torch.equal(b, stored[n]) for n, b in vlm.model.state_dict().items() if ".lora_" not in n)
    assert all(p.dtype == torch.float32 for _, p in vlm.parameters()) and vlm.model.dtype == getattr(torch, dtype)


def test_sampler_and_learner_agree_after_updates_packed_or_not():
    vlm = quantised(nf4=ALL)
    train(vlm, optimizer_of(vlm))
    prompts = [cases.prompt(1), cases.prompt(2)]
    inputs = [vlm.encode(p) for p in prompts]
    groups = LocalGenerator(vlm).generate(inputs, 3, SamplingParams(max_tokens=8, temperature=0.8, seed=0))
    rollouts = cases.as_rollouts(prompts, inputs, groups)
    sampled = torch.tensor([x for r in rollouts for x in r.turns[0].logprobs])
    start = torch.tensor([0, *(r.length for r in rollouts)]).cumsum(0)
    for shared in (True, False):
        found = torch.zeros_like(sampled)
        for micro in pack(rollouts, Credit(advantages=torch.ones(6)), vlm, shared_prefix=shared, budget=10_000).micro:
            with torch.no_grad():
                logprobs, _ = vlm.logprobs(micro, 0.8)
            for n in micro.rollout_L.unique().tolist():
                found[start[n] : start[n + 1]] = logprobs[micro.rollout_L == n]
        assert (found - sampled).abs().max() < 1e-5


def test_checkpointing_gives_the_same_gradients():
    vlm, found = quantised(nf4=ALL), []
    for on in (False, True):
        with gradient_checkpointing(vlm.model, on):
            micro = batch(vlm).micro[0]
            (-(vlm.logprobs(micro, 0.8)[0] * micro.advantages_L).sum()).backward()
        found.append([p.grad.clone() for _, p in vlm.parameters()])
        vlm.model.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)) and any(g.any() for g in found[0])


def test_a_copy_is_its_own():
    vlm = quantised()
    frozen = vlm.clone(frozen=True)
    before = scores(frozen)
    train(vlm, optimizer_of(vlm))
    assert torch.equal(scores(frozen), before) and not torch.equal(scores(vlm), before)


# -- files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_adapters_load_again_bit_for_bit_and_training_goes_on(dtype, tmp_path):
    vlm = quantised(dtype=dtype, seed=3)
    optimizer = optimizer_of(vlm)
    train(vlm, optimizer)
    vlm.save(tmp_path / "p")
    state = {k: v.clone() for k, v in optimizer.state().items()}
    again = quantised(dtype=dtype, seed=3, source=tmp_path / "p")
    assert torch.equal(scores(vlm), scores(again))
    resumed = optimizer_of(again)
    resumed.load_state(state)
    train(vlm, optimizer, 3, 5)
    train(again, resumed, 3, 5)
    assert all(torch.equal(p, q) for (_, p), (_, q) in zip(vlm.parameters(), again.parameters(), strict=True))


def test_merged_weights_are_whole_and_a_plain_model_with_them_computes_the_same(tmp_path):
    vlm = quantised(nf4=["language", "*merger*"])
    train(vlm, optimizer_of(vlm))
    plain = VLM(PolicyConfig(model=TINY.format("qwen2_5_vl")))
    expected = {name: p.shape for name, p in plain.model.named_parameters()}
    found = dict(merged_weights(vlm.model))
    assert {name: w.shape for name, w in found.items() if name in expected} == expected
    whole = cases.merged_copy(vlm.model)
    assert not list(nf4_layers(whole)) and list(nf4_layers(vlm.model)), "the model itself stays as it is"
    assert all(torch.allclose(p, found[name], atol=1e-6) for name, p in whole.named_parameters())
    exported = copy.copy(vlm)
    exported.model, exported.lora = whole, None
    exported.save(tmp_path / "m")
    again = VLM(PolicyConfig(model=str(tmp_path / "m")))
    assert (scores(again) - scores(vlm)).abs().max() < 1e-4


def test_a_sampler_of_its_own_gets_whole_weights_by_the_names_of_checkpoints():
    vlm, plain = quantised(), policy(target_modules=ALL)
    first = dict(changed_weights(vlm.model, {}, parameter_versions(vlm.model)))
    expected = dict(changed_weights(plain.model, {}, parameter_versions(plain.model)))
    assert {n: (w.shape, w.dtype) for n, w in first.items()} == {n: (w.shape, w.dtype) for n, w in expected.items()}
    assert list(first) == list(expected), "in the same order, so that blocks stay together"
    before = parameter_versions(vlm.model)
    train(vlm, optimizer_of(vlm))
    later = dict(changed_weights(vlm.model, before, parameter_versions(vlm.model)))
    assert 0 < len(later) < len(first) and all(w.is_floating_point() for w in later.values())


# -- refusals -----------------------------------------------------------------------------------------------------------


def test_without_bitsandbytes_it_is_refused(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *m: None if name == "bitsandbytes" else find(name, *m))
    with pytest.raises(
        UserError, match=r"policy.lora.nf4 needs bitsandbytes, which is not installed: pip install .*, or leave it out"
    ):
        quantised()


def test_the_head_stays_whole():
    model = VLM(PolicyConfig(model=TINY.format("llava_onevision"))).model
    assert LoraConfig().nf4 == [] and not any("lm_head" in name for name in quantised_layers(model, ["*"]))


def test_a_policy_that_computes_with_weights_of_layers_is_refused():
    policy = {"kind": "pi0", "model": "tiny:pi0", "lora": {"nf4": ["language"]}}
    tasks = [{"id": "robotics/pick"}]
    config = parse_config({"name": "x", "policy": policy, "tasks": tasks, "stages": [{"kind": "rl", "steps": 1}]})
    with pytest.raises(UserError, match=r"policy\.lora\.nf4 is for policies of kind vlm or vla, not 'pi0': leave it out"):
        check_quantized(config)
