"""Advantages: the credit of each of N rollouts, or of each of their T tokens, from rewards.

Pure functions; positional parameters are signals, keyword-only ones are settings. Statistics are float64, results float32. A
failed rollout is NaN in inputs and results, and counts in no statistic.
"""

from __future__ import annotations

from typing import Literal

import torch

from mmrl.algorithms.units import by_unit

EPSILON = 1e-4
NOTHING = 1e-8
"""Smaller differences of rewards count as none."""
ROUNDING = 1e-12
"""Nor do differences below this share of the rewards themselves, which float64 makes in the mean of many equal ones."""


def group_relative(
    rewards_N: torch.Tensor,
    groups_N: torch.Tensor,
    *,
    scale: Literal["group", "batch", "none"] = "group",
    biased: bool = False,
    epsilon: float = EPSILON,
) -> torch.Tensor:
    """Reward minus the mean of its group, divided by a standard deviation: GRPO (Shao et al., DeepSeekMath, section 4.1.2).

    rewards_N: float, NaN if the score failed. groups_N: int64, its group. scale: divide by the group's standard deviation, by
    that of the batch's rewards (Liu et al., Tricks or Traps, Lite PPO), or not at all (Liu et al., Dr. GRPO). biased: divide the
    squares by their number instead of one less. epsilon: added to the standard deviation.

    Returns float32 [N]: 0 for groups without spread or with a single valid rollout, NaN where the reward was NaN.
    """
    centred_N = centred(rewards_N, groups_N)
    valid_N = ~centred_N.isnan()
    if scale == "none":
        return centred_N.float()
    if scale == "group":
        squares_N, count_N = group_sums(centred_N**2, groups_N), group_sums(valid_N.double(), groups_N)
    else:
        rewards_N = rewards_N.double()
        squares_N = ((rewards_N - rewards_N.nanmean()) ** 2).nansum()
        count_N = valid_N.sum()
    std_N = (squares_N / (count_N if biased else count_N - 1).clamp_min(1)).sqrt()
    return (centred_N / (std_N + epsilon).clamp_min(NOTHING)).float()


def leave_one_out(rewards_N: torch.Tensor, groups_N: torch.Tensor) -> torch.Tensor:
    """Reward minus the mean of the *other* rewards of its group: RLOO (Ahmadian et al., Back to Basics).

    rewards_N: float, NaN if the score failed. groups_N: int64. Returns float32 [N]: 0 for groups without spread or with a
    single valid rollout.
    """
    count_N = group_sums((~rewards_N.isnan()).double(), groups_N)
    return (centred(rewards_N, groups_N) * count_N / (count_N - 1).clamp_min(1)).float()


def whitened(rewards_NT: torch.Tensor, mask_NT: torch.Tensor) -> torch.Tensor:
    """The reward to go of each token, standardised over all trained tokens of the batch: REINFORCE++ (Hu et al.).

    rewards_NT: float, rows of failed rollouts NaN; with the KL penalty, if there is one. mask_NT: bool, trained tokens.

    Returns float32 [N, T]: 0 for tokens that aren't trained, NaN in failed rows.
    """
    to_go_NT = rewards_NT.double().flip(1).cumsum(1).flip(1)
    failed_N1 = rewards_NT.isnan().any(1, keepdim=True)
    found_NT = standardised(to_go_NT, mask_NT & ~failed_N1)
    return found_NT.where(mask_NT, 0.0).masked_fill(failed_N1, torch.nan).float()


def whitened_baseline(rewards_N: torch.Tensor, groups_N: torch.Tensor) -> torch.Tensor:
    """Reward minus the mean of its group, in standard deviations of the batch: REINFORCE++ with baseline (Hu et al.).

    rewards_N: float, NaN if the score failed. groups_N: int64. The batch's mean of the differences is 0 already. (OpenRLHF and
    verl compute mean and deviation over tokens, so that long rollouts count more.)

    Returns float32 [N]: 0 for groups without spread or with a single valid rollout.
    """
    return in_batch_units(centred(rewards_N, groups_N)).float()


def greedy_baseline(rewards_N: torch.Tensor, baselines_N: torch.Tensor) -> torch.Tensor:
    """Reward minus the reward of the greedy completion of the same prompt: ReMax (Li et al., Algorithm 1).

    Both float [N], NaN if the score failed. Returns float32 [N], NaN if either failed.
    """
    return (rewards_N.double() - baselines_N.double()).float()


