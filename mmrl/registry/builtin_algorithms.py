"""The core's own algorithms, see docs/decisions/0009: each an advantage and a loss of `mmrl.algorithms`, with settings."""

from __future__ import annotations

from mmrl.api.specs import AlgorithmSpec, Bounds
from mmrl.registry.builtin_bounds import ADVANTAGE, CLIP, LOSS, NOT_NEGATIVE, POSITIVE, SHARE, SPREAD


def specs() -> list[AlgorithmSpec]:
    compared = [*_of_groups(), *_of_spreads(), *_of_selections(), *_of_domains(), *_of_turns()]
    return [*compared, *_of_rewards(), *_with_models(), *_of_likelihood()]


def _of_groups() -> list[AlgorithmSpec]:
    """Algorithms that compare the rollouts of a prompt: GRPO, and variants with other sums, clip bounds or baselines."""
    return [
        AlgorithmSpec(
            id="grpo",
            target=ADVANTAGE + "group_relative",
            options={"scale": "group", "clip_low": 0.2, "clip_high": 0.2},
            normalise="sequence",
            bounds=SPREAD,
            summary="Reward minus the group's mean, divided by the group's standard deviation",
            paper="Shao et al., DeepSeekMath, section 4.1, arXiv 2402.03300; without its KL penalty (0.04)",
        ),
        AlgorithmSpec(
            id="vppo",
            target="mmrl.algorithms.perception:visually_perceptive",
            options={"share": 0.4, "least": 0.9, "clip_low": 0.2, "clip_high": 0.28},
            normalise="token",
            stage_defaults={"perception": {"masked": 0.5}, "entropy_penalty": 0.06},
            bounds=SPREAD | {"share": Bounds(low=1e-6, high=1), "least": SHARE},
            summary="GRPO for the tokens that depend most on the image, with more credit for completions that look more",
            paper="Huang et al., Spotlight on Token Perception, section 3, arXiv 2510.09285",
        ),
        AlgorithmSpec(
            id="dr-grpo",
            target=ADVANTAGE + "group_relative",
            options={"scale": "none"},
            normalise="constant",
            bounds=SPREAD,
            summary="GRPO without the division by standard deviation and by length",
            paper="Liu et al., Understanding R1-Zero-Like Training, section 3.2, arXiv 2503.20783",
        ),
        AlgorithmSpec(
            id="dapo",
            target=ADVANTAGE + "group_relative",
            options={"clip_low": 0.2, "clip_high": 0.28},
            stage_defaults={"dynamic_sampling": 3, "overlong_buffer": 0.2},  # its last 4,096 of 20,480 tokens
            bounds=SPREAD,
            summary="GRPO averaged over tokens, with a higher clip bound, dynamic sampling and a penalty on long completions",
            paper="Yu et al., DAPO, section 3, arXiv 2503.14476",
        ),
        AlgorithmSpec(
            id="gspo",
            target=ADVANTAGE + "group_relative",
            options={"clip_low": 3e-4, "clip_high": 4e-4},
            loss=LOSS + "sequence_surrogate",
            normalise="sequence",
            bounds=SPREAD | CLIP,
            summary="GRPO with one probability ratio per completion",
            paper="Zheng et al., Group Sequence Policy Optimization, section 4, arXiv 2507.18071",
        ),
        AlgorithmSpec(
            id="cispo",
            target=ADVANTAGE + "group_relative",
            options={"clip_low": 1.0, "clip_high": 4.0},
            loss=LOSS + "clipped_weight",
            bounds=SPREAD | CLIP,
            summary="GRPO with the bounded ratio as a weight, so every token keeps a gradient",
            paper="MiniMax-M1, section 3.1, arXiv 2506.13585; the upper bound of 5 is that of Khatri et al., ScaleRL",
        ),
        AlgorithmSpec(
            id="rloo",
            target=ADVANTAGE + "leave_one_out",
            loss=LOSS + "policy_gradient",
            normalise="constant",
            constant=1,
            summary="REINFORCE with the mean reward of the group's other rollouts as baseline",
            paper="Ahmadian et al., Back to Basics, arXiv 2402.14740; without its KL penalty",
        ),
    ]


