"""AdamW with 8-bit states: against bitsandbytes' own class and AdamW, in checkpoints, and where it is refused."""

import importlib.util
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import Parameter

from mmrl.api.errors import UserError
from mmrl.compute.bitsandbytes import import_bitsandbytes
from mmrl.config.sections import PartConfig, SftStage
from mmrl.train.update.optimizer import Optimizer

SHAPES = {"model.layers.0.mlp.up_proj.weight": (96, 64), "model.embed_tokens.weight": (80, 64), "model.norm.weight": (64,)}
INNER, EMBEDDING, SMALL = SHAPES


def sft(**settings):
    return SftStage(
        kind="sft", **{"steps": 10, "learning_rate": 0.01, "max_grad_norm": math.inf, "optimizer": "adamw_8bit", **settings}
    )


def made(dtype=torch.float32):
    noise = torch.Generator().manual_seed(1)
    return {name: Parameter(torch.randn(shape, generator=noise).to(dtype)) for name, shape in SHAPES.items()}


def gradients(step, dtype=torch.float32):
    noise = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=noise).to(dtype) for shape in SHAPES.values()]


def steps(optimizer, weights, first, last):
    for step in range(first, last):
        for p, gradient in zip(weights.values(), gradients(step, next(iter(weights.values())).dtype), strict=True):
            p.grad = gradient
        optimizer.gather()
        optimizer.step(step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_are_those_of_bitsandbytes(dtype):
    """Of bfloat16 weights, those of their float32 masters."""
    bnb = import_bitsandbytes("this test", "skip it")
    ours, theirs = made(dtype), [p.detach().float().requires_grad_() for p in made(dtype).values()]
    stage = sft(weight_decay=0.1, beta1=0.8, beta2=0.95, parts=[PartConfig(match="*.norm.weight", weight_decay=0.0)])
    optimizer = Optimizer(list(ours.items()), stage)
    common = {"lr": 0.01, "betas": (0.8, 0.95)}
    rules = [
        bnb.optim.AdamW8bit([theirs[0]], weight_decay=0.1, **common),
        bnb.optim.AdamW([theirs[1]], weight_decay=0.1, **common),
        bnb.optim.AdamW8bit([theirs[2]], weight_decay=0.0, **common),
    ]
    for step in range(5):
        steps(optimizer, ours, step, step + 1)
        for p, gradient in zip(theirs, gradients(step, dtype), strict=True):
            p.grad = gradient.float()
        for rule in rules:
            rule.step()
    assert all(torch.equal(m, p) for m, p in zip(optimizer.masters, theirs, strict=True))
    assert all(torch.equal(p, m.to(dtype)) for p, m in zip(ours.values(), theirs, strict=True))


def test_embeddings_and_small_weights_keep_32_bits():
    optimizer = Optimizer(list(made().items()), sft())
    weights = dict(optimizer.named)
    steps(optimizer, weights, 0, 1)
    kept = {name: {k.rsplit("/", 1)[1]: t.dtype for k, t in optimizer.state().items() if k.startswith(name)} for name in SHAPES}
    eight = {"state1": torch.uint8, "state2": torch.uint8, "absmax1": torch.float32, "absmax2": torch.float32}
    assert kept[INNER] == {"step": torch.int64, **eight}
    assert kept[EMBEDDING] == kept[SMALL] == {"step": torch.int64, "state1": torch.float32, "state2": torch.float32}


def test_steps_are_near_to_those_of_adamw():
    """A quadratic whose minimum both come near to; the states' 8 bits make their ways differ."""
    ends = {}
    for rule in ("adamw", "adamw_8bit"):
        weights = made()
        optimizer = Optimizer(list(weights.items()), sft(optimizer=rule, learning_rate=0.05, steps=200, schedule="linear"))
        for step in range(200):
            for p in weights.values():
                p.grad = p.detach().clone() * torch.linspace(0.5, 2, p.shape[-1])
            optimizer.step(step)
        ends[rule] = torch.cat([p.detach().flatten() for p in weights.values()])
    assert ends["adamw"].abs().mean() < 0.002 and ends["adamw_8bit"].abs().mean() < 0.002
    assert not torch.equal(ends["adamw"], ends["adamw_8bit"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", ["adamw_8bit", "paged_adamw_8bit"])
def test_a_resumed_optimizer_goes_on_bit_for_bit(rule, dtype, tmp_path):
    whole, stage = made(dtype), sft(optimizer=rule, weight_decay=0.1)
    one = Optimizer(list(whole.items()), stage)
    steps(one, whole, 0, 3)
    save_file(one.state(), tmp_path / "o.safetensors")
    resumed = {name: Parameter(p.detach().clone()) for name, p in whole.items()}
    fresh = {name: Parameter(p.detach().clone()) for name, p in whole.items()}
    two, tensors = Optimizer(list(resumed.items()), stage), load_file(tmp_path / "o.safetensors")
    two.load_state(tensors)
    kept = {k: t.clone() for k, t in tensors.items()}
    steps(one, whole, 3, 6)
    steps(two, resumed, 3, 6)
    steps(Optimizer(list(fresh.items()), stage), fresh, 3, 6)
    assert all(torch.equal(whole[n], resumed[n]) for n in SHAPES) and not torch.equal(whole[INNER], fresh[INNER])
    assert one.state().keys() == two.state().keys() and all(torch.equal(one.state()[k], two.state()[k]) for k in one.state())
    assert all(torch.equal(kept[k], tensors[k]) for k in kept), "what was given is not shared"


def test_the_state_of_another_weight_is_refused():
    stage, weights = sft(), made()
    one = Optimizer(list(weights.items()), stage)
    steps(one, weights, 0, 1)
    state = one.state()
    state[f"{INNER}/absmax1"] = state[f"{INNER}/absmax1"][:-1]
    with pytest.raises(ValueError, match=r"has absmax1 of \[23\] for a weight of \[96, 64\]"):
        Optimizer(list(made().items()), stage).load_state(state)


def test_forgetting_is_beginning_anew():
    one, two = made(), made()
    first, second = (Optimizer(list(w.items()), sft()) for w in (one, two))
    steps(first, one, 0, 3)
    first.forget()
    with torch.no_grad():
        for name in SHAPES:
            two[name].copy_(one[name])
    steps(first, one, 3, 6)
    steps(second, two, 3, 6)
    assert all(torch.equal(one[n], two[n]) for n in SHAPES)


def test_without_bitsandbytes_it_is_refused(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else find(name))
    with pytest.raises(
        UserError,
        match=r'stages.optimizer = "adamw_8bit" needs bitsandbytes, which is not installed: pip install .*quantized.*, or',
    ):
        Optimizer(list(made().items()), sft())


def test_a_gpu_that_it_has_no_library_for(monkeypatch):
    bnb = import_bitsandbytes("this test", "skip it")
    monkeypatch.setattr(torch.version, "cuda", "99.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match=rf"this: bitsandbytes {bnb.__version__} has no library for CUDA 99.0: use another"):
        import_bitsandbytes("this", "use another")
