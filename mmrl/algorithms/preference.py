"""Losses on pairs of completions of one prompt, of which one is preferred. Pure functions of tensors.

Each gives a completion a reward, and compares the rewards of the two sides. The loss is a function of the completions' summed
log-probabilities, so its gradient is that of a weighted likelihood, whose weights `credit` computes.

P pairs; axis 2 is (preferred, rejected).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch.nn.functional import logsigmoid, relu, sigmoid

from mmrl.algorithms.loss import finite_ratio

LEAST_FAILURE = 1e-6
"""The least probability that the next token is another, in the odds of ORPO: those of a certain completion would be infinite."""


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
    shift: float = 0.0
    """The mean reward so far, from which `bco` counts rewards."""
    weights_P: torch.Tensor | None = None
    """By how much each pair counts, without gradient; None: all alike. See `pair_weights`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the losses; a loss reads those that its formula has, see `mmrl.config.preferences.PAIR_SETTINGS`."""

    beta: float = 0.1
    margin: float = 0.0
    label_smoothing: float = 0.0
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    divergence: str = "reverse-kl"
    divergence_alpha: float = 0.5
    discopop_tau: float = 0.05
    reward_alpha: float = 0.25


# -- the derivative f' of an f-divergence at p / q, float64 [P, 2], from log p / q (Wang et al., f-DPO, arXiv 2309.16240) --------


def reverse_kl(ratios_P2: torch.Tensor, settings: Settings) -> torch.Tensor:
    """log p / q, of KL(policy || reference): plain DPO."""
    return ratios_P2


def forward_kl(ratios_P2: torch.Tensor, settings: Settings) -> torch.Tensor:
    """1 - q / p, of KL(reference || policy). q / p is kept below exp(20)."""
    return 1 - finite_ratio(-ratios_P2)


def jensen_shannon(ratios_P2: torch.Tensor, settings: Settings) -> torch.Tensor:
    """log 2p / (p + q)."""
    return math.log(2) + logsigmoid(ratios_P2)


def alpha_divergence(ratios_P2: torch.Tensor, settings: Settings) -> torch.Tensor:
    """(1 - (q / p)^alpha) / alpha: the reverse KL for alpha towards 0, the forward one for 1. The power is kept below exp(20)."""
    return _bent(ratios_P2, settings.divergence_alpha)


def _bent(logs_P2: torch.Tensor, alpha: float) -> torch.Tensor:
    """(1 - x^-alpha) / alpha of log x; its limit for alpha = 0 is log x. The power is kept below exp(20)."""
    return (1 - finite_ratio(-alpha * logs_P2)) / alpha if alpha else logs_P2


DIVERGENCES: MappingProxyType[str, Callable[[torch.Tensor, Settings], torch.Tensor]] = MappingProxyType(
    {"reverse-kl": reverse_kl, "forward-kl": forward_kl, "jensen-shannon": jensen_shannon, "alpha": alpha_divergence}
)
"""Name -> derivative."""


# -- the reward of a completion, float64 [P, 2] -------------------------------------------------------------------------------


def log_ratio(sums: PairSums, settings: Settings) -> torch.Tensor:
    """beta times log p / q (Rafailov et al., DPO, equation 5 without the partition function), or times f'(p / q) for another
    divergence (Wang et al., f-DPO, arXiv 2309.16240)."""
    return settings.beta * DIVERGENCES[settings.divergence](sums.logprobs_P2 - sums.reference_P2, settings)


def mean_log_ratio(sums: PairSums, settings: Settings) -> torch.Tensor:
    """log p / q, or f'(p / q), per token."""
    return DIVERGENCES[settings.divergence](sums.logprobs_P2 - sums.reference_P2, settings) / sums.lengths_P2


def scaled_mean_log_ratio(sums: PairSums, settings: Settings) -> torch.Tensor:
    """beta times log p / q, or f'(p / q), per token."""
    return settings.beta * mean_log_ratio(sums, settings)


def mean_likelihood(sums: PairSums, settings: Settings) -> torch.Tensor:
    """beta times log p per token (Meng et al., SimPO, equation 4)."""
    return settings.beta * sums.logprobs_P2 / sums.lengths_P2