def _of_spreads() -> list[AlgorithmSpec]:
    """GRPO with other normalisations: over the batch, over all visits of a prompt, or for each reward."""
    return [
        AlgorithmSpec(
            id="reinforce++-baseline",
            target=ADVANTAGE + "whitened_baseline",
            stage_defaults={"kl_coef": 1e-3, "kl_estimator": "k2"},
            summary="Reward minus the group's mean, divided by the batch's standard deviation, with a KL penalty",
            paper="Hu et al., REINFORCE++, arXiv 2501.03262",
        ),
        AlgorithmSpec(
            id="lite-ppo",
            target=ADVANTAGE + "group_relative",
            options={"scale": "batch", "biased": True, "epsilon": 0.0},
            bounds=SPREAD,
            summary="Reward minus the group's mean, divided by the standard deviation of the batch's rewards",
            paper="Liu et al., Tricks or Traps? A Deep Dive into RL for LLM Reasoning, arXiv 2508.08221",
        ),
        AlgorithmSpec(
            id="stable-reinforce",
            target=ADVANTAGE + "filtered",
            options={"limit": 3.0, "bound": 1e3, "baseline": "group"},
            loss=LOSS + "bounded_surrogate",
            normalise="sequence",
            bounds={**CLIP, "limit": POSITIVE, "bound": Bounds(low=1)},
            summary="GRPO without advantages beyond three sigma, and with log-ratios bounded so that ratios can't overflow",
            paper="Zhang et al., R1-Reward, StableReinforce, arXiv 2505.02835; without its KL penalty (0.001)",
        ),
        AlgorithmSpec(
            id="dcpo",
            target=ADVANTAGE + "smooth",
            options={"clip_low": 0.16, "clip_high": 0.2},
            loss=LOSS + "adaptive_surrogate",
            normalise="sequence",
            bounds={**CLIP, "limit": POSITIVE},
            summary="Rewards standardised over all visits of a prompt; wider clip bounds for less likely tokens",
            paper="Yang et al., DCPO, sections 2 and 3, arXiv 2509.02333",
        ),
        AlgorithmSpec(
            id="gdpo",
            target=ADVANTAGE + "per_reward",
            normalise="sequence",
            summary="GRPO with each verifier's values standardised separately",
            paper="Liu et al., GDPO: Group reward-Decoupled Normalization Policy Optimization, arXiv 2601.05242",
        ),
    ]


def _of_selections() -> list[AlgorithmSpec]:
    """Algorithms that learn from some rollouts and tokens only, or from each kind in its own way."""
    return [
        AlgorithmSpec(
            id="d3s",
            target="mmrl.algorithms.selection:down_sampled",
            options={"first_rollouts": 0.5, "last_rollouts": 1.0, "first_tokens": 0.2, "last_tokens": 1.0},
            bounds=dict.fromkeys(("first_rollouts", "last_rollouts", "first_tokens", "last_tokens"), SHARE),
            summary="GRPO on the rollouts whose advantages vary most and their tokens of most advantage times entropy, ever more",
            paper="Wang et al., Learning More with Less (D3S), arXiv 2509.22115",
        ),
        AlgorithmSpec(
            id="advantage-reweighting",
            target="mmrl.algorithms.selection:likelihood_weighted",
            options={"share": 0.2, "clip_low": 0.2, "clip_high": 0.24},
            bounds={"share": SHARE} | CLIP,
            summary="GRPO with less credit for unlikely tokens, whose gradients would dominate the update",
            paper="Yang et al., Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs, arXiv 2505.12929; without Lopti",
        ),
        AlgorithmSpec(
            id="rover",
            target=ADVANTAGE + "group_relative",
            options={"scale": "none", "temperature": 1.0},
            loss=LOSS + "uniform_valuation",
            bounds=SPREAD | {"temperature": POSITIVE},
            summary="Log-ratios learn the values of a policy that draws uniformly: centred rewards, and the mean of what follows",
            paper="He et al., Random Policy Valuation is Enough (ROVER), arXiv 2509.24981",
        ),
        AlgorithmSpec(
            id="pacs",
            target="mmrl.algorithms.implicit_critic:class_balanced",
            options={"beta": 1.0},
            loss="mmrl.algorithms.implicit_critic:implicit_critic",
            normalise="constant",
            constant=1,
            bounds={"beta": POSITIVE},
            summary="Supervised learning of whether an answer is right, from its log-ratio less those of the others of its group",
            paper="Li et al., Implicit Actor Critic Coupling (PACS), arXiv 2509.02522",
        ),
        AlgorithmSpec(
            id="nft",
            target=ADVANTAGE + "success_relative",
            options={"least": 1.0, "negative_weight": 1.0},
            loss=LOSS + "negative_aware",
            normalise="constant",
            bounds={"least": POSITIVE, "negative_weight": NOT_NEGATIVE},
            summary="Supervised learning on correct completions, and on what incorrect ones say of an implicit policy",
            paper="Chen et al., Bridging Supervised Learning and Reinforcement Learning (NFT), arXiv 2505.18116",
        ),
    ]


