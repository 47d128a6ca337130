"""FlashAttention 3 (Shah et al. 2024) where its package is installed: torch's fused attention takes its kernels on Hopper GPUs.

torch has the switch (`torch.nn.attention.activate_flash_attention_impl`) and calls the package's kernels by position, so a
package of another version may fail or compute something else: they are tried, with gradients, before they stay.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from typing import Any

import torch
from torch.nn import attention
from torch.nn.attention import SDPBackend, sdpa_kernel

from mmrl.api.errors import shorten

PACKAGE, NAME = "flash_attn_interface", "FA3"
"""The package's module, and what torch calls its kernels."""
BOUND = 2e-2
"""Allowed difference in bfloat16 from exact attention, relative to the largest value."""


@functools.cache
def use_flash_attention(device: str) -> bool:
    """Whether torch's fused attention takes these kernels from now on, in the whole process. Where they are installed and can't
    be used, a warning says why, and torch's own stay."""
    if not _has_place(device):
        return False
    try:
        attention.activate_flash_attention_impl(NAME)
        apart = differences(device)
        why = "" if all(by <= BOUND for by in apart.values()) else f"they differ from exact attention: {apart}"
    except Exception as error:  # noqa: BLE001  a package of another version may fail in any way
        why = f"{type(error).__name__}: {shorten(error, 200)}"
    if why:
        attention.restore_flash_attention_impl(_raise_warn=False)
        warnings.warn(
            f"FlashAttention 3 is installed, but its kernels can't be used: torch's own are as exact, but slower ({why})",
            stacklevel=2,
        )
    return not why


def _has_place(device: str) -> bool:
    """Whether torch has the switch, the package is installed, and the GPU is one that its kernels are for."""
    if not device.startswith("cuda") or torch.version.hip or not hasattr(attention, "restore_flash_attention_impl"):
        return False
    there = NAME in attention.list_flash_attention_impls() and importlib.util.find_spec(PACKAGE) is not None
    return there and torch.cuda.get_device_capability(device)[0] == 9


def differences(device: str) -> dict[str, float]:
    """Of torch's fused attention in bfloat16 from exact attention, relative to the largest value: output and gradients of rows,
    of causal ones whose heads share keys, and on a GPU of sequences of several lengths that lie one behind the other."""
    found: dict[str, float] = {}
    for name, heads, causal in (("rows", 4, False), ("causal rows, shared keys", 2, True)):
        found[name] = _difference(device, heads, causal)
    if torch.device(device).type == "cuda":
        found["several lengths"] = _difference(device, 4, False, (41, 89))
    return found


def _difference(device: str, heads: int, causal: bool, lengths: tuple[int, ...] = ()) -> float:
    """heads: of keys and values, for 4 of queries. lengths: of sequences that don't see each other; empty for one."""
    S, width = 130, 64
    noise = torch.Generator().manual_seed(heads)
    made = [torch.randn(1, n, S, width, generator=noise).bfloat16() for n in (4, heads, heads, 4)]
    apart = torch.zeros(S, S, dtype=torch.bool)
    for part in torch.arange(S).split(lengths or (S,)):
        apart[part[:, None], part] = True
    mask = apart.tril() if causal else apart
    with sdpa_kernel(SDPBackend.MATH):
        exact = _with_gradients([x.double() for x in made], lambda *x: _attention(*x, attn_mask=mask, enable_gqa=True))
    there = [x.to(device) for x in made]
    if lengths:
        ours = _with_gradients(there, functools.partial(_of_lengths, lengths))
    else:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            ours = _with_gradients(there, lambda *x: _attention(*x, is_causal=causal, enable_gqa=True))
    gaps = [float((a.cpu().double() - b).abs().max() / b.abs().max()) for a, b in zip(ours, exact, strict=True)]
    return max(gap if gap == gap else torch.inf for gap in gaps)


_attention: Any = torch.nn.functional.scaled_dot_product_attention


def _of_lengths(lengths: tuple[int, ...], *given: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention import varlen

    attend: Any = varlen.varlen_attn
    ends = torch.tensor([0, *lengths], dtype=torch.int32, device=given[0].device).cumsum(0, dtype=torch.int32)
    found: torch.Tensor = attend(*(x[0].transpose(0, 1) for x in given), ends, ends, max(lengths), max(lengths))
    return found.transpose(0, 1)[None]


def _with_gradients(made: list[torch.Tensor], attended: Any) -> list[torch.Tensor]:
    """The output and the gradients of query, key and value, for the last tensor as the output's gradient."""
    with torch.enable_grad():
        given = [x.detach().requires_grad_() for x in made[:3]]
        output = attended(*given)
        return [output.detach(), *torch.autograd.grad(output, given, made[3])]
