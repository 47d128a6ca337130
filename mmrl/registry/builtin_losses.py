"""The core's own algorithms that are GRPO with another loss than the clipped ratio, or with another baseline than the group's
mean: those of TRL, verl and ms-swift."""

from __future__ import annotations

from mmrl.api.specs import AlgorithmSpec, Bounds
from mmrl.registry.builtin_bounds import ADVANTAGE, CLIP, LOSS, NOT_NEGATIVE, POSITIVE, SHARE, SPREAD

GROUP = ADVANTAGE + "group_relative"
BASELINES = "mmrl.algorithms.group_baselines:"
POWERS, DECAYS = ("power", "negative_power"), ("decay", "negative_decay")
OFF_OR_ABOVE_1 = Bounds(above=1, off=0)
AT_LEAST_1 = Bounds(low=1, high=100)


def specs() -> list[AlgorithmSpec]:
    losses = [*_of_trust_regions(), *_of_signs(), *_of_batches(), *_of_sequences(), *_of_covariances()]
    return [*losses, *_of_baselines(), *_of_told_policies()]


def _of_trust_regions() -> list[AlgorithmSpec]:
    """Algorithms that hold the policy near the one that sampled by something else than a clipped ratio of tokens."""
    return [
        AlgorithmSpec(
            id="sapo",
            target=GROUP,
            options={"temperature": 1.0, "negative_temperature": 1.05},
            loss="mmrl.algorithms.trust_region:soft_gate",
            normalise="sequence",
            bounds=SPREAD | {"temperature": POSITIVE, "negative_temperature": POSITIVE},
            summary="GRPO with a soft gate in place of clipping: the gradient fades as the ratio leaves 1",
            paper="Gao et al., Soft Adaptive Policy Optimization, arXiv 2511.20347",
        ),
        AlgorithmSpec(
            id="divergence-ppo",
            target=GROUP,
            options={"divergence": "tv", "clip_low": 0.15, "clip_high": 0.15, "limit": 20.0},
            loss="mmrl.algorithms.trust_region:divergence_mask",
            bounds=SPREAD
            | {"clip_low": NOT_NEGATIVE, "clip_high": NOT_NEGATIVE, "limit": Bounds(low=1), "penalty": NOT_NEGATIVE},
            summary="GRPO without the tokens whose probability, not its ratio, has moved too far: DPPO of language models",
            paper="Qi et al., Rethinking the Trust Region in LLM Reinforcement Learning, arXiv 2602.04879",
        ),
        AlgorithmSpec(
            id="dro",
            target=GROUP,
            options={"scale": "none", "beta": 0.05},
            loss="mmrl.algorithms.trust_region:quadratic_penalty",
            bounds=SPREAD | {"beta": NOT_NEGATIVE},
            summary="The policy gradient with the squared log-ratio as a penalty, for completions of older weights",
            paper="Richemond et al., Offline Regularised RL for LLMs Alignment, arXiv 2405.19107; without its critic",
        ),
    ]


def _of_signs() -> list[AlgorithmSpec]:
    """Algorithms that weigh tokens with a positive advantage in another way than the others."""
    return [
        AlgorithmSpec(
            id="topr",
            target=ADVANTAGE + "weighted",
            options={"positive": 1.0, "negative": 1.0, "level": "sequence"},
            loss="mmrl.algorithms.asymmetric_losses:tapered",
            normalise="constant",
            constant=1,
            bounds={"positive": NOT_NEGATIVE, "negative": NOT_NEGATIVE},
            summary="Imitate correct completions however old they are; incorrect ones count less as they become less likely",
            paper="Le Roux et al., Tapered Off-Policy REINFORCE (TOPR), equation 8, arXiv 2503.14286",
        ),
        AlgorithmSpec(
            id="ce-gppo",
            target=GROUP,
            options={"clip_low": 0.2, "clip_high": 0.2, "low_weight": 0.75, "high_weight": 1.0, "dual_clip": 10.0},
            loss="mmrl.algorithms.asymmetric_losses:gradient_preserving",
            bounds=SPREAD | CLIP | {"low_weight": NOT_NEGATIVE, "high_weight": NOT_NEGATIVE, "dual_clip": OFF_OR_ABOVE_1},
            summary="GRPO in which tokens beyond a bound keep the gradient at the bound, with a weight for each side",
            paper="Su et al., Coordinating Entropy via Gradient-Preserving Policy Optimization (CE-GPPO), arXiv 2509.20712",
        ),
        AlgorithmSpec(
            id="aspo",
            target=GROUP,
            options={"clip_low": 0.2, "clip_high": 0.2, "limit": 3.0},
            loss="mmrl.algorithms.asymmetric_losses:flipped_ratio",
            bounds=SPREAD | CLIP | {"limit": Bounds(low=1)},
            summary="GRPO with the inverse of the ratio for tokens with a positive advantage: unlikely ones rise the most",
            paper="Wang et al., Asymmetric Importance Sampling Policy Optimization (ASPO), arXiv 2510.06062",
        ),
    ]