def _of_domains() -> list[AlgorithmSpec]:
    """Variants of GRPO for GUIs and robots."""
    return [
        AlgorithmSpec(
            id="gui-g1",
            target=ADVANTAGE + "difficulty_weighted",
            normalise="constant",
            constant=64,
            summary="Dr. GRPO with prompts weighted by their difficulty",
            paper="Zhou et al., GUI-G1, arXiv 2505.15810",
        ),
        AlgorithmSpec(
            id="trajectory-grpo",
            target=ADVANTAGE + "group_relative",
            options={"clip_low": 0.2, "clip_high": 0.28},
            normalise="sequence",
            stage_defaults={"dynamic_sampling": 3, "min_success_rate": 0.1, "max_success_rate": 0.9},
            bounds=SPREAD,
            summary="GRPO for robot episodes with equal weights; groups that nearly always or never succeed are left out",
            paper="Li et al., SimpleVLA-RL, arXiv 2509.09674",
        ),
    ]


def _of_turns() -> list[AlgorithmSpec]:
    """Variants of GRPO for episodes of several turns."""
    return [
        AlgorithmSpec(
            id="gigpo",
            target="mmrl.algorithms.states:group_in_group",
            options={"gamma": 0.95, "step_weight": 1.0, "scale": "none"},
            stage_defaults={"credit": "turn"},
            bounds={"gamma": SHARE, "step_weight": NOT_NEGATIVE, **SPREAD},
            summary="GRPO for episodes, and beside it for the turns of a group that began in the same state",
            paper="Feng et al., Group-in-Group Policy Optimization (GiGPO), section 4, arXiv 2505.10978; without its KL penalty",
        )
    ]


def _of_rewards() -> list[AlgorithmSpec]:
    """Algorithms that use rewards directly, or compare with the batch or a greedy completion."""
    return [
        AlgorithmSpec(
            id="reinforce++",
            target=ADVANTAGE + "whitened",
            stage_defaults={"kl_coef": 1e-3, "kl_estimator": "k1", "kl_in": "reward"},
            summary="Each token's return, minus a KL penalty, standardised over the batch",
            paper="Hu et al., REINFORCE++, arXiv 2501.03262",
        ),
        AlgorithmSpec(
            id="remax",
            target=ADVANTAGE + "greedy_baseline",
            loss=LOSS + "policy_gradient",
            normalise="constant",
            constant=1,
            summary="REINFORCE with the reward of the greedy completion as baseline",
            paper="Li et al., ReMax, Algorithm 1, arXiv 2310.10505; without its KL penalty",
        ),
        *(
            AlgorithmSpec(
                id=id,
                target=ADVANTAGE + "weighted",
                options={"positive": positive, "negative": negative},
                bounds={"positive": NOT_NEGATIVE, "negative": NOT_NEGATIVE},
                summary=summary,
                paper="Zhu et al., The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning, arXiv 2506.01347",
            )
            for id, positive, negative, summary in (
                ("w-reinforce", 0.1, 1.0, "Correct completions count a tenth, incorrect ones in full"),
                ("psr", 1.0, 0.0, "Learn from correct completions only"),
                ("nsr", 0.0, 1.0, "Learn from incorrect completions only"),
            )
        ),
    ]


