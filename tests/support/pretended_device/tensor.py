"""A tensor that says it is on cuda:0 and computes on the CPU, with CUDA's rules about devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from pretended_device.streams import STREAMS, Stream
from pretended_device.waits import Ledger

DEVICE = torch.device("cuda", 0)
HOST = torch.device("cpu")
aten = torch.ops.aten

LEDGER = Ledger()

SIZES = frozenset(
    ("nonzero", "masked_select", "masked_scatter_backward", "_unique2", "unique_dim", "unique_consecutive", "bincount")
)
"""Operations whose result has a size that depends on the numbers."""
READS = frozenset(("_local_scalar_dense", "equal", "is_nonzero", "multinomial"))
"""Operations that read a number to decide what to do, or return one."""
INDEXED = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
"""Operations that bring indices from the host to the device of what is indexed."""
WATCHED = SIZES | READS | INDEXED | {"repeat_interleave", "_to_copy"}
WHOLE = frozenset(
    (
        *("cat", "stack", "index_select", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_add"),
        *("index_add_", "index_copy", "index_copy_", "embedding", "take", "searchsorted", "masked_scatter", "masked_scatter_"),
    )
)
"""Operations in which a tensor without dimensions has to be on the device too; elementwise ones take it from the host."""
MISSING: dict[str, Callable[..., torch.Tensor]] = {
    "histc": lambda x, *args, **kwargs: torch.histc(x.float(), *args, **kwargs).to(x.dtype),  # of integers, for experts
    "mm": lambda x, y, dtype=None: torch.mm(x, y) if dtype is None else torch.mm(x.to(dtype), y.to(dtype)),
}
"""Operations that the CPU doesn't have as CUDA does."""
FACTORIES = (
    *(aten.empty.memory_format, aten.empty_strided.default, aten.arange.default, aten.arange.start, aten.arange.start_step),
    *(aten.eye.default, aten.eye.m, aten.tril_indices.default, aten.triu_indices.default, aten.randperm.default),
)
"""Operations that make a tensor from nothing; all others are made of these."""


class DeviceTensor(torch.Tensor):
    """`inner` holds the numbers, on the CPU."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> DeviceTensor:
        if inner.is_inference() != torch.is_inference_mode_enabled():  # such as a view of a weight in inference mode
            with torch.inference_mode(inner.is_inference()):
                return DeviceTensor(inner)
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=DEVICE,
        )
        made.inner = inner
        return made

    def __init__(self, inner: torch.Tensor) -> None: ...

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    # torch's modules move such parameters by exchanging them, so that they stay the same objects
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: None, size: Any, stride: Any) -> DeviceTensor:
        return DeviceTensor(inner["inner"])

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        if not isinstance(value, DeviceTensor):
            raise TypeError("`.data` of a tensor on cuda:0 can't become one on the cpu")
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.inner = value.inner

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.inner!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        with torch.no_grad():
            made = self.detach().clone()
        found = torch.nn.Parameter(made, self.requires_grad) if isinstance(self, torch.nn.Parameter) else made
        memo[id(self)] = found.requires_grad_(self.requires_grad)
        return found

    def tolist(self) -> Any:
        LEDGER.wait("download", "tolist")
        STREAMS.operate("tolist", [self.inner], [], [])
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        _refuse_numpy()

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        _refuse_numpy()

    def record_stream(self, s: Stream) -> None:  # type: ignore[override]
        STREAMS.record(self.inner, s)

    # what writes tensors to files asks where they lie, to find those that are one, and then copies them to the host
    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()


def _refuse_numpy() -> NoReturn:
    raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")


@dataclass(frozen=True, slots=True)
class Operation:
    """What is asked of an operation at each call, looked up once."""

    name: str
    composite: bool
    mutable: bool
    view: bool
    """It reads and writes nothing."""
    written: frozenset[int | str]
    """Arguments that it writes, by place and by name."""


@functools.cache
def operation(func: Any) -> Operation:
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    schema = func._schema
    written = [key for n, one in enumerate(schema.arguments) if one.is_write for key in (n, one.name)]
    view = not written and any(one.alias_info is not None for one in schema.returns)
    return Operation(schema.name.removeprefix("aten::"), composite, schema.is_mutable, view, frozenset(written))


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation with at least one tensor on the device. Raises RuntimeError where CUDA would."""
    this = operation(func)
    if this.composite:  # below autograd, as in inference mode, torch leaves these whole
        return func.decompose(*args, **kwargs)
    if this.name == "copy_":
        return copy(*args, **kwargs)
    mine: dict[int, DeviceTensor] = {}
    hosts: list[torch.Tensor] = []
    inner_args, inner_kwargs = _inner(args, mine, hosts), {k: _inner(v, mine, hosts) for k, v in kwargs.items()}
    if hosts or kwargs or this.name in WATCHED:
        _check(func, this.name, args, kwargs, hosts)
        _count(this.name, args, kwargs, hosts)
    device = kwargs.get("device")
    if device is not None:
        inner_kwargs["device"] = HOST
    shapes = {key: tensor.inner.shape for key, tensor in mine.items()} if this.mutable else {}
    made = MISSING.get(this.name, func)(*inner_args, **inner_kwargs)
    if any(mine[key].inner.shape != shape for key, shape in shapes.items()):
        raise NotImplementedError(f"{func} changed the shape of a tensor in place, which the pretended device can't")
    there = this.name != "_local_scalar_dense" and not _is_host(device)
    if not this.view:
        _operate(this, [*enumerate(inner_args), *inner_kwargs.items()], mine, made if there else ())
    return _wrapped(made, mine) if there else made


