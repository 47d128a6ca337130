"""Adapters of a layer in bfloat16 on a device that sums its products in float32."""

from __future__ import annotations

import copy

import pytest
import torch

from mmrl.config.sections import LoraConfig
from mmrl.policies import lora_products
from mmrl.policies.lora import add_adapters


def adapted(dtype):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"one": torch.nn.Linear(48, 80)}).to(dtype)
        add_adapters(model, LoraConfig(rank=4, alpha=10.0, target_modules=["one"]), 0)
        torch.nn.init.normal_(model["one"].lora_B["default"].weight, std=0.1)
    return model["one"]


def passed(layer, x, wanted, forward=None):
    """(output, gradients of the input and of both of the adapter's matrices)."""
    layer, x = copy.deepcopy(layer), x.detach().clone().requires_grad_()
    found = forward(layer, x) if forward else layer(x)
    found.backward(wanted.to(found))
    grads = x.grad, layer.lora_A["default"].weight.grad, layer.lora_B["default"].weight.grad
    return [t.detach().cpu() for t in (found, *grads)]


@pytest.fixture
def given(monkeypatch):
    monkeypatch.setattr(lora_products, "MANY", 0)
    made = torch.Generator().manual_seed(1)
    return [torch.randn(3, 50, wide, generator=made).bfloat16() for wide in (48, 80)]


def test_factors_that_are_split_lose_no_more_than_rounding_to_16_bits(device, given):
    x, wanted = given
    exact = passed(adapted(torch.bfloat16).double(), x.double(), wanted)
    layer = adapted(torch.bfloat16).to("cuda")
    found = passed(layer, x.to("cuda"), wanted)
    rounded = passed(layer, x.to("cuda"), wanted, type(layer).forward)
    for mine, true in zip(found[2:], exact[2:], strict=True):  # of float32 matrices; one bfloat16 factor would lose 2e-3
        assert torch.linalg.norm(mine - true) < 1e-5 * torch.linalg.norm(true) and mine.dtype == torch.float32
    for mine, others, true in zip(found[:2], rounded, exact[:2], strict=False):
        assert mine.dtype == torch.bfloat16
        assert torch.linalg.norm(mine - true) < 1.02 * torch.linalg.norm(others - true), "peft rounds once too"


def test_a_pass_waits_for_nothing_and_what_is_not_bfloat16_is_not_split(device, given, monkeypatch):
    x, wanted = (t.to("cuda") for t in given)
    layer = adapted(torch.bfloat16).to("cuda")
    with device.no_waits():
        layer(x).backward(wanted)
    half = adapted(torch.float16).to("cuda")
    monkeypatch.setattr(lora_products, "_wide_times", None)
    half(x.half()).backward(wanted.half())
    assert half.lora_A["default"].weight.grad.any()


def test_few_tokens_are_not_split(device, given, monkeypatch):
    x = given[0].to("cuda")
    layer = adapted(torch.bfloat16).to("cuda")
    monkeypatch.setattr(lora_products, "_parts", None)
    with pytest.raises(TypeError, match="not callable"):
        layer(x)
    monkeypatch.setattr(lora_products, "MANY", x.numel() + 1)
    layer(x).sum().backward()
    with torch.no_grad():
        layer(x)
