"""Log-probabilities and entropies from hidden states, without the logits of more than a few tokens at a time.

The forward pass keeps the hidden states and one number for each token, its log-sum-exp. The backward pass computes the logits
of a few tokens again, turns them into their gradients in place, and adds what follows for the output embeddings up in
float32. This is what Wijmans et al. 2024 (Cut Your Losses in Large-Vocabulary Language Models, sections 4.1 and 4.2) do
inside of one kernel, and Liger Kernel (Hsu et al. 2024, section 3.2) for the sum of a loss.

L tokens, H wide, V ids; C tokens at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from mmrl.policies.vlm.logits import Logits

LEAST = -1e4
"""Log-probabilities below are taken for it, so that a banned id, whose own is minus infinity, adds nothing to an entropy."""


def is_linear(head: Any) -> bool:
    """Whether `linear_logprobs` knows the head: one whose output embeddings are a linear layer alone, without adapters."""
    return isinstance(head, Logits) and type(head.out) is torch.nn.Linear


def linear_logprobs(
    hidden_LH: torch.Tensor,
    head: Logits,
    target_L: torch.Tensor,
    bias_V: torch.Tensor,
    *,
    temperature: float,
    at_once: int,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities [L] of the targets, entropies [L] in nats), float32. bias_V: added to the logits behind the temperature;
    minus infinity bans an id. at_once: tokens whose logits are computed at a time. entropy_gradient: the entropy has one too."""
    options = _Options(head, temperature, at_once)
    found: tuple[torch.Tensor, torch.Tensor] = _LinearLogprobs.apply(
        hidden_LH, head.out.weight, head.out.bias, target_L, bias_V, options
    )
    return found[0], found[1] if entropy_gradient else found[1].detach()


@dataclass(frozen=True, slots=True)
class _Options:
    head: Logits
    temperature: float
    at_once: int

    def pieces(self, L: int) -> Iterator[slice]:
        return (slice(start, start + self.at_once) for start in range(0, L, self.at_once))

    def logits(self, products: torch.Tensor, bias_V: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(what is given to a softmax, [C, V] in float32, which may be changed; the model's own logits)."""
        own = self.head.after(products)
        given = own.to(torch.promote_types(own.dtype, torch.float32), copy=self.head.kind == "softcap")
        if self.temperature != 1:
            given = given.div_(self.temperature)
        return given.add_(bias_V), own


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_LH: torch.Tensor,
        weight_VH: torch.Tensor,
        offset_V: torch.Tensor | None,
        target_L: torch.Tensor,
        bias_V: torch.Tensor,
        options: _Options,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropies, sums = [], [], []
        for piece in options.pieces(len(hidden_LH)):
            given, _ = options.logits(linear(hidden_LH[piece], weight_VH, offset_V), bias_V)
            top = given.amax(-1, keepdim=True)
            target = given.sub_(top).gather(-1, target_L[piece, None])[:, 0]
            shares = given.clamp_min_(LEAST).exp()
            total = shares.sum(-1)
            logprobs.append(target - total.log())
            entropies.append(total.log() - shares.mul_(given).sum(-1) / total)
            sums.append(total.log() + top[:, 0])
        found, entropy_L, sum_L = (torch.cat(x) if x else hidden_LH.new_zeros(0).float() for x in (logprobs, entropies, sums))
        ctx.save_for_backward(hidden_LH, weight_VH, offset_V, target_L, bias_V, sum_L, entropy_L)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return found, entropy_L

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope_L: torch.Tensor | None, slope_entropy_L: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden_LH, weight_VH, offset_V, target_L, bias_V, sum_L, entropy_L = ctx.saved_tensors
        options: _Options = ctx.options
        slope_L = torch.zeros_like(sum_L) if slope_L is None else slope_L
        d_hidden = torch.empty_like(hidden_LH) if ctx.needs_input_grad[0] else None
        d_weight = torch.zeros_like(weight_VH, dtype=sum_L.dtype) if ctx.needs_input_grad[1] else None
        d_offset = torch.zeros_like(offset_V, dtype=sum_L.dtype) if ctx.needs_input_grad[2] else None
        for piece in options.pieces(len(hidden_LH)):
            given, own = options.logits(linear(hidden_LH[piece], weight_VH, offset_V), bias_V)
            d_logits = _d_logits_(
                given.sub_(sum_L[piece, None]),
                target_L[piece],
                slope_L[piece, None],
                entropy_L[piece, None],
                None if slope_entropy_L is None else slope_entropy_L[piece, None],
            )
            if options.temperature != 1:
                d_logits.div_(options.temperature)
            products = options.head.slope_(d_logits, own).to(weight_VH.dtype)
            if d_hidden is not None:
                d_hidden[piece] = products @ weight_VH
            if d_weight is not None and d_weight.dtype == products.dtype:
                d_weight.addmm_(products.mT, hidden_LH[piece])
            elif d_weight is not None:
                d_weight += products.mT @ hidden_LH[piece]
            if d_offset is not None:
                d_offset += products.sum(0)
        return (
            d_hidden,
            None if d_weight is None else d_weight.to(weight_VH.dtype),
            None if d_offset is None else d_offset.to(weight_VH.dtype),
            None,
            None,
            None,
        )


def _d_logits_(
    logprobs_CV: torch.Tensor,
    target_C: torch.Tensor,
    slope_C1: torch.Tensor,
    entropy_C1: torch.Tensor,
    slope_entropy_C1: torch.Tensor | None,
) -> torch.Tensor:
    """Gradients of the logits, in place of the log-probabilities. With p the probabilities and H the entropy, that of a
    log-probability is (its one-hot target) - p, and that of H is -p (log p + H)."""
    if slope_entropy_C1 is None:
        found = logprobs_CV.exp_().mul_(-slope_C1)
    else:
        shares = logprobs_CV.exp()
        found = logprobs_CV.clamp_min_(LEAST).add_(entropy_C1).mul_(-slope_entropy_C1).sub_(slope_C1).mul_(shares)
    return found.scatter_add_(1, target_C[:, None], slope_C1)