def _of_batches() -> list[AlgorithmSpec]:
    """Algorithms whose clip bounds follow from all tokens of the batch."""
    of_ratio = {"lower_start": SHARE, "lower_max": SHARE, "upper_start": AT_LEAST_1, "upper_max": AT_LEAST_1}
    return [
        AlgorithmSpec(
            id="m2po",
            target=GROUP,
            options={"budget": 0.04, "least_low": 0.3, "least_high": 0.5},
            loss="mmrl.algorithms.adaptive_clipping:second_moment_surrogate",
            bounds=SPREAD | {"budget": POSITIVE, "least_low": SHARE, "least_high": NOT_NEGATIVE},
            summary="GRPO that clips the tokens which moved the farthest, by the second moment of the batch's log-ratios",
            paper="Zheng et al., Prosperity before Collapse (M2PO), arXiv 2510.01161",
        ),
        AlgorithmSpec(
            id="bapo",
            target=GROUP,
            options={"positive_share": 0.5, "lower_start": 0.6, "lower_max": 0.9, "upper_start": 1.2, "upper_max": 3.0},
            loss="mmrl.algorithms.adaptive_clipping:balanced_surrogate",
            bounds=SPREAD | of_ratio | {"positive_share": SHARE, "step": Bounds(low=0.01), "dual_clip": OFF_OR_ABOVE_1},
            summary="GRPO whose clip bounds move until tokens with a positive advantage are half of the objective",
            paper="Xi et al., Balanced Policy Optimization with Adaptive Clipping (BAPO), arXiv 2510.18927",
        ),
    ]


