"""Computing activations again: the same numbers, fewer bytes kept, and nothing of it in the sampler."""

import pytest
import torch
from transformers.modeling_layers import GradientCheckpointingLayer

import vlm_cases as cases
from mmrl.config.sections import LoraConfig, PolicyConfig
from mmrl.policies import gradient_checkpointing as checkpointing
from mmrl.policies.batches import Credit
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.layers import cache_argument
from mmrl.policies.lora import disable_adapters
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.update.pack_conversations import pack


def batch(vlm, shared=True):
    rollouts = cases.rollouts(vlm, [cases.prompt(1), cases.prompt(2)])
    return pack(rollouts, Credit(advantages=torch.linspace(-1.0, 1.0, 8)), vlm, shared_prefix=shared, budget=10_000)


def measure(vlm, made, on, backward_inside=True):
    """(log-probabilities, gradient, bytes kept for the backward pass besides the weights)."""
    weights = {p.untyped_storage().data_ptr() for p in vlm.model.parameters()}
    kept = {}

    def keep(t):
        if t.untyped_storage().data_ptr() not in weights:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes(), t  # held, so that no address comes twice
        return t

    vlm.model.zero_grad()
    with gradient_checkpointing(vlm.model, on):
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            found = [vlm.logprobs(m, 0.8)[0] for m in made.micro]
        size = sum(n for n, _ in kept.values())
        loss = sum((f * m.advantages_L).sum() for f, m in zip(found, made.micro, strict=True))
        if backward_inside:
            loss.backward()
    if not backward_inside:
        loss.backward()
    gradient = torch.cat([p.grad.flatten() for _, p in vlm.parameters() if p.grad is not None])
    vlm.model.zero_grad()
    return torch.cat(found).detach(), gradient, size


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_inputs_of_layers_in_the_host_give_the_same_numbers(lora, monkeypatch):
    vlm, moved = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=64,layers=3", lora=lora)), []
    made, found, there = batch(vlm), [], checkpointing._to_host

    def to_host(saved):
        moved.append(saved.nbytes)
        device, host = there(saved)
        assert torch.equal(host, saved) and host.untyped_storage().data_ptr() != saved.untyped_storage().data_ptr()
        return device, host

    monkeypatch.setattr(checkpointing, "_to_host", to_host)
    for offload in (False, True):
        with gradient_checkpointing(vlm.model, True, offload):
            loss = sum((vlm.logprobs(m, 0.8)[0] * m.advantages_L).sum() for m in made.micro)
        assert bool(moved) == offload
        loss.backward()
        found.append([p.grad.clone() for _, p in vlm.parameters() if p.grad is not None])
        vlm.model.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)) and found[0]
    layers = sum(isinstance(m, GradientCheckpointingLayer) for m in vlm.model.modules())
    assert len(moved) >= len(made.micro) * (3 if lora else layers)


@pytest.mark.parametrize("backward_inside", [True, False])
@pytest.mark.parametrize("family", cases.FAMILIES)
def test_the_same_numbers_from_fewer_bytes(family, backward_inside):
    vlm = cases.policy(family)
    made = batch(vlm)
    logprobs, gradient, size = measure(vlm, made, on=False)
    again, same, less = measure(vlm, made, True, backward_inside)
    assert torch.equal(logprobs, again) and torch.equal(gradient, same) and gradient.abs().max() > 0
    assert less < 0.4 * size
    assert measure(vlm, made, on=False)[2] == size, "it is off again"
    assert not vlm.model.training and not any(m.training for m in vlm.model.modules())