def bent_likelihood(sums: PairSums, settings: Settings) -> torch.Tensor:
    """beta times (1 - m^-a) / a, m the geometric mean of the tokens' probabilities and a = `reward_alpha`; for a = 0 it is
    SimPO's reward (Gupta et al., AlphaPO, arXiv 2501.03884). The power is kept below exp(20)."""
    return settings.beta * _bent(sums.logprobs_P2 / sums.lengths_P2, settings.reward_alpha)


def log_odds(sums: PairSums, settings: Settings) -> torch.Tensor:
    """log m / (1 - m), m the geometric mean of the tokens' probabilities (Hong et al., ORPO, equations 3 and 4)."""
    means_P2 = sums.logprobs_P2 / sums.lengths_P2
    return means_P2 - (-torch.expm1(means_P2)).clamp_min(LEAST_FAILURE).log()


def rating(sums: PairSums, settings: Settings) -> torch.Tensor:
    """What a reward model gives."""
    return sums.logprobs_P2


# -- the loss of a pair, float64 [P], from the difference of its rewards ------------------------------------------------------


def _gap(rewards_P2: torch.Tensor) -> torch.Tensor:
    return rewards_P2[:, 0] - rewards_P2[:, 1]


def _doubted(gap_P: torch.Tensor, smoothing: float) -> torch.Tensor:
    """-log sigmoid(gap), of which a share is taken to be the wrong way round."""
    return -(1 - smoothing) * logsigmoid(gap_P) - smoothing * logsigmoid(-gap_P)


