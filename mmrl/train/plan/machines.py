"""The machine of a plan: a GPU by name, this machine's GPU, or its CPU, whose speed is measured in about a second.

GPUs: memory is the total that nvidia-smi reports; speed is the dense rate of bfloat16 tensor cores with float32 accumulation;
bandwidths are NVIDIA's (data sheets of H100, H200, A100, L40S, L4 and DGX B200; the Ada and Blackwell GPU architecture papers for
RTX cards). Rates between GPUs and to the host are for one direction, half of those in data sheets.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mmrl.api.errors import UserError, did_you_mean

MIB, GB, TERA = 2**20, 1e9, 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One of a run's devices, and its links to the others."""

    name: str
    kind: str
    """`gpu` or `cpu`."""
    memory: int
    """Bytes."""
    flops: float
    """Floating-point operations per second in matrix products of bfloat16."""
    flops32: float
    """Floating-point operations per second in matrix products of float32, without TensorFloat-32, which torch leaves off."""
    bandwidth: float
    """Bytes per second from and to memory."""
    link: float
    """Bytes per second, one direction, between devices of a node."""
    host: float
    """Bytes per second, one direction, to the host's memory."""
    network: float = 50 * GB
    """Bytes per second, one direction, of a device between nodes: InfiniBand or Ethernet of 400 Gbit/s."""
    node: int = 8
    """Devices per node."""
    reserved: int = 0
    """Bytes that a process can't use: the CUDA context, cuBLAS and fragmentation of the allocator."""
    launch: float = 16e-6
    """Seconds that Python and torch need to start an operation of a forward pass. A GPU computes meanwhile. On an H100 a decoding
    step of 3B, 2,200 operations as a plan counts them, took 35 ms; kernels that one loop starts take 7 us each."""
    behind: float = 0.5
    """Share of `launch` for an operation of a backward pass, which autograd starts without Python."""
    matmul: float = 0.65
    """Share of `flops` that large matrix products reach."""
    thin: float = 1.0
    """Share of `matmul` that products of about ten rows reach, as in decoding, if reading weights doesn't limit them."""
    attention: float = 0.25
    """Share of `flops` that attention with a mask of all pairs of tokens reaches."""
    fused: float = 0.35
    """Share of `flops` that attention without a mask reaches: FlashAttention 2 on an H100 (Shah et al. 2024, FlashAttention-3,
    abstract)."""
    blocks: float = 0.3
    """Share of `flops` that attention by blocks reaches: nine tenths of that (He et al. 2024, FlexAttention: the flexibility of
    PyTorch with the performance of FlashAttention)."""
    streaming: float = 0.8
    """Share of `bandwidth` that elementwise operations reach."""
    source: str = ""
    """Where the numbers are from."""


def _gpu(
    name: str, mib: int, tflops: float, tflops32: float, gbs: float, link: float, host: float, source: str = "data sheet"
) -> Machine:
    return Machine(
        name=name,
        kind="gpu",
        memory=mib * MIB,
        flops=tflops * TERA,
        flops32=tflops32 * TERA,
        bandwidth=gbs * GB,
        link=link * GB,
        host=host * GB,
        reserved=1024 * MIB,
        source=f"NVIDIA's {source}; the shares of its rates that a run reaches are assumed",
    )


GPUS = {
    "b200": _gpu("NVIDIA B200", 183359, 2250, 75, 8000, 900, 64, "DGX B200 data sheet"),
    "h200": _gpu("NVIDIA H200", 143771, 989.4, 66.9, 4800, 450, 64),
    "h100": _gpu("NVIDIA H100 80GB HBM3", 81559, 989.4, 66.9, 3350, 450, 64),
    "h100-pcie": _gpu("NVIDIA H100 PCIe", 81559, 756.4, 51.2, 2000, 64, 64),
    "a100": _gpu("NVIDIA A100-SXM4-80GB", 81920, 312, 19.5, 2039, 300, 32),
    "a100-40gb": _gpu("NVIDIA A100-SXM4-40GB", 40960, 312, 19.5, 1555, 300, 32),
    "l40s": _gpu("NVIDIA L40S", 46068, 362, 91.6, 864, 32, 32),
    "l4": _gpu("NVIDIA L4", 23034, 121, 30.3, 300, 32, 32),
    "rtx-5090": _gpu("NVIDIA GeForce RTX 5090", 32607, 209.5, 104.8, 1792, 64, 64, "Blackwell GPU architecture paper"),
    "rtx-4090": _gpu("NVIDIA GeForce RTX 4090", 24564, 165.2, 82.6, 1008, 32, 32, "Ada GPU architecture paper"),
}
"""Value of `--machine` -> the GPU."""
PARTS_OF_NAMES = {
    "B200": "b200", "H200": "h200", "H100 PCIe": "h100-pcie", "H100": "h100", "A100-SXM4-40GB": "a100-40gb",
    "A100-PCIE-40GB": "a100-40gb", "A100": "a100", "L40S": "l40s", "L4": "l4", "RTX 5090": "rtx-5090", "RTX 4090": "rtx-4090",
}  # fmt: skip
"""Part of a device's name -> value of `--machine`; the first match counts."""