def weighted(rewards_N: torch.Tensor, *, positive: float = 0.1, negative: float = 1.0, threshold: float = 0.5) -> torch.Tensor:
    """positive * r for a correct rollout, negative * (r - 1) for an incorrect one: W-REINFORCE (Zhu et al.).

    rewards_N: float, 0..1, NaN if the score failed. positive: weight of correct rollouts. negative: weight of incorrect ones.
    threshold: smallest reward of a correct rollout. Weights 1 and 0 are the paper's positive sample reinforcement (PSR), 0 and 1
    its negative one (NSR).

    Returns float32 [N]; independent of other rollouts.
    """
    rewards_N = rewards_N.double()
    return torch.where(rewards_N >= threshold, positive * rewards_N, negative * (rewards_N - 1)).float()


def filtered(
    rewards_N: torch.Tensor, groups_N: torch.Tensor, *, limit: float = 3.0, baseline: Literal["group", "batch"] = "group"
) -> torch.Tensor:
    """Reward minus a mean, standardised over the batch, 0 beyond `limit`: StableReinforce (Zhang et al., R1-Reward).

    rewards_N: float, NaN if the score failed. groups_N: int64. limit: in standard deviations, the paper's rule of three sigma.
    baseline: group, the mean of the rewards for the same prompt; or batch, that of all rewards, for one completion a prompt. With
    batch the limits are those of the released code: the mean of the raw rewards less and plus `limit`, for standardised values.

    Returns float32 [N]: 0 also for groups without spread or with a single valid rollout (group), or a batch without spread.
    """
    if baseline == "group":
        scaled_N = in_batch_units(centred(rewards_N, groups_N))
        return scaled_N.masked_fill(scaled_N.abs() > limit, 0.0).float()
    mean = rewards_N.double().nanmean()
    scaled_N = in_batch_units(rewards_N.double() - mean)
    return scaled_N.masked_fill((scaled_N - mean).abs() > limit, 0.0).float()


def smooth(rewards_N: torch.Tensor, groups_N: torch.Tensor, past_N4: torch.Tensor) -> torch.Tensor:
    """A mix of rewards standardised in the group and over all rewards of the prompt so far: DCPO (Yang et al., equations 5 to 7).

    At a prompt's i-th visit, new = (r - mean) / std of the group, and total = the same with the mean and std of all its rewards
    so far, including this group's. The result is the smaller in magnitude of ((i - 1) new + total) / i and
    (new + (i - 1) total) / i.

    rewards_N: float, NaN if the score failed. groups_N: int64, one prompt each. past_N4: float, the prompt's history before this
    step: visits, number of rewards, their mean, sum of their squared deviations. Standard deviations divide by the number
    (section A.7; the paper's code divides the group's by one less).

    Returns float32 [N]. A group without spread or with a single valid rollout has new = 0, so it gets 0 without a history, else
    total / i.
    """
    rewards_N = rewards_N.double()
    visits_N, past_count_N, past_mean_N, past_squares_N = past_N4.double().unbind(1)
    centred_N = centred(rewards_N, groups_N)
    count_N = group_sums((~rewards_N.isnan()).double(), groups_N).clamp_min(1)
    mean_N = group_sums(rewards_N, groups_N) / count_N
    squares_N = group_sums(centred_N**2, groups_N)
    total_N = past_count_N + count_N
    shift_N = mean_N - past_mean_N
    total_mean_N = past_mean_N + shift_N * count_N / total_N
    total_squares_N = past_squares_N + squares_N + shift_N**2 * past_count_N * count_N / total_N

    def ratio(difference_N: torch.Tensor, std_N: torch.Tensor) -> torch.Tensor:
        least_N = (ROUNDING * total_mean_N.abs()).clamp_min(NOTHING)
        return (difference_N / std_N.clamp_min(NOTHING)).where((std_N > least_N) | rewards_N.isnan(), 0.0)

    new_N = ratio(centred_N, (squares_N / count_N).sqrt())
    all_N = ratio(rewards_N - total_mean_N, (total_squares_N / total_N).sqrt())
    visit_N = visits_N + 1
    towards_new_N = ((visit_N - 1) * new_N + all_N) / visit_N
    towards_all_N = (new_N + (visit_N - 1) * all_N) / visit_N
    return torch.where(towards_new_N.abs() < towards_all_N.abs(), towards_new_N, towards_all_N).float()


def difficulty_weighted(rewards_N: torch.Tensor, groups_N: torch.Tensor, difficulty_N: torch.Tensor) -> torch.Tensor:
    """Reward minus the mean of its group, times the prompt's weight: GUI-G1 (Zhou et al.).

    rewards_N: float, NaN if the score failed. groups_N: int64. difficulty_N: float, the prompt's weight from its task, by default
    1 (in the paper larger for smaller targets).

    Returns float32 [N]: 0 for groups without spread or with a single valid rollout.
    """
    return (centred(rewards_N, groups_N) * difficulty_N.double()).float()