def logistic(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """Minus the log-probability that the preferred side wins, by Bradley and Terry: -log sigmoid(reward difference - margin).

    DPO is equation 7 of Rafailov et al. (arXiv 2305.18290), SimPO equation 6 of Meng et al. (arXiv 2405.14734), DPO per token
    that of Lambert et al. (Tülu 3, section 5.1, arXiv 2411.15124). A share `label_smoothing` of the labels is taken to be wrong
    (Mitchell, A note on DPO with noisy preferences).
    """
    return _doubted(_gap(rewards_P2) - settings.margin, settings.label_smoothing)


def robust(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """An estimate of DPO's loss that is unbiased if a share e = `label_smoothing` of the labels is wrong (Chowdhury et al., rDPO,
    section 3.1, arXiv 2403.00409): ((1 - e) l(gap) - e l(-gap)) / (1 - 2 e), l = -log sigmoid. It may be negative."""
    gap_P, wrong = _gap(rewards_P2), settings.label_smoothing
    return (-(1 - wrong) * logsigmoid(gap_P) + wrong * logsigmoid(-gap_P)) / (1 - 2 * wrong)


def hinge(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """max(0, 1 - reward difference) (Zhao et al., SLiC-HF, section 2, arXiv 2305.10425, of likelihoods relative to the reference
    model as in Liu et al., RSO, arXiv 2309.06657)."""
    return relu(1 - _gap(rewards_P2))


def squared(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """(reward difference - 1 / (2 beta))^2 (Azar et al., IPO, equation 17, arXiv 2310.12036, whose tau is beta).

    The log-ratios are means over tokens, as in TRL, whose authors asked those of the paper; so `beta` doesn't depend on length.
    """
    return (_gap(rewards_P2) - 1 / (2 * settings.beta)) ** 2


def exact(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """KL from the probabilities (sigmoid(gap), sigmoid(-gap)) that the policy gives the two sides to (1 - e, e), with e =
    `label_smoothing` above 0 (Ji et al., EXO, equation 16, arXiv 2402.00856)."""
    gap_P, wrong = _gap(rewards_P2), settings.label_smoothing
    won_P = sigmoid(gap_P) * (logsigmoid(gap_P) - math.log1p(-wrong))
    return won_P + sigmoid(-gap_P) * (logsigmoid(-gap_P) - math.log(wrong))


def modulated(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """(1 - m) (-log sigmoid(gap)) + m exp(-gap) with m = sigmoid(gap / `discopop_tau`) (Lu et al., DiscoPOP, equation 5, arXiv
    2406.08414). The second part is one exponential, which is finite where exp(-gap) isn't."""
    gap_P, tau = _gap(rewards_P2), settings.discopop_tau
    return -sigmoid(-gap_P / tau) * logsigmoid(gap_P) + torch.exp(logsigmoid(gap_P / tau) - gap_P)


def odds_ratio(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """The preferred side's negative log-likelihood per token, and beta times -log sigmoid(difference of log-odds) (Hong et al.,
    ORPO, equations 6 and 7, arXiv 2403.07691, whose lambda is beta)."""
    return -sums.logprobs_P2[:, 0] / sums.lengths_P2[:, 0] - settings.beta * logsigmoid(_gap(rewards_P2))


# -- the loss of a pair, float64 [P], from the rewards of each side -----------------------------------------------------------


def prospect(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """The mean of both sides' losses, each compared with the KL and not with the other (Ethayarajh et al., KTO, equation 8,
    arXiv 2402.01306): a completion that is preferred is to be likelier than the reference point, a rejected one less likely."""
    point = settings.beta * sums.kl
    good_P = settings.desirable_weight * (1 - sigmoid(rewards_P2[:, 0] - point))
    bad_P = settings.undesirable_weight * (1 - sigmoid(point - rewards_P2[:, 1]))
    return (good_P + bad_P) / 2


def contrastive(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """-log sigmoid(r_w) - (log sigmoid(-r_w) + log sigmoid(-r_l)) / 2 (Chen et al., NCA, section 4.1 for two completions, arXiv
    2402.05369)."""
    return -logsigmoid(rewards_P2[:, 0]) - logsigmoid(-rewards_P2).sum(1) / 2


def classified(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """-log sigmoid(r_w - d) - log sigmoid(d - r_l), d the mean reward so far (Jung et al., BCO, section 4, arXiv 2404.04656; the
    quality loss of MPO, Wang et al., section 3.2, arXiv 2411.10442). TRL 1.16 has d = 0."""
    return -logsigmoid(rewards_P2[:, 0] - sums.shift) - logsigmoid(sums.shift - rewards_P2[:, 1])


def self_play(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """(log p/q of w - 1 / (2 beta))^2 + (log p/q of l + 1 / (2 beta))^2 (Wu et al., SPPO, equation 4.7, arXiv 2405.00675, where
    the preferred side wins for certain)."""
    return ((rewards_P2[:, 0] - 0.5) ** 2 + (rewards_P2[:, 1] + 0.5) ** 2) / settings.beta**2


def anchored_up(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """1 - sigmoid(r_w) + sigmoid(r_l): the preferred side is to become likelier, the other less likely (D'Oosterlinck et al.,
    APO, equation 7, arXiv 2408.06266)."""
    return sigmoid(-rewards_P2[:, 0]) + sigmoid(rewards_P2[:, 1])


def anchored_down(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """sigmoid(r_w) + 1 - sigmoid(r_w - r_l): both sides are to become less likely, and the rejected one more so; for a policy
    that writes better than either (equation 8 of the same)."""
    return sigmoid(rewards_P2[:, 0]) + sigmoid(-_gap(rewards_P2))


# -- the losses of all pairs, float64 [P], from the distributions of their rewards --------------------------------------------


def transported(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """-log sigmoid of beta times the difference between the k-th smallest log p_w/p_l and the k-th smallest log q_w/q_l of
    these pairs (Melnyk et al., AOT, section 3, arXiv 2406.05882)."""
    gaps_P, reference_P = (_gap(logprobs_P2).sort().values for logprobs_P2 in (sums.logprobs_P2, sums.reference_P2))
    return _doubted(settings.beta * (gaps_P - reference_P), settings.label_smoothing)


def transported_unpaired(rewards_P2: torch.Tensor, sums: PairSums, settings: Settings) -> torch.Tensor:
    """-log sigmoid of the difference between the k-th smallest reward of the preferred and of the rejected sides (the same,
    unpaired)."""
    return _doubted(_gap(rewards_P2.sort(0).values), settings.label_smoothing)


@dataclass(frozen=True, slots=True)
class PairLoss:
    """A loss: how it rewards a completion, and how it compares the rewards."""

    reward: Callable[[PairSums, Settings], torch.Tensor]
    compare: Callable[[torch.Tensor, PairSums, Settings], torch.Tensor]


LOSSES: MappingProxyType[str, PairLoss] = MappingProxyType(
    {
        "dpo": PairLoss(log_ratio, logistic),
        "dpo-norm": PairLoss(scaled_mean_log_ratio, logistic),
        "robust": PairLoss(log_ratio, robust),
        "hinge": PairLoss(log_ratio, hinge),
        "ipo": PairLoss(mean_log_ratio, squared),
        "exo": PairLoss(log_ratio, exact),
        "discopop": PairLoss(log_ratio, modulated),
        "nca": PairLoss(log_ratio, contrastive),
        "bco": PairLoss(log_ratio, classified),
        "sppo": PairLoss(log_ratio, self_play),
        "apo-zero": PairLoss(log_ratio, anchored_up),
        "apo-down": PairLoss(log_ratio, anchored_down),
        "aot": PairLoss(log_ratio, transported),
        "aot-unpaired": PairLoss(log_ratio, transported_unpaired),
        "kto": PairLoss(log_ratio, prospect),
        "simpo": PairLoss(mean_likelihood, logistic),
        "alphapo": PairLoss(bent_likelihood, logistic),
        "orpo": PairLoss(log_odds, odds_ratio),
        "bradley-terry": PairLoss(rating, logistic),
    }
)
"""Name -> loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One of the losses that are added."""

    loss: str
    """Its name in `LOSSES`."""
    settings: Settings
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCredit:
    """The loss of some pairs, and its derivative."""

    loss: float
    """The mean over the pairs."""
    rewards_P2: torch.Tensor
    """float64: the reward of each completion, by the first of the losses."""
    weights_P2: torch.Tensor
    """float64: minus the derivative of `loss` by each completion's log-probability. Ascending these weighted sums of
    log-probabilities descends the loss."""


def credit(terms: Sequence[Term], sums: PairSums) -> PairCredit:
    """The weighted sum of the losses of pairs, at least one."""
    with torch.enable_grad():
        logprobs_P2 = sums.logprobs_P2.detach().clone().requires_grad_()
        own = replace(sums, logprobs_P2=logprobs_P2)
        rewards = [LOSSES[term.loss].reward(own, term.settings) for term in terms]
        each = zip(terms, rewards, strict=True)
        loss_P = torch.stack([t.weight * LOSSES[t.loss].compare(r_P2, own, t.settings) for t, r_P2 in each]).sum(0)
        loss = (loss_P if sums.weights_P is None else loss_P * sums.weights_P).mean()
        (slope_P2,) = torch.autograd.grad(loss, logprobs_P2)
    return PairCredit(loss=loss.item(), rewards_P2=rewards[0].detach(), weights_P2=-slope_P2)


def imitation(nll_weight: float, logprobs_P2: torch.Tensor, lengths_P2: torch.Tensor) -> tuple[float, torch.Tensor]:
    """`nll_weight` times the preferred side's negative log-likelihood per token (Pang et al., Iterative Reasoning Preference
    Optimization, equation 1, arXiv 2404.19733), as the mean over pairs, and minus its derivative by the log-probabilities,
    float64 [P, 2]."""
    weights_P2 = torch.zeros_like(logprobs_P2)
    weights_P2[:, 0] = nll_weight / lengths_P2[:, 0] / len(lengths_P2)
    return -(weights_P2 * logprobs_P2).sum().item(), weights_P2


def pair_weights(logprobs_P2: torch.Tensor, collisions_P2: torch.Tensor, lengths_P2: torch.Tensor) -> torch.Tensor:
    """float64 [P]: how near to the policy's own a pair's sides are: the product over both of the geometric mean over tokens of p
    over the sum of p^2 over the vocabulary, 1 on average of what the policy samples (Zhou et al., WPO, equation 2, with
    the paper's sampled alignment, arXiv 2406.11827).

    collisions_P2: sums over tokens of the log of that sum, in nats."""
    return ((logprobs_P2 - collisions_P2) / lengths_P2).sum(1).exp()