def machine_by_name(name: str) -> Machine:
    """A GPU of the table, or `cpu`, which is measured. Raises UserError for other names."""
    key = name.lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    if key == "cpu":
        return cpu()
    key = {"a100-80gb": "a100", "h100-80gb": "h100", "4090": "rtx-4090", "5090": "rtx-5090"}.get(key, key)
    if key not in GPUS:
        raise UserError(f"--machine {name!r} is unknown.{did_you_mean(name, GPUS)} Choose one of cpu, {', '.join(GPUS)}")
    return GPUS[key]


def current_machine(device: str, measured: bool = True) -> tuple[Machine, int]:
    """(machine of this torch device, number of such devices). The memory of a GPU that isn't in the table is its own; its speeds
    are measured if `measured`, else assumed."""
    import torch

    if not device.startswith("cuda"):
        return cpu(), 1
    found = torch.cuda.get_device_properties(device)
    key = next((key for part, key in PARTS_OF_NAMES.items() if re.search(rf"{part}(?!\d)", found.name)), None)  # an L40 is no L4
    count = torch.cuda.device_count() if device == "cuda" else 1
    if key is not None:
        return replace(GPUS[key], name=found.name, memory=found.total_memory), count
    other = replace(GPUS["l40s"], name=found.name, memory=found.total_memory)
    if not measured:
        return other, count
    return replace(
        other,
        flops=_rate(device, torch.bfloat16, 4096),
        flops32=_rate(device, torch.float32, 2048),
        bandwidth=_copying(device, 2**28),
        matmul=1.0,
        streaming=1.0,
        source="measured matrix products and copies; links are assumed to be PCIe 4",
    ), count


def cpu(inner: int = 512) -> Machine:
    """This machine's CPU with torch's threads, measured in about a second: matrix products of width `inner`, copies larger than
    the caches, and the time of one small operation."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    threads = torch.get_num_threads()
    small = torch.ones(16)

    def many() -> None:
        for _ in range(2000):
            small.mul(small)

    copied, rate = _copying("cpu", 2**24), _rate("cpu", torch.float32, inner)
    return Machine(
        name=f"this machine's CPU, {threads} thread{'s' * (threads > 1)}",
        kind="cpu",
        memory=memory,
        flops=_rate("cpu", torch.bfloat16, inner),
        flops32=rate,
        bandwidth=copied,
        link=copied / 2,
        host=copied,
        network=1.25 * GB,
        node=1,
        launch=2.5 * _best(many) / 2000,  # the modules around an operation take time too
        matmul=1.0,
        thin=min(1.0, _rate("cpu", torch.float32, inner, 16) / rate),
        attention=0.5,
        fused=0.5,
        blocks=0.5,
        streaming=1.0,
        source="measured",
    )


def _rate(device: str, dtype: Any, width: int, rows: int = 0) -> float:
    """Floating-point operations per second of matrix products of this width. rows: `width` if 0."""
    import torch

    rows = rows or width
    a, b = (torch.ones(n, width, device=device, dtype=dtype) for n in (rows, width))
    times = max(1, (4 if device == "cpu" else 64) * 512**3 // (rows * width**2))

    def work() -> None:
        for _ in range(times):
            torch.nn.functional.linear(a, b)
        _wait(device)

    return times * 2 * rows * width**2 / _best(work)


def _copying(device: str, size: int) -> float:
    """Bytes per second, read and written, of copies of so many bytes."""
    import torch

    source, target = (torch.empty(size // 4, device=device) for _ in range(2))
    source.zero_()

    def work() -> None:
        target.copy_(source)
        _wait(device)

    return 2 * size / _best(work)


def _best(work: Callable[[], None], times: int = 5) -> float:
    """Seconds of the fastest of some runs after a warm-up, as other processes only slow them down. Processor time if torch has
    one thread and there is no GPU."""
    import torch

    clock = time.process_time if torch.get_num_threads() == 1 and not torch.cuda.is_available() else time.perf_counter
    work()
    seconds = []
    for _ in range(times):
        started = clock()
        work()
        seconds.append(clock() - started)
    return max(min(seconds), 1e-9)


def _wait(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)
