"""The device that a run computes on."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Iterator

import torch

from mmrl.api.errors import UserError, shorten
from mmrl.compute import ranks
from mmrl.compute.flash_attention import use_flash_attention
from mmrl.config.sections import PolicyConfig

CAPTURING = threading.Lock()
"""Held while a CUDA graph is captured, which fails if another thread waits for the device meanwhile, and by who waits for it
beside a sampler."""
OWN = 2**30
"""Bytes of a GPU's memory that a process without tensors may take: below, nobody else is said to hold any."""


def resolve_device(policy: PolicyConfig) -> str:
    """The torch device for `policy.device`. Raises UserError if this machine doesn't have it, and for `auto` if it has a GPU that
    torch can't use."""
    if policy.device == "auto":
        if why := why_no_gpu():
            raise UserError(
                f'policy.device = "auto", but torch can\'t use the GPU: {why}; mend that, or set policy.device = "cpu"'
            )
        return f"cuda{ranks.local_device()}" if torch.cuda.is_available() else "cpu"
    if ranks.world_size() > 1 and policy.device.startswith("cuda:"):
        raise UserError(f'policy.device = {policy.device!r} is one GPU, and there are {ranks.world_size()} learners: use "auto"')
    return check_device("policy.device", policy.device)


def following_device(device: str) -> str:
    """The device of this learner where `device` is that of the machine's first: the next learners have the GPUs after it."""
    if not device.startswith("cuda"):
        return device
    own = torch.cuda.current_device() if ranks.world_size() > 1 else 0
    return f"cuda:{int(device.partition(':')[2] or 0) + own}"


def check_device(key: str, device: str) -> str:
    """Return the device. Raises UserError if this machine doesn't have it. key: the run-file key, for the message."""
    why = why_no_gpu() if device.startswith("cuda") else ""
    if device.startswith("cuda") and not torch.cuda.is_available():
        said = f" ({why})" if why else ""
        raise UserError(f'{key} = {device!r}, but torch sees no GPU{said}: use "cpu" or "auto", and see mmrl doctor')
    if device.startswith("cuda:") and int(device[5:]) >= torch.cuda.device_count():
        raise UserError(f"{key} = {device!r}, but there are {torch.cuda.device_count()} GPUs: count from cuda:0")
    return device


@functools.cache
def why_no_gpu() -> str:
    """Why torch can't use the GPU that is there, such as its driver's age; empty if it can, or if there is none. torch says it
    once for each process, when it first looks: ask here before `torch.cuda.is_available()`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        there = torch.cuda.is_available()
    said = [str(warning.message).removeprefix("CUDA initialization: ") for warning in caught]
    return "" if there else next((text.partition(". ")[0].partition(" (Triggered")[0] for text in said if text), "")


def prepare_device(device: str, dtype: str) -> None:
    """Try a GPU before anything is loaded onto it. Convolutions in float32 become as exact as on a CPU: torch would round
    their input to 10 bits. Products of 16 bits are summed in float32 (`sum_in_float32`). cuDNN's attention, which torch
    prefers on an H100, since 2.15 also for sequences of several lengths (`varlen_attn`), is not used: it gives rows of a mask
    that see nothing other numbers than torch's own kernels, which give 0 (seen with torch 2.11). FlashAttention 3 is used where
    it is installed. Raises UserError if it can't compute, or not in the policy's dtype."""
    if not device.startswith("cuda"):
        return
    if why := refusal(device):
        raise UserError(f"the GPU {device}: {why}")
    if dtype == "bfloat16" and not has_bfloat16(device):
        name = torch.cuda.get_device_name(device)
        raise UserError(
            f'policy.dtype = "bfloat16", which {name} computes only by emulation, slowly: set policy.dtype = "float16" or '
            '"float32"'
        )
    torch.backends.cudnn.allow_tf32 = False
    sum_in_float32()
    torch.backends.cuda.enable_cudnn_sdp(False)
    use_flash_attention(device)


def sum_in_float32() -> None:
    """Sum products of 16 bits in float32 only, on GPUs, in this process: torch would sum the parts of long ones in 16 bits, with
    few rows more often, so that a sampler differed from its learner."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def refusal(device: str) -> str:
    """Why a GPU that torch sees can't compute, and what to do; empty if it can."""
    try:
        torch.ones(8, device=device).sum().item()
    except RuntimeError as error:  # torch.AcceleratorError and torch.OutOfMemoryError are RuntimeErrors
        said = shorten(error)
        part = next((part for part in CURES if part in said), said[:200])
        return f"it can't be used: {part}: {CURES.get(part, 'see mmrl doctor and nvidia-smi')}"
    return ""


CURES = {
    "no kernel image is available": "this build of torch is not for its architecture: install one that is",
    "out of memory": "other processes hold its memory: nvidia-smi lists them",
    "busy or unavailable": "another process has it for itself: nvidia-smi lists it",
}
"""Part of torch's message -> what to do."""


def has_bfloat16(device: str) -> bool:
    """Whether the GPU has bfloat16 arithmetic: NVIDIA's since Ampere (compute capability 8.0), and AMD's."""
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def held_by_others(device: str) -> int:
    """Bytes of a GPU's memory that other processes hold; 0 if it is less than a process takes anyway."""
    if not device.startswith("cuda"):
        return 0
    free, total = torch.cuda.mem_get_info(device)
    held = total - free - torch.cuda.memory_reserved(device)
    return held if held > OWN else 0


def remark(device: str) -> str:
    """What is wrong with a GPU that torch sees, for `mmrl doctor`; empty if nothing is."""
    if why := refusal(device):
        return why
    if held := held_by_others(device):
        return f"other processes hold {held / 2**30:.1f} GiB of its memory: nvidia-smi lists them"
    return "" if has_bfloat16(device) else 'it computes in bfloat16 only by emulation: use policy.dtype = "float16" or "float32"'


@contextlib.contextmanager
def current_gpu(device: torch.device) -> Iterator[None]:
    """Context in which a GPU is the current one, which each thread has to say for itself; nothing on a CPU."""
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        yield
