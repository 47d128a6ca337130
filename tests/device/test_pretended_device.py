"""The pretended device refuses what CUDA refuses, notices each wait with its line, and computes what the CPU computes."""

from __future__ import annotations

import copy
import inspect
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import pretended_device as pretended


@pytest.mark.parametrize(
    "fault",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.ones(3) * x.sum(),
        lambda x: torch.cat([x, torch.ones(1, 3)]),
        lambda x: torch.stack([x.sum(), torch.tensor(1.0)]),
        lambda x: torch.nn.Linear(3, 1)(x),
        lambda x: torch.nn.Embedding(4, 2).to("cuda")(torch.tensor([1])),
        lambda x: x.index_select(0, torch.tensor([1])),
        lambda x: torch.where(x > 0, x, torch.ones(4, 3)),
        lambda x: torch.ones(4, 3).index_put_((torch.tensor([1]),), x[:1]),
        lambda x: x.index_put_((torch.tensor([1]),), torch.ones(3)),
        lambda x: torch._foreach_add_([x], [torch.ones(4, 3)]),
        lambda x: torch.add(x, x, out=torch.empty(4, 3)),
    ],
    ids=lambda f: inspect.getsource(f).partition("x: ")[2].strip(" ,\n"),
)
def test_operands_on_two_devices_are_refused(device, fault):
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        fault(torch.ones(4, 3, device="cuda"))


def test_what_the_host_owns_can_be_an_operand_where_cuda_takes_it(device):
    x = torch.ones(4, 3, device="cuda")
    with device.no_waits():
        x = x + torch.tensor(1.0)
        x[0] = torch.tensor(3.0)
        x[x > 2] = 5.0
        x = torch.where(x > 4, x, torch.tensor(0.5))
    assert x.tolist() == [[5.0] * 3] + [[0.5] * 3] * 3


def test_indices_come_to_what_is_indexed_and_not_the_other_way(device):
    x, index = torch.arange(4.0, device="cuda"), torch.tensor([2, 1])
    assert x[index].tolist() == [2.0, 1.0]
    with pytest.raises(
        RuntimeError, match=r"indices should be either on cpu or on the same device as the indexed tensor \(cpu\)"
    ):
        torch.arange(4.0)[index.to("cuda")]


@pytest.mark.parametrize(
    "read", [lambda x: x.numpy(), np.asarray, lambda x: np.array([x[0]]), lambda x: np.float32(1) * x.numpy()]
)
def test_numpy_is_refused(device, read):
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        read(torch.ones(3, device="cuda"))


@pytest.mark.parametrize(
    "draw", [torch.rand, torch.randn, torch.randperm, lambda n, **k: torch.empty(n, device="cuda").normal_(**k)]
)
def test_a_generator_of_the_cpu_is_refused(device, draw):
    assert draw(3, **({} if draw.__name__ == "<lambda>" else {"device": "cuda"})).device == pretended.DEVICE
    given = {"generator": torch.Generator()} | ({} if draw.__name__ == "<lambda>" else {"device": "cuda"})
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        draw(3, **given)


def test_a_weight_can_not_leave_its_device_by_its_data(device):
    with pytest.raises(TypeError, match="can't become one on the cpu"):
        torch.nn.Linear(2, 2).to("cuda").weight.data = torch.ones(2, 2)


WAITS = {
    "read": [
        lambda x: x.sum().item(),
        lambda x: bool(x[0] > 0),
        lambda x: float(x[0]),
        lambda x: 1 if (x > 5).any() else 0,
        lambda x: torch.equal(x, x),
        lambda x: torch.tensor([x[0]], device="cuda"),
        lambda x: torch.inference_mode()(lambda: bool(x[0] > 0))(),
    ],
    "size": [
        lambda x: x.nonzero(),
        lambda x: torch.where(x > 0),
        lambda x: x[x > 0],
        lambda x: x.unique(),
        lambda x: x.masked_select(x > 0),
        lambda x: x.masked_scatter(x > 0, x.clone().requires_grad_()).sum().backward(),
        lambda x: x.repeat_interleave(x.long()),
        lambda x: x.clone().index_put_((x > 0,), x[:2]),
    ],
    "upload": [
        lambda x: torch.ones(3).to("cuda"),
        lambda x: torch.ones(3).to("cuda", non_blocking=True),
        lambda x: torch.ones(3).pin_memory().cuda(),
        lambda x: torch.tensor([1.0, 2.0], device="cuda"),
        lambda x: x[[0, 1]],
        lambda x: x[torch.tensor([0, 1])],
        lambda x: x.copy_(torch.ones(3)),
    ],
    "download": [
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: torch.empty(3).copy_(x),
        lambda x: torch.empty(3, pin_memory=True).copy_(x),
        lambda x: x.requires_grad_().numpy(force=True),
    ],
    "synchronize": [lambda x: torch.cuda.synchronize()],
}