def _with_models() -> list[AlgorithmSpec]:
    """Algorithms that need a critic or a teacher."""
    return [
        AlgorithmSpec(
            id="ppo",
            target="mmrl.algorithms.gae:gae",
            options={"gamma": 1.0, "lam": 0.95, "clip_low": 0.2, "clip_high": 0.2},
            bounds={"gamma": SHARE, "lam": SHARE},
            summary="Generalised advantage estimation with a critic, and a clipped ratio",
            paper="Schulman et al., Proximal Policy Optimization Algorithms, section 3, arXiv 1707.06347",
        ),
        AlgorithmSpec(
            id="bi-level-gae",
            target="mmrl.algorithms.gae:bi_level_gae",
            options={"gamma": 1.0, "turn_gamma": 0.95, "lam": 1.0, "clip_low": 0.2, "clip_high": 0.2},
            bounds={"gamma": SHARE, "turn_gamma": SHARE, "lam": SHARE},
            summary="PPO for episodes of several turns: advantages from turn to turn, and from token to token within each",
            paper="Wang et al., VAGEN, arXiv 2510.16907",
        ),
        AlgorithmSpec(
            id="dppo",
            target="mmrl.algorithms.denoising:denoising_gae",
            options={"gamma": 0.99, "lam": 0.95, "denoising_gamma": 0.99, "clip": 0.01, "first_clip": 0.001, "clip_rate": 3.0},
            loss="mmrl.algorithms.denoising:scheduled_surrogate",
            stage_defaults={"credit": "chunk"},
            bounds={**dict.fromkeys(("gamma", "lam", "denoising_gamma", "clip", "first_clip"), SHARE), "clip_rate": POSITIVE},
            summary="PPO over the denoising steps of a Diffusion Policy, each with its own ratio, discount and clip bound",
            paper="Ren et al., Diffusion Policy Policy Optimization, section 4, arXiv 2409.00588",
        ),
        AlgorithmSpec(
            id="digirl",
            target=ADVANTAGE + "step_filter",
            loss=LOSS + "negative_log_likelihood",
            stage_defaults={"credit": "turn"},  # a step of the paper is an action, which is a whole turn
            bounds={"gamma": SHARE},
            summary="Imitate the turns that improve the state by the value of a critic",
            paper="Bai et al., DigiRL, its step-level filter, arXiv 2406.11896",
        ),
        AlgorithmSpec(
            id="archer",
            target="mmrl.algorithms.turns:answer_advantage",
            loss=LOSS + "policy_gradient",
            summary="Each turn's advantage is its value less that of the state before it, by critics that learn off-policy",
            paper="Zhou et al., ArCHer, section 3, arXiv 2402.19446",
        ),
        AlgorithmSpec(
            id="opd",
            target=ADVANTAGE + "policy_distillation",
            loss=LOSS + "policy_gradient",
            summary="Each token's advantage is the teacher's log-probability minus the policy's: on-policy reverse KL",
            paper="VLA-OPD, arXiv 2603.26666",
        ),
        AlgorithmSpec(
            id="kdrl",
            target=ADVANTAGE + "taught",
            options={"teacher_weight": 5e-3, "last_teacher_weight": 1e-3, "masking": "none"},
            bounds={"teacher_weight": NOT_NEGATIVE, "last_teacher_weight": NOT_NEGATIVE},
            summary="GRPO, and beside it on-policy distillation from a teacher, whose weight falls over the stage",
            paper="Xu et al., KDRL, equation 8, arXiv 2506.02208",
        ),
    ]


def _of_likelihood() -> list[AlgorithmSpec]:
    """Algorithms that imitate good completions."""
    return [
        AlgorithmSpec(
            id="awr",
            target=ADVANTAGE + "exponential",
            options={"beta": 0.5, "max_weight": 20.0},
            loss=LOSS + "negative_log_likelihood",
            bounds={"beta": POSITIVE, "max_weight": POSITIVE},
            summary="Imitate completions, weighted by the exponential of their advantage in the group",
            paper="Peng et al., Advantage-Weighted Regression, Algorithm 1, arXiv 1910.00177",
        ),
        AlgorithmSpec(
            id="filtered-cloning",
            target=ADVANTAGE + "best",
            loss=LOSS + "negative_log_likelihood",
            summary="Imitate the completions whose reward reaches a threshold",
            paper="Dong et al., RAFT, arXiv 2304.06767",
        ),
    ]