def per_reward(parts_NR: torch.Tensor, weights_NR: torch.Tensor, groups_N: torch.Tensor, *, batch: bool = True) -> torch.Tensor:
    """The weighted sum of group-relative advantages of each verifier: GDPO (Liu et al.).

    So a verifier with little spread counts as much as one with a lot; only its weight decides.

    parts_NR: float, the value of each verifier; NaN if the task doesn't have it, and in all columns if the rollout failed.
    weights_NR: float, its weight, 0 if the task doesn't have it. groups_N: int64. batch: divide the sums by their standard
    deviation over the batch; their mean is 0 already.

    Returns float32 [N]: 0 for groups in which no verifier has spread, or with a single valid rollout.
    """
    columns = [group_relative(parts_N, groups_N).double() for parts_N in parts_NR.unbind(1)]
    sums_N = (weights_NR * torch.stack(columns, 1)).nansum(1).masked_fill(parts_NR.isnan().all(1), torch.nan)
    return (in_batch_units(sums_N) if batch else sums_N).float()


def exponential(rewards_N: torch.Tensor, groups_N: torch.Tensor, *, beta: float = 0.5, max_weight: float = 20.0) -> torch.Tensor:
    """exp(A / beta), at most max_weight, with A the reward minus the mean of its group: AWR (Peng et al., Algorithm 1).

    A weight of the likelihood, not an advantage: meant for `negative_log_likelihood`. The group's mean replaces the paper's
    critic.

    rewards_N: float, NaN if the score failed. groups_N: int64. beta: temperature, in units of the reward; smaller is greedier.
    max_weight: upper bound of the weights.

    Returns float32 [N], 0..max_weight: 1 for groups without spread.
    """
    return (centred(rewards_N, groups_N) / beta).exp().clamp_max(max_weight).float()


def best(rewards_N: torch.Tensor, *, threshold: float = 0.5) -> torch.Tensor:
    """1 for rollouts with a reward of at least `threshold`, else 0: filtered behaviour cloning (RAFT, Dong et al.).

    A weight of the likelihood: meant for `negative_log_likelihood`. rewards_N: float, NaN if the score failed.
    threshold: smallest reward of an imitated rollout.

    Returns float32 [N].
    """
    return (rewards_N >= threshold).double().masked_fill(rewards_N.isnan(), torch.nan).float()


def step_filter(
    rewards_NT: torch.Tensor,
    values_NT: torch.Tensor,
    bootstrap_N: torch.Tensor,
    units_NT: torch.Tensor,
    *,
    margin: float = 0.05,
    gamma: float = 0.95,
) -> tuple[torch.Tensor, torch.Tensor]:
    """1 for steps that improve the state by more than `margin`, 0 for others: DigiRL (Bai et al., as in its code).

    A step is a unit of credit. Its weight is 1 if next value - value - margin + reward + Monte-Carlo return is above 0; the
    return is discounted by gamma and includes the step's own reward. A weight of the likelihood: meant for
    `negative_log_likelihood`.

    rewards_NT: float, rows of failed rollouts NaN. values_NT: float, the critic's values. bootstrap_N: float, the value after the
    last step if the environment truncated the episode, else 0. units_NT: int64, see `by_unit`. margin: required increase of the
    value. gamma: discount of the return per step.

    Returns (weights_NT, targets_NT), both float32, failed rows NaN; the weight is 0 outside of units. The critic learns the
    probability of success: its targets, at each unit's first token and NaN elsewhere, are 1 if the return is above 0, else 0.
    """
    units = by_unit(rewards_NT, values_NT, bootstrap_N, units_NT)
    returns_NU = units.returns(gamma)
    kept_NU = units.next_values_NU - units.values_NU - margin + units.rewards_NU + returns_NU > 0
    failed_N1 = rewards_NT.isnan().any(1, keepdim=True)
    weights_NT = units.to_tokens(kept_NU.double()).masked_fill(failed_N1, torch.nan)
    return weights_NT.float(), units.to_first_tokens((returns_NU > 0).double()).masked_fill(failed_N1, torch.nan).float()


def policy_distillation(teacher_logprobs_NT: torch.Tensor, logprobs_NT: torch.Tensor, mask_NT: torch.Tensor) -> torch.Tensor:
    """log p of the teacher minus log p of the student, of each token that the student sampled: on-policy distillation (VLA-OPD).

    The policy gradient with this advantage is that of -KL(student || teacher), token by token. Meant for `policy_gradient`.

    All [N, T], the first two float, mask_NT bool: trained tokens. Returns float32 [N, T]: 0 for tokens that aren't trained.
    """
    return (teacher_logprobs_NT.double() - logprobs_NT.double()).where(mask_NT, 0.0).float()