def test_with_adapters_whose_reference_is_computed_in_between():
    vlm = VLM(
        PolicyConfig(
            model="tiny:qwen3_vl:hidden=64,layers=2", lora=LoraConfig(target_modules=["language", "vision", "projector"])
        )
    )
    with torch.no_grad():
        for _, p in vlm.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.1)
    made = batch(vlm)
    plain, gradient, size = measure(vlm, made, False)
    again, same, less = measure(vlm, made, True)
    assert torch.equal(plain, again) and torch.equal(gradient, same) and less < 0.5 * size
    with gradient_checkpointing(vlm.model):
        found = vlm.logprobs(made.micro[0], 0.8)[0]
        with disable_adapters(vlm.model), torch.no_grad():
            other = vlm.logprobs(made.micro[0], 0.8)[0]
        (found * made.micro[0].advantages_L).sum().backward()
    recomputed = torch.cat([p.grad.flatten() for _, p in vlm.parameters()])
    assert torch.equal(recomputed, gradient) and not torch.equal(found, other)


def test_bfloat16():
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=64,layers=2", dtype="bfloat16"))
    made = batch(vlm)
    one, two = measure(vlm, made, False), measure(vlm, made, True)
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1]) and two[2] < 0.5 * one[2]


def test_any_other_family(tmp_path):
    vlm = VLM(PolicyConfig(model=cases.llava(tmp_path / "llava")))
    made = batch(vlm, shared=False)
    one, two = measure(vlm, made, False), measure(vlm, made, True)
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1]) and two[2] < 0.7 * one[2]


def test_frozen_layers_are_not_computed_again():
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=64,layers=2"))
    vlm.model.model.visual.requires_grad_(False)
    made, calls = batch(vlm), []
    hooks = [b.mlp.register_forward_pre_hook(lambda *_: calls.append("vision")) for b in vlm.model.model.visual.blocks]
    hooks += [b.mlp.register_forward_pre_hook(lambda *_: calls.append("text")) for b in vlm.model.model.language_model.layers]
    measure(vlm, made, True)
    assert len(made.micro) == 1 and (calls.count("vision"), calls.count("text")) == (2, 4)
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_the_sampler_keeps_its_cache(family):
    vlm = cases.policy(family)
    inputs = [vlm.encode(cases.prompt(1)), vlm.encode(cases.prompt(2))]
    sampling = SamplingParams(max_tokens=6, temperature=0.8, seed=3)
    plain = LocalGenerator(vlm).generate(inputs, 2, sampling)
    seen = []
    layer = vlm.model.model.language_model.layers[0]
    hook = layer.register_forward_hook(lambda m, a, k, o: seen.append(k[cache_argument(layer)] is not None), with_kwargs=True)
    with gradient_checkpointing(vlm.model):
        assert LocalGenerator(vlm).generate(inputs, 2, sampling) == plain
    hook.remove()
    assert len(seen) > 1 and all(seen)


def test_a_cache_is_filled_once_even_with_gradients():
    """A layer that was computed again would write its keys a second time."""
    from transformers import DynamicCache

    vlm = cases.policy("qwen2_5_vl")
    ids = torch.tensor([[5, 6, 7]])
    cache = DynamicCache(config=vlm.model.config)
    with gradient_checkpointing(vlm.model):
        vlm.model(input_ids=ids, use_cache=True, **{cache_argument(vlm.model): cache}).logits.sum().backward()
    vlm.model.zero_grad()
    assert cache.get_seq_length() == 3


def test_layers_are_left_as_they_were_also_by_an_error_and_inside_another():
    vlm = cases.policy("qwen2_5_vl")
    layers = [m for m in vlm.model.modules() if isinstance(m, GradientCheckpointingLayer)]
    assert len(layers) == 4, "two of the language model, two of the vision tower"
    with pytest.raises(ZeroDivisionError), gradient_checkpointing(vlm.model):
        outer = [layer.forward for layer in layers]
        with gradient_checkpointing(vlm.model):
            assert all(layer.forward is not f for layer, f in zip(layers, outer, strict=True))
        assert all(layer.forward is f for layer, f in zip(layers, outer, strict=True))
        raise ZeroDivisionError
    assert not any("forward" in vars(layer) for layer in layers)
    with gradient_checkpointing(vlm.model, False):
        assert not any("forward" in vars(layer) for layer in layers)
