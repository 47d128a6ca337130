"""The KL divergence of the policy from a reference model: estimators from samples, and an adaptive coefficient."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import torch

MOST = 20.0
"""Nats up to which `k3` counts how much likelier a token is under the reference model."""


def k1(logprobs_L: torch.Tensor, reference_L: torch.Tensor) -> torch.Tensor:
    """log p - log q of each sampled token: unbiased, often negative (Schulman, Approximating KL Divergence).

    Use it in the reward. As a term of the loss it only adds noise: the expected gradient of log p under the policy's own samples
    is zero. Arguments and result: float [L].
    """
    return logprobs_L - reference_L


def k2(logprobs_L: torch.Tensor, reference_L: torch.Tensor) -> torch.Tensor:
    """(log p - log q)^2 / 2 of each sampled token: never negative, biased in value (Schulman, Approximating KL Divergence).

    On the policy's own samples its expected gradient is exactly that of KL(policy || reference). Arguments and result: float [L].
    """
    return (logprobs_L - reference_L) ** 2 / 2


def k3(logprobs_L: torch.Tensor, reference_L: torch.Tensor) -> torch.Tensor:
    """q/p - 1 - log(q/p) of each sampled token: unbiased and never negative (Schulman, Approximating KL Divergence).

    GRPO's penalty (Shao et al., DeepSeekMath, equation 4). Its value estimates KL(policy || reference), its expected gradient is
    that of KL(reference || policy). log(q/p) counts up to 20, as in verl, since its exponential would overflow: beyond there is
    no gradient. Arguments and result: float [L].
    """
    log_ratio_L = (reference_L - logprobs_L).clamp_max(MOST)
    return log_ratio_L.exp() - 1 - log_ratio_L


ESTIMATES: MappingProxyType[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = MappingProxyType(
    {"k1": k1, "k2": k2, "k3": k3}
)
"""Name -> estimator (logprobs_L, reference_L) -> estimate_L."""


def adapted(coefficient: float, kl: float, target: float, horizon: float) -> float:
    """The KL coefficient of the next update, larger if the divergence exceeded the target (Ziegler et al., section 2.2).

    coefficient * (1 + error / horizon), where error = kl / target - 1, bounded to -0.2..0.2. kl: nats, measured in this update.
    target: nats, above 0. horizon: updates; the paper's gain of 0.1 is a horizon of 10.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coefficient * (1 + error / horizon)
