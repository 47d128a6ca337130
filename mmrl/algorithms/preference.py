"""Losses on pairs of completions of one prompt, of which one is preferred. Pure functions of tensors.

Each gives a completion a reward, and compares the rewards of the two sides. The loss is a function of the completions' summed
log-probabilities, so its gradient is that of a weighted likelihood, whose weights `credit` computes.

P pairs; axis 2 is (preferred, rejected).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch.nn.functional import logsigmoid, sigmoid


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSums:
    """What the losses read of pairs; float64 on the CPU."""

    logprobs_P2: torch.Tensor
    """Log-probability of each completion under the policy: the sum over its tokens, in nats. Of a reward model its rating."""
    reference_P2: torch.Tensor
    """The same under the reference model; zeros without one."""
    lengths_P2: torch.Tensor
    """Tokens of each completion, at least 1."""
    kl: float = 0.0
    """Estimate of KL(policy || reference) in nats, at least 0, which `kto` takes as its reference point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the losses; a loss reads those that its formula has, see `mmrl.config.stages.PAIR_SETTINGS`."""

    beta: float = 0.1
    margin: float = 0.0
    label_smoothing: float = 0.0
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    nll_weight: float = 0.0


# -- the reward of a completion, float64 [P, 2] -------------------------------------------------------------------------------


def log_ratio(sums: PairSums, settings: Settings) -> torch.Tensor:
    """beta times log p / q (Rafailov et al., DPO, equation 5 without the partition function)."""
    return settings.beta * (sums.logprobs_P2 - sums.reference_P2)


def mean_log_ratio(sums: PairSums, settings: Settings) -> torch.Tensor:
    """log p / q per token."""
    return (sums.logprobs_P2 - sums.reference_P2) / sums.lengths_P2


def mean_likelihood(sums: PairSums, settings: Settings) -> torch.Tensor:
    """beta times log p per token (Meng et al., SimPO, equation 4)."""
    return settings.beta * sums.logprobs_P2 / sums.lengths_P2


def rating(sums: PairSums, settings: Settings) -> torch.Tensor:
    """What a reward model gives."""
    return sums.logprobs_P2


# -- the loss of a pair, float64 [P] ------------------------------------------------------------------------------------------


def logistic(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """Minus the log-probability that the preferred side wins, by Bradley and Terry: -log sigmoid(reward difference - margin).

    DPO is equation 7 of Rafailov et al. (arXiv 2305.18290), SimPO equation 6 of Meng et al. (arXiv 2405.14734). A share
    `label_smoothing` of the labels is taken to be wrong (Mitchell, A note on DPO with noisy preferences).
    """
    gap_P = rewards_P2[:, 0] - rewards_P2[:, 1] - settings.margin
    return -(1 - settings.label_smoothing) * logsigmoid(gap_P) - settings.label_smoothing * logsigmoid(-gap_P)


def squared(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """(reward difference - 1 / (2 beta))^2 (Azar et al., IPO, equation 17, arXiv 2310.12036, whose tau is beta).

    The log-ratios are means over tokens, as in TRL, whose authors asked those of the paper; so `beta` doesn't depend on length.
    """
    return (rewards_P2[:, 0] - rewards_P2[:, 1] - 1 / (2 * settings.beta)) ** 2


def prospect(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """The mean of both sides' losses, each compared with the KL and not with the other (Ethayarajh et al., KTO, equation 8,
    arXiv 2402.01306): a completion that is preferred is to be likelier than the reference point, a rejected one less likely."""
    point = settings.beta * sums.kl
    good_P = settings.desirable_weight * (1 - sigmoid(rewards_P2[:, 0] - point))
    bad_P = settings.undesirable_weight * (1 - sigmoid(point - rewards_P2[:, 1]))
    return (good_P + bad_P) / 2


@dataclass(frozen=True, slots=True)
class PairLoss:
    """A loss: how it rewards a completion, and how it compares the rewards."""

    reward: Callable[[PairSums, Settings], torch.Tensor]
    compare: Callable[[torch.Tensor, PairSums, Settings], torch.Tensor]


LOSSES: MappingProxyType[str, PairLoss] = MappingProxyType(
    {
        "dpo": PairLoss(log_ratio, logistic),
        "ipo": PairLoss(mean_log_ratio, squared),
        "kto": PairLoss(log_ratio, prospect),
        "simpo": PairLoss(mean_likelihood, logistic),
        "bradley-terry": PairLoss(rating, logistic),
    }
)
"""Name -> loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCredit:
    """The loss of some pairs, and its derivative."""

    loss: float
    """The mean over the pairs."""
    rewards_P2: torch.Tensor
    """float64: the reward of each completion."""
    weights_P2: torch.Tensor
    """float64: minus the derivative of `loss` by each completion's log-probability. Ascending these weighted sums of
    log-probabilities descends the loss."""


def credit(name: str, sums: PairSums, settings: Settings) -> PairCredit:
    """The loss of pairs by its name, with `nll_weight` times the preferred side's negative log-likelihood per token added (Pang
    et al., Iterative Reasoning Preference Optimization, equation 1, arXiv 2404.19733)."""
    kind = LOSSES[name]
    with torch.enable_grad():
        logprobs_P2 = sums.logprobs_P2.detach().clone().requires_grad_()
        own = PairSums(logprobs_P2=logprobs_P2, reference_P2=sums.reference_P2, lengths_P2=sums.lengths_P2, kl=sums.kl)
        rewards_P2 = kind.reward(own, settings)
        loss_P = kind.compare(rewards_P2, own, settings)
        if settings.nll_weight:
            loss_P = loss_P - settings.nll_weight * logprobs_P2[:, 0] / sums.lengths_P2[:, 0]
        loss = loss_P.mean()
        (slope_P2,) = torch.autograd.grad(loss, logprobs_P2)
    return PairCredit(loss=loss.item(), rewards_P2=rewards_P2.detach(), weights_P2=-slope_P2)