def _of_sequences() -> list[AlgorithmSpec]:
    """Algorithms in which a token's weight depends on the others of its rollout, or of its group."""
    return [
        AlgorithmSpec(
            id="gmpo",
            target=GROUP,
            options={"clip_low": 0.4, "clip_high": 0.4},
            loss="mmrl.algorithms.sequence_losses:geometric_mean",
            normalise="sequence",
            bounds=SPREAD | {"clip_low": NOT_NEGATIVE, "clip_high": NOT_NEGATIVE},
            summary="GRPO with the geometric mean of a completion's ratios, whose logarithms are clipped one by one",
            paper="Zhao et al., Geometric-Mean Policy Optimization, arXiv 2507.20673",
        ),
        AlgorithmSpec(
            id="vespo",
            target=GROUP,
            options={"power": 2.0, "decay": 3.0, "negative_power": 3.0, "negative_decay": 2.0},
            loss="mmrl.algorithms.sequence_losses:gamma_weight",
            bounds=SPREAD | dict.fromkeys(POWERS, NOT_NEGATIVE) | dict.fromkeys(DECAYS, POSITIVE),
            summary="GRPO whose completions fade as the product of their ratios leaves 1, by a gamma weight",
            paper="Shen et al., VESPO: Variational Sequence-level Soft Policy Optimization, arXiv 2602.10693",
        ),
        AlgorithmSpec(
            id="fipo",
            target=GROUP,
            options={"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 10.0, "half_life": 32.0, "weight_clip": 0.2},
            loss="mmrl.algorithms.sequence_losses:future_weighted",
            bounds=SPREAD
            | CLIP
            | {"dual_clip": OFF_OR_ABOVE_1, "half_life": POSITIVE, "weight_clip": SHARE, "safe_ratio": OFF_OR_ABOVE_1},
            summary="GRPO with more weight for tokens whose continuation the policy is raising",
            paper="Ma et al., Future-KL Influenced Policy Optimization (FIPO), arXiv 2603.19835",
        ),
        AlgorithmSpec(
            id="real",
            target=GROUP,
            options={"scale": "none", "temperature": 0.5},
            loss="mmrl.algorithms.reward_labels:reward_labels",
            normalise="constant",
            constant=1,
            bounds=SPREAD | {"temperature": POSITIVE},
            summary="Classification of a group's completions into right and wrong by their mean log-ratios",
            paper="Zhai et al., Rewards as Labels (REAL), arXiv 2602.05630",
        ),
        AlgorithmSpec(
            id="gvpo",
            target=GROUP,
            options={"scale": "none", "beta": 0.1},
            loss="mmrl.algorithms.group_variance:group_variance",
            normalise="constant",
            constant=1,
            bounds=SPREAD | {"beta": POSITIVE},
            summary="Log-ratios of a group's completions learn to differ by their rewards, by a squared error",
            paper="Zhang et al., Group Variance Policy Optimization (GVPO), arXiv 2504.19599",
        ),
    ]


def _of_covariances() -> list[AlgorithmSpec]:
    """Algorithms that spare the tokens which lower the entropy most."""
    paper = "Cui et al., The Entropy Mechanism of RL for Reasoning Language Models, section 4, arXiv 2505.22617"
    return [
        AlgorithmSpec(
            id="clip-cov",
            target=GROUP,
            options={"share": 2e-4, "low": 1.0, "high": 5.0},
            loss="mmrl.algorithms.covariance:clipped_covariance",
            bounds=SPREAD | CLIP | {"share": SHARE},
            summary="GRPO without some tokens of a large covariance of advantage and log-probability, which cost entropy",
            paper=paper,
        ),
        AlgorithmSpec(
            id="kl-cov",
            target=GROUP,
            options={"share": 2e-4, "penalty": 1.0},
            loss="mmrl.algorithms.covariance:covariance_penalty",
            bounds=SPREAD | {"share": SHARE, "penalty": NOT_NEGATIVE},
            summary="GRPO without clipping, with a penalty on the log-ratio of the tokens of the largest such covariance",
            paper=paper,
        ),
    ]


def _of_baselines() -> list[AlgorithmSpec]:
    """Algorithms that compare the rollouts of a group in other ways."""
    return [
        AlgorithmSpec(
            id="opo",
            target=BASELINES + "length_weighted",
            summary="Reward minus the group's mean weighted by length, the baseline of least variance",
            paper="Hao et al., On-Policy RL with Optimal Reward Baseline (OPO), arXiv 2505.23585",
        ),
        AlgorithmSpec(
            id="otb",
            target=BASELINES + "optimal_token_baseline",
            summary="Each token's reward to go minus the group's mean at its place, weighted by energy: the least variance",
            paper="Li et al., The Optimal Token Baseline (OTB), arXiv 2602.07078",
        ),
        AlgorithmSpec(
            id="grpo-passk",
            target=BASELINES + "best_of_group",
            options={"scale": "group"},
            bounds=SPREAD,
            summary="The best completion of a group alone, by how much it beats the second best: pass@k for k = the group's size",
            paper="Tang et al., Optimizing Language Models for Inference Time Objectives using RL, arXiv 2503.19595",
        ),
        AlgorithmSpec(
            id="pkpo",
            target=BASELINES + "best_of_k",
            options={"k": 4},
            bounds={"k": Bounds(low=2)},
            summary="By how much a completion raises the best of k, over all choices of k completions of its group: pass@k",
            paper="Walder and Karkhanis, Pass@K Policy Optimization (PKPO), equation 33, arXiv 2505.15201",
        ),
        AlgorithmSpec(
            id="maxrl",
            target=BASELINES + "per_success",
            summary="GRPO divided by the share of successes in place of a deviation: the gradient of the log of that share",
            paper="Tajwar et al., Maximum Likelihood Reinforcement Learning (MaxRL), arXiv 2602.02710",
        ),
        AlgorithmSpec(
            id="gpg",
            target=BASELINES + "rescaled",
            loss="mmrl.algorithms.loss:policy_gradient",
            summary="REINFORCE with the group's mean as baseline, scaled up for the groups that teach nothing",
            paper="Chu et al., GPG: A Simple and Strong RL Baseline for Model Reasoning, arXiv 2504.02546",
        ),
    ]


def _of_told_policies() -> list[AlgorithmSpec]:
    """Algorithms in which the policy that was told the answer says which tokens matter."""
    told = "mmrl.algorithms.self_distillation:"
    return [
        AlgorithmSpec(
            id="rlsd",
            target=told + "evidence_weighted",
            options={"weight": 0.5, "last_weight": 0.5, "weight_clip": 0.2},
            bounds={"weight": SHARE, "last_weight": SHARE, "weight_clip": Bounds(low=1e-6, high=1)},
            summary="GRPO with more credit for the tokens that knowing the answer speaks for, or in failures against",
            paper="Yang et al., Self-Distilled RLVR (RLSD), arXiv 2604.03128",
        ),
        AlgorithmSpec(
            id="sdar",
            target=told + "gated",
            options={"told_weight": 0.1, "sharpness": 5.0},
            bounds={"told_weight": POSITIVE, "sharpness": NOT_NEGATIVE},
            summary="GRPO, and beside it distillation from the policy that knows the answer, for the tokens that it prefers",
            paper="Lu et al., Self-Distilled Agentic Reinforcement Learning (SDAR), arXiv 2605.15155; told gold answers",
        ),
        AlgorithmSpec(
            id="sdpo",
            target=told + "distilled",
            options={"share": 1.0, "clip_low": 1.0, "clip_high": 1.0},
            loss=LOSS + "clipped_weight",
            bounds={"share": SHARE} | CLIP,
            summary="Distillation from the policy that was shown a success of the same group, token by token",
            paper="Huebotter et al., Reinforcement Learning via Self-Distillation (SDPO), arXiv 2601.20802; without its feedback",
        ),
    ]