@pytest.mark.parametrize("kind, waiting", [(kind, f) for kind, found in WAITS.items() for f in found])
def test_each_wait_is_noticed_with_its_line(device, kind, waiting):
    x = torch.tensor([1.0, 2.0, 0.0], device="cuda")
    with device.counting() as seen:
        waiting(x)
    here = f"tests/device/test_pretended_device.py:{waiting.__code__.co_firstlineno}"
    assert {(wait.kind, wait.line) for wait in seen.waits if wait.kind != "upload" or kind == "upload"} == {(kind, here)}, str(
        seen
    )
    with pytest.raises(pretended.WaitForbidden, match=here), device.no_waits():
        waiting(x)


def test_what_does_not_wait_is_not_counted(device):
    x, host = torch.ones(3, device="cuda"), torch.zeros(64, pin_memory=True)
    with device.no_waits(), device.counting() as seen:
        y = (x * 2).cumsum(0).softmax(0)[1:]
        y = torch.nn.functional.pad(y, (0, 2)).masked_fill(torch.arange(4, device="cuda") > 2, 0.0)
        y = torch.randn(4, device="cuda") + y.argmax() + x.repeat_interleave(2)[:4]
        z = host[8:16].view(2, 4).to("cuda", non_blocking=True)
        y.to("cpu", non_blocking=True)
    assert [(c.bytes, c.up) for c in seen.copies] == [(32, True), (16, False)]
    assert y.shape == (4,) and z.shape == (2, 4) and seen.copies[0].line.startswith("tests/device/test_pretended_device.py:")


def test_a_wait_in_a_backward_pass_has_the_line_of_its_backward(device):
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * float(torch.ones((), device="cuda"))

    y = Reads.apply(torch.ones(3, device="cuda", requires_grad=True)).sum()
    with device.counting() as seen:
        y.backward()
    assert [wait.kind for wait in seen.waits] == ["read"] and "test_pretended_device.py" in seen.waits[0].line


@pytest.mark.parametrize("device, own", [("", True), ("threads", False)], indirect=["device"])
def test_a_backward_pass_runs_in_a_thread_of_the_device_where_it_is_asked_for(device, own):
    x, seen = torch.ones(2, device="cuda", requires_grad=True), []
    y = x * 2
    y.register_hook(lambda grad: seen.append(threading.get_ident() == main))
    main = threading.get_ident()
    y.sum().backward()
    assert seen == [own] and x.grad.tolist() == [2.0, 2.0]


def test_another_thread_has_the_device_too(device):
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.zeros(3, device="cuda") + torch.tensor(2.0)))
    thread.start()
    thread.join()
    assert found[0].device == pretended.DEVICE and found[0].tolist() == [2.0] * 3


def trained(device, tmp_path):
    """A module's weights after two steps, in all ways that a learner takes: in place, views, copies, checkpointing, saving."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.MultiheadAttention(8, 2, bias=False, batch_first=True))
    names = {id(p): name for name, p in model.named_parameters()}
    model.to(device)
    assert [names[id(p)] for p in model.parameters()] == list(names.values())  # the same objects, elsewhere
    again, ids = copy.deepcopy(model), torch.arange(6, device=device).view(2, 3)
    optimizer = torch.optim.AdamW(again.parameters(), lr=0.1, fused=True)
    for _ in range(2):
        hidden = torch.utils.checkpoint.checkpoint(again[0], ids, use_reentrant=False)
        out = again[1](hidden, hidden, hidden, need_weights=False)[0]
        table = torch.zeros(4, 8, device=device)
        table[1:3] = out[:, 0]
        table[0, torch.tensor([1, 3], device=device)] += 2.0
        view = table.view(-1)[8:16]
        view.mul_(3.0)
        (table**2).mean().backward()
        torch.nn.utils.clip_grad_norm_(again.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    save_file(again.state_dict(), tmp_path / "saved")
    assert not torch.equal(again[0].weight, model[0].weight)
    return load_file(tmp_path / "saved")


def test_it_computes_what_the_cpu_computes(device, tmp_path):
    one, two = trained("cuda", tmp_path), trained("cpu", tmp_path)
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name])


def test_outside_the_fixture_there_is_no_device():
    assert not torch.cuda.is_available() and not torch.accelerator.is_available()
    with pytest.raises((AssertionError, RuntimeError), match=r"not compiled with CUDA enabled|no NVIDIA driver"):
        torch.zeros(3, device="cuda")
    with pytest.raises(RuntimeError):
        torch.zeros(3).pin_memory()
