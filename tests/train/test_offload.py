"""An optimiser whose memory is in the host: bit for bit the same steps, files and means, and nothing left on the device."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import Parameter

from mmrl.config.sections import SftStage
from mmrl.train.update import offload
from mmrl.train.update.optimizer import Optimizer

RULES = ("adamw", "adam", "sgd", "rmsprop", "adafactor", "muon", "adamw_8bit", "paged_adamw_8bit")
SHAPES = {"model.layers.0.mlp.up_proj.weight": (96, 64), "model.embed_tokens.weight": (80, 64), "model.norm.weight": (64,)}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Each weight alone."""
    monkeypatch.setattr(offload, "AT_ONCE", 1000)


def made(dtype):
    noise = torch.Generator().manual_seed(1)
    return {name: Parameter(torch.randn(shape, generator=noise).to(dtype)) for name, shape in SHAPES.items()}


def optimizer_of(weights, rule, on):
    stage = SftStage(
        kind="sft", steps=10, learning_rate=0.01, optimizer=rule, weight_decay=0.1, max_grad_norm=5.0, ema_decay=0.75
    )
    return Optimizer(list(weights.items()), stage, offload=on)


def steps(optimizer, weights, first, last):
    found = []
    for step in range(first, last):
        noise = torch.Generator().manual_seed(step)
        for p in weights.values():
            p.grad = torch.randn(p.shape, generator=noise).to(p.dtype)
        optimizer.gather()
        found.append(optimizer.step(step))
    return found


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES)
def test_it_steps_bit_for_bit_as_without(rule, dtype, tmp_path):
    """Also from a file, which either has written; means are swapped in and adopted."""
    plain, moved = made(dtype), made(dtype)
    one, two = optimizer_of(plain, rule, False), optimizer_of(moved, rule, True)
    assert steps(one, plain, 0, 3) == steps(two, moved, 0, 3)
    assert same(dict(plain), dict(moved)) and same(one.state(), two.state())
    with one.averaged(), two.averaged():
        assert same(dict(plain), dict(moved))
    assert same(dict(plain), dict(moved))
    save_file(one.state(), tmp_path / "one.safetensors")
    save_file(two.state(), tmp_path / "two.safetensors")
    resumed = {name: Parameter(p.detach().clone()) for name, p in moved.items()}
    three = optimizer_of(resumed, rule, True)
    three.load_state(load_file(tmp_path / "one.safetensors"))
    back = {name: Parameter(p.detach().clone()) for name, p in moved.items()}
    four = optimizer_of(back, rule, False)
    four.load_state(load_file(tmp_path / "two.safetensors"))
    for optimizer, weights in ((one, plain), (two, moved), (three, resumed), (four, back)):
        steps(optimizer, weights, 3, 6)
        optimizer.adopt()
    assert same(dict(plain), dict(moved)) and same(dict(plain), dict(resumed)) and same(dict(plain), dict(back))


@pytest.mark.parametrize("rule", RULES)
def test_between_steps_masters_have_no_storage_and_the_host_has_the_rest(rule):
    weights = made(torch.bfloat16)
    optimizer = optimizer_of(weights, rule, True)
    for step in range(2):
        assert all(m.untyped_storage().nbytes() == 0 for m in optimizer.masters)
        steps(optimizer, weights, step, step + 1)
        assert optimizer.offload is not None
        hosts = {t.data_ptr() for t in optimizer.offload.states.values()}
        held = [
            t for h in optimizer.rule.state.values() for k, t in h.items() if torch.is_tensor(t) and t.ndim and "qmap" not in k
        ]
        assert held and all(t.data_ptr() in hosts for t in held)
    assert all(m.grad is None for m in optimizer.masters)


def test_pieces_are_as_large_as_may_be(monkeypatch):
    monkeypatch.setattr(offload, "AT_ONCE", 96 * 64 + 80 * 64)
    weights = made(torch.bfloat16)
    optimizer = optimizer_of(weights, "adamw", True)
    assert [len(piece) for piece in optimizer.offload.pieces(optimizer.masters)] == [2, 1]


def test_without_it_masters_stay():
    weights = made(torch.bfloat16)
    optimizer = optimizer_of(weights, "adamw", False)
    assert optimizer.offload is None and all(m.untyped_storage().nbytes() for m in optimizer.masters)


def test_forgetting():
    plain, moved = made(torch.bfloat16), made(torch.bfloat16)
    for rule in ("adamw", "adamw_8bit"):
        one, two = optimizer_of(plain, rule, False), optimizer_of(moved, rule, True)
        for optimizer, weights in ((one, plain), (two, moved)):
            steps(optimizer, weights, 0, 2)
            optimizer.forget()
            steps(optimizer, weights, 2, 4)
        assert same(dict(plain), dict(moved)) and same(one.state(), two.state())


def test_means_are_dropped_after_the_copies_that_would_bring_them_back(monkeypatch):
    weights = made(torch.float32)
    optimizer = optimizer_of(weights, "adamw_8bit", True)
    steps(optimizer, weights, 0, 1)
    seen = []
    monkeypatch.setattr(optimizer.offload, "wait", lambda: seen.append(any(x.any() for x in means(optimizer))))
    optimizer.forget()
    assert seen == [True] and not any(x.any() for x in means(optimizer))


def means(optimizer):
    return [state["state1"] for state in optimizer.rule.state.values() if "state1" in state]


def test_memory_of_the_host_is_made_once(monkeypatch):
    kept = []
    like = offload.HostMemory.like
    monkeypatch.setattr(offload.HostMemory, "like", lambda self, value: kept.append(value.shape) or like(self, value))
    weights = made(torch.bfloat16)
    optimizer = optimizer_of(weights, "adamw", True)
    steps(optimizer, weights, 0, 4)
    assert len(kept) == 3 * len(SHAPES), "a master and two means of each weight"


def test_small_tensors_share_pieces_of_the_hosts_memory():
    """Each piece is rounded up to a power of two where it is pinned."""
    memory = offload.HostMemory(False, 1024)
    shapes = ((5,), (3, 40), (100,), (2, 64), (200,))
    made = [memory.like(torch.empty(shape, dtype=torch.float32)) for shape in shapes]
    for number, one in enumerate(made):
        one.fill_(number)
    assert all(one.eq(number).all() and one.is_contiguous() for number, one in enumerate(made)), "none lies over another"
    assert [tuple(one.shape) for one in made] == list(shapes) and not any(one.data_ptr() % offload.ALIGNED for one in made)
    pieces = [one.untyped_storage().data_ptr() for one in made]
    assert pieces[0] == pieces[1] == pieces[2] != pieces[3]
    assert pieces[4] not in pieces[:4], "it is more than half of one"
    assert memory.like(torch.empty(7, dtype=torch.bfloat16)).dtype == torch.bfloat16
