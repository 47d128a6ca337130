"""A model whose numbers of a token don't depend on what else is in a pass, so that sampler and learner compute the same bits.

A product of matrices is computed by another kernel for a few rows than for many, which adds in another order; in 16 bits a number
that rounds otherwise is enough to change nearly all that follow (`benchmarks/gap_parts.py`). He et al. 2025 (Defeating
Nondeterminism in LLM Inference, Thinking Machines Lab) write kernels that add in one order. Here torch's own kernels are asked
for one shape alone: a layer multiplies `ROWS` tokens at a time, the last of them filled up, in every pass. Backward passes, of
which there is one for each token, are computed as always. Attention: `sequence_attention`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from mmrl.api.errors import UserError
from mmrl.policies.nf4 import NF4Linear
from mmrl.policies.vlm.capabilities import Capabilities
from mmrl.policies.vlm.experts import has_experts
from mmrl.policies.vlm.vision import embed_patches

ALONE = "mmrl_alone"
"""Name of `_alone` among transformers' implementations of attention."""
ROWS = 128
"""Tokens that a layer multiplies at a time."""
FEW = 16
"""Rows below which torch's sums over a row on a GPU are divided among more threads, the fewer there are."""


class InvariantLinear(nn.Linear):
    """A linear layer that multiplies `ROWS` rows at a time."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Product.apply(input, self.weight, self.bias)
        return found


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return by_rows(lambda piece: linear(piece, weight, bias), x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_needs, weight_needs, bias_needs = ctx.needs_input_grad
        slope, flat = slopes[0].flatten(0, -2), x.flatten(0, -2)
        return (
            slopes[0] @ weight if x_needs else None,
            slope.mT @ flat if weight_needs else None,
            slope.sum(0) if ctx.has_bias and bias_needs else None,
        )


def by_rows(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """function(x [..., in]) -> [..., out], of `ROWS` rows at a time."""
    *whole, last = x.reshape(-1, x.shape[-1]).split(ROWS)
    filled_up = pad(last, (0, 0, 0, ROWS - len(last)))
    found = torch.cat([*map(function, whole), function(filled_up)[: len(last)]])
    return found if x.ndim == 2 else found.view(*x.shape[:-1], found.shape[-1])  # no view: adapters add to it in place


def make_invariant(model: Any) -> None:
    """Let all layers of a model that add up numbers of a token, adapted ones too, and the attention of its towers do so in one
    order. That of its language model is another matter. Weights and their names stay as they are. Layers of other kinds stay,
    too, and `probe` finds those that depend on the batch. Raises NotImplementedError for weights in 4 bits."""
    AttentionInterface.register(ALONE, _alone)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ALONE, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    text = model.config.get_text_config()
    for module in list(model.modules()):
        own = getattr(module, "config", None)
        if own is not None and own is not text and not own.sub_configs and own._attn_implementation == "sdpa":
            own._attn_implementation = ALONE
        if isinstance(module, NF4Linear):
            raise NotImplementedError("weights in 4 bits are made whole for each product")
        if type(module) is nn.Linear:
            module.__class__ = InvariantLinear
        elif hasattr(module, "lora_A"):
            module.forward = partial(by_rows, module.forward)
        elif isinstance(module, nn.modules.conv._ConvNd):
            module.forward = partial(_convolved, module.forward, module.kernel_size)
        elif type(module).__name__.endswith("Norm"):
            module.forward = partial(_filled_up, module.forward)
        elif getattr(vars(module).get("forward"), "func", None) is embed_patches:
            module.forward = partial(by_rows, module.forward)


def _alone(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers for towers: one picture after another, so that their number changes no kernel."""
    found = []
    for i in range(len(query)):
        own = None if attention_mask is None else attention_mask[i : i + 1] if len(attention_mask) > 1 else attention_mask
        found.append(sdpa_attention_forward(module, query[i : i + 1], key[i : i + 1], value[i : i + 1], own, **given)[0])
    return torch.cat(found), None


def _convolved(forward: Callable[[torch.Tensor], torch.Tensor], kernel_size: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    """A convolution of one picture after another; where the inputs are single patches, of `ROWS` of them."""
    if x.shape[2:] != kernel_size:
        return torch.cat([forward(one) for one in x.split(1)])
    return by_rows(lambda patches: forward(patches.view(-1, *x.shape[1:])).flatten(1), x.flatten(1)).view(
        len(x), -1, *[1] * len(kernel_size)
    )


def refuse_variant(model: Any, found: Capabilities) -> None:
    """Raise UserError unless the model computes the same bits in every pass, as `probe` found."""
    why = found.why_not if not found.packs else "" if found.way == "varlen" else found.slower_because
    if found.recurrent:
        why = f"{', '.join(found.recurrent)} have a state"
    elif has_experts(model):
        why = "how many tokens an expert is given depends on the others"
    if why:
        raise UserError(
            f"a {model.config.model_type} model can't be computed alike in every pass ({why}): leave it out; "
            'policy.dtype = "float16" makes the gap small',
            key="policy.batch_invariant",
        )


def _filled_up(forward: Callable[..., torch.Tensor], x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A norm of at least `FEW` rows."""
    rows = x.numel() // x.shape[-1]
    if rows >= FEW:
        return forward(x, *args, **kwargs)
    flat = pad(x.reshape(rows, -1), (0, 0, 0, FEW - rows))
    return forward(flat, *args, **kwargs)[:rows].view(x.shape)