def taught(
    rewards_N: torch.Tensor,
    groups_N: torch.Tensor,
    teacher_logprobs_NT: torch.Tensor,
    logprobs_NT: torch.Tensor,
    mask_NT: torch.Tensor,
    progress_N: torch.Tensor,
    *,
    teacher_weight: float = 5e-3,
    last_teacher_weight: float = 1e-3,
    masking: Literal["none", "response", "group"] = "none",
    threshold: float = 0.5,
) -> torch.Tensor:
    """The advantage of `group_relative`, plus beta times that of `policy_distillation`: KDRL (Xu et al., equation 8, arXiv
    2506.02208).

    Its joint loss, GRPO's and beta times the k2 estimate of KL(policy || teacher), has this gradient at the first update of a
    step; in later ones the ratio's bounds hold for both terms.

    The first three as there. progress_N: 0..1. teacher_weight: beta at the beginning of the stage. last_teacher_weight: beta at
    its end, linear in between. masking: leave the teacher's term out of correct rollouts (response), or of groups with a correct
    rollout (group). threshold: smallest reward of a correct rollout.

    Returns float32 [N, T]: 0 for tokens that aren't trained, NaN in rollouts whose reward is NaN.
    """
    correct_N = rewards_N >= threshold
    left_out_N = {
        "none": torch.zeros_like(correct_N),
        "response": correct_N,
        "group": group_sums(correct_N.double(), groups_N) > 0,
    }[masking]
    beta_N = (teacher_weight + (last_teacher_weight - teacher_weight) * progress_N).masked_fill(left_out_N, 0.0)
    distilled_NT = policy_distillation(teacher_logprobs_NT, logprobs_NT, mask_NT).double()
    return (
        (group_relative(rewards_N, groups_N).double()[:, None] + beta_N[:, None] * distilled_NT)
        .where(mask_NT | rewards_N.isnan()[:, None], 0.0)
        .float()
    )


def success_relative(rewards_N: torch.Tensor, groups_N: torch.Tensor, *, threshold: float = 0.5) -> torch.Tensor:
    """1 - p for a correct rollout and -p for an incorrect one, with p the share of correct ones in its group.

    rewards_N: float, NaN if the score failed. groups_N: int64. threshold: smallest reward of a correct rollout. Returns float32
    [N]: 0 for groups in which all are correct, or none is.
    """
    return centred((rewards_N >= threshold).double().masked_fill(rewards_N.isnan(), torch.nan), groups_N).float()


def spread(rewards_N: torch.Tensor, groups_N: torch.Tensor) -> torch.Tensor:
    """bool [N]: whether the rollout's group has at least two different valid rewards, so that it teaches something."""
    _, index_N = groups_N.unique(return_inverse=True)
    num_groups = int(index_N.max()) + 1 if len(index_N) else 0
    empty = torch.full((num_groups,), torch.inf, dtype=rewards_N.dtype, device=rewards_N.device)
    low_G = empty.scatter_reduce(0, index_N, rewards_N.nan_to_num(torch.inf), "amin")
    high_G = (-empty).scatter_reduce(0, index_N, rewards_N.nan_to_num(-torch.inf), "amax")
    return (high_G > low_G)[index_N]


def group_sums(values_N: torch.Tensor, groups_N: torch.Tensor) -> torch.Tensor:
    """float64 [N] or [N, T], as the values are: the sum over the rollout's group, without NaN."""
    _, index_N = groups_N.unique(return_inverse=True)
    sums_G = torch.zeros_like(values_N, dtype=torch.float64)
    return sums_G.index_add_(0, index_N, values_N.double().where(~values_N.isnan(), 0.0))[index_N]


def centred(rewards_N: torch.Tensor, groups_N: torch.Tensor) -> torch.Tensor:
    """float64 [N]: reward minus the mean of its group; exactly 0 in groups without spread, NaN where the reward is NaN."""
    rewards_N = rewards_N.double()  # equal rewards must have exactly no spread
    count_N = group_sums((~rewards_N.isnan()).double(), groups_N)
    difference_N = rewards_N - group_sums(rewards_N, groups_N) / count_N.clamp_min(1)
    return difference_N.where(spread(rewards_N, groups_N) | rewards_N.isnan(), 0.0)


def in_batch_units(centred_N: torch.Tensor) -> torch.Tensor:
    """Values with mean 0, divided by their standard deviation over the batch (their root mean square). Zeros stay exactly 0."""
    return centred_N / (centred_N**2).nanmean().sqrt().clamp_min(NOTHING)


def standardised(values: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Values minus the mean and divided by the standard deviation of the kept ones; 0 if they have none. kept: bool, of the same
    shape."""
    known = values[kept]
    if not len(known):
        return values
    std, largest = float(known.std(correction=0)), float(known.abs().max())
    return (values - known.mean()) * (1 / std if std > max(NOTHING, ROUNDING * largest) else 0.0)