def _operate(this: Operation, arguments: list[tuple[int | str, Any]], mine: dict[int, DeviceTensor], made: Any) -> None:
    """Tell the streams of an operation. arguments: by place or by name."""
    used = [(key in this.written, tensor) for key, one in arguments for tensor in _tensors(one) if id(tensor) in mine]
    writes, reads = [x for write, x in used if write], [x for write, x in used if not write]
    STREAMS.operate(this.name, reads, writes, [tensor for tensor in _tensors(made) if id(tensor) not in mine])


def _tensors(x: Any) -> list[torch.Tensor]:
    if isinstance(x, (list, tuple)):
        return [tensor for one in x for tensor in _tensors(one)]
    return [x] if isinstance(x, torch.Tensor) else []


def copy(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`to.copy_(source)`, also between host and device."""
    if isinstance(to, DeviceTensor) and not isinstance(source, DeviceTensor):
        _transferred(source, non_blocking, up=True)
    elif not isinstance(to, DeviceTensor) and isinstance(source, DeviceTensor):
        _transferred(to, non_blocking, up=False)
    with torch.no_grad():
        _plain(to).copy_(_plain(source))
    reads, writes = ([x.inner] if isinstance(x, DeviceTensor) else [] for x in (source, to))
    STREAMS.operate("copy_", reads, writes, [])
    return to


def _transferred(host: torch.Tensor, non_blocking: bool, up: bool) -> None:
    if not host.numel():
        return
    pinned = host.is_pinned()
    if pinned and non_blocking:
        LEDGER.copy(host.nbytes, up)
    else:
        LEDGER.wait("upload" if up else "download", "blocking copy" if pinned else "memory that isn't pinned")


def _count(name: str, args: Any, kwargs: dict[str, Any], hosts: list[torch.Tensor]) -> None:
    """Record that the host waits, if it does."""
    if name in READS:
        LEDGER.wait("read", name)
    elif name in SIZES or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        LEDGER.wait("size", name)
    elif name in INDEXED:
        masks = [isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1] if i is not None]
        filled = all(masks) and len(args) > 2 and not isinstance(args[2], DeviceTensor) and args[2].numel() == 1
        if any(masks) and not filled:  # x[mask] = number is x.masked_fill_(mask, number)
            LEDGER.wait("size", f"{name} with a mask")
        for index in args[1]:
            if isinstance(index, torch.Tensor) and not isinstance(index, DeviceTensor):
                _transferred(index, False, up=True)
    elif name == "_to_copy" and _is_host(kwargs.get("device")) and not hosts:
        if kwargs.get("non_blocking"):
            LEDGER.copy(args[0].nbytes, up=False)  # to memory that torch pins
        else:
            LEDGER.wait("download", "to")


def _check(func: Any, name: str, args: Any, kwargs: dict[str, Any], hosts: list[torch.Tensor]) -> None:
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type != "cuda":
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found '{generator.device.type}' in {func}")
    allowed: tuple[Any, ...] = ()
    if name in INDEXED:
        if not isinstance(args[0], DeviceTensor) and any(isinstance(i, DeviceTensor) for i in args[1]):
            raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor (cpu) in {func}")
        allowed = tuple(id(i) for i in args[1] if i is not None)
    odd = [t for t in hosts if (t.ndim or name in WHOLE) and id(t) not in allowed]
    if odd:
        shapes = ", ".join(str(list(t.shape)) for t in odd)
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu, in {func}: "
            f"on the cpu are tensors of shape {shapes}"
        )


def _is_host(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cpu"


def _plain(x: torch.Tensor) -> torch.Tensor:
    return x.inner if isinstance(x, DeviceTensor) else x


def _inner(x: Any, mine: dict[int, DeviceTensor], hosts: list[torch.Tensor]) -> Any:
    """Arguments of an operation with the tensors that compute them; what was on the device is added to `mine`, by the identity of
    its inner tensor, and what wasn't to `hosts`."""
    kind = type(x)
    if kind is DeviceTensor:
        mine[id(x.inner)] = x
        return x.inner
    if kind is list or kind is tuple:
        return kind([_inner(one, mine, hosts) for one in x])
    if isinstance(x, torch.Tensor):
        hosts.append(x)
    return x


def _wrapped(x: Any, mine: dict[int, DeviceTensor]) -> Any:
    if isinstance(x, torch.Tensor):
        return mine[id(x)] if id(x) in mine else DeviceTensor(x)
    if isinstance(x, (list, tuple)):
        return type(x)([_wrapped(one, mine) for one in x])
    return x


def kernels() -> torch.library.Library:
    """Register what torch calls for the device without a tensor on it; they are there as long as the result is."""
    library = torch.library.Library("aten", "IMPL")
    for func in FACTORIES:
        library.impl(func.name().removeprefix("aten::").removesuffix(".default"), _factory(func), "CUDA")
    # torch.tensor leaves __torch_dispatch__ out
    library.impl("copy_", copy, "CUDA")
    library.impl("_local_scalar_dense", lambda x: compute(aten._local_scalar_dense.default, (x,), {}), "CUDA")
    return library


def _factory(func: Any) -> Callable[..., DeviceTensor]:
    def make(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> DeviceTensor:
        made = func(*args, device=HOST, **kwargs)
        STREAMS.operate(func.name(), [], [], [made])
        return DeviceTensor(made)

    return make
