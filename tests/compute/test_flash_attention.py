"""FlashAttention 3, with stand-ins for its kernels that torch's own dispatcher calls on the CPU."""

import importlib.util
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.nn import attention

from mmrl.compute import devices, flash_attention

if not hasattr(attention, "restore_flash_attention_impl"):
    pytest.skip("this torch has no other kernels of attention", allow_module_level=True)

OPERATION = "_scaled_dot_product_flash_attention_for_cpu"


class Handle:
    """As the package's own: kernels are there while it is."""

    def __init__(self, kernel):
        self.library = torch.library.Library("aten", "IMPL", "CPU")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.library.impl(OPERATION, kernel, "CPU")

    def remove(self):
        self.library._destroy()


def exact(query, key, value, dropout_p=0.0, is_causal=False, **_):
    key, value = (x.float().repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    found = query.float() @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        found = found.masked_fill(~torch.ones_like(found, dtype=torch.bool).tril(), -torch.inf)
    return (found.softmax(-1) @ value).to(query.dtype), found.logsumexp(-1)


def blind(query, key, value, *_, **__):
    """Takes its arguments in another order, so that a causal row sees what follows."""
    return exact(query, key, value)


@pytest.fixture
def hopper(monkeypatch):
    """A GPU for which the package is installed; `kernel` takes the place of its kernels, `calls` counts them."""
    found = SimpleNamespace(kernel=exact, calls=0, capability=(9, 0))

    def register():
        def counted(*given, **options):
            found.calls += 1
            return found.kernel(*given, **options)

        return Handle(counted)

    real, spec = flash_attention.differences, importlib.util.find_spec
    monkeypatch.setitem(attention._registry._FLASH_ATTENTION_IMPLS, flash_attention.NAME, register)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: name == flash_attention.PACKAGE or spec(name, *more))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: found.capability)
    monkeypatch.setattr(flash_attention, "differences", lambda device: real("cpu"))
    flash_attention.use_flash_attention.cache_clear()
    yield found
    attention.restore_flash_attention_impl(_raise_warn=False)
    flash_attention.use_flash_attention.cache_clear()


def test_its_kernels_are_used_where_they_compute_the_same(hopper):
    assert flash_attention.use_flash_attention("cuda:0")
    assert attention.current_flash_attention_impl() == "FA3" and hopper.calls == 2
    row = torch.randn(1, 1, 4, 8)
    torch.nn.functional.scaled_dot_product_attention(row, row, row)
    assert hopper.calls == 3
    assert flash_attention.use_flash_attention("cuda:0") and hopper.calls == 3, "once in a process"


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (blind, r"they differ from exact attention: \{'rows': .*, 'causal rows, shared keys': [0-9.]+\}"),
        (lambda *_, **__: (_ for _ in ()).throw(TypeError("fwd() got 34 arguments")), r"TypeError: fwd\(\) got 34 arguments"),
    ],
    ids=["wrong", "other arguments"],
)
def test_kernels_that_fail_or_differ_are_told_and_not_used(hopper, kernel, why):
    hopper.kernel = kernel
    with pytest.warns(match=rf"^FlashAttention 3 is installed, but its kernels can't be used: .* \({why}"):
        assert not flash_attention.use_flash_attention("cuda:0")
    calls = hopper.calls
    row = torch.randn(1, 1, 4, 8)
    torch.nn.functional.scaled_dot_product_attention(row, row, row)
    assert attention.current_flash_attention_impl() is None and hopper.calls == calls


def test_elsewhere_nothing_is_tried(hopper, monkeypatch):
    assert not flash_attention.use_flash_attention("cpu")
    hopper.capability = (8, 0)
    assert not flash_attention.use_flash_attention("cuda:0")
    hopper.capability = (9, 0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    assert not flash_attention.use_flash_attention("cuda:1") and not hopper.calls


def test_a_gpu_is_prepared_with_them(monkeypatch):
    asked = []
    monkeypatch.setattr(devices, "use_flash_attention", asked.append)
    monkeypatch.setattr(devices, "refusal", lambda device: "")
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda on: None)
    devices.prepare_device("cpu", "float32")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    devices.prepare_device("cuda:0", "float32")
    assert asked == ["cuda:0"]


def test_torchs_own_kernels_differ_by_rounding_alone():
    assert all(0 < by <= flash_attention.BOUND for by in flash_attention.differences("cpu").values())
