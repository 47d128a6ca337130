"""The objectives of TRL, verl, ms-swift and papers: losses and advantages against what their code gave, and slow loops."""

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from loss_inputs import ROLLOUT, made, of_groups, random_batch, whole_batch
from mmrl.algorithms.advantage import group_relative
from mmrl.algorithms.asymmetric_losses import flipped_ratio, gradient_preserving, tapered
from mmrl.algorithms.covariance import clipped_covariance, covariance_penalty
from mmrl.algorithms.group_baselines import best_of_group, length_weighted, rescaled
from mmrl.algorithms.loss import average, clipped_surrogate, sequence_surrogate
from mmrl.algorithms.presets import load_algorithm
from mmrl.algorithms.reward_labels import reward_labels
from mmrl.algorithms.selection import most_uncertain
from mmrl.algorithms.sequence_losses import discounted_ahead, future_weighted, gamma_weight, geometric_mean
from mmrl.algorithms.trust_region import divergence_mask, quadratic_penalty, soft_gate
from mmrl.train.update.loss_weights import apart, drifted, importance_weights

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "objectives.jsonl").read_text().splitlines()]
LOSSES, CREDITS = [r for r in ROWS if "loss" in r], [r for r in ROWS if "credit" in r]
EVERY = [
    *(clipped_surrogate, sequence_surrogate, soft_gate, divergence_mask, geometric_mean, gamma_weight, future_weighted),
    *(quadratic_penalty, tapered, gradient_preserving, flipped_ratio),
]


def measured_for(algorithm, inputs):
    needs = algorithm.loss_needs
    return whole_batch(inputs)[: len(needs)] if "batch_M3" in needs else of_groups(inputs) if needs else ()


def test_the_table_is_whole():
    names = {row["name"].rpartition("-")[0] for row in LOSSES}
    assert len(names) == 37 and len(LOSSES) == 111 and len(CREDITS) == 48
    released = {"ROLL", "CE-GPPO", "Archer2.0", "M2PO", "BAPO", "verl-recipe", "maxrl", "listing", "AR-Lopti", "prime-rl"}
    assert {row["how"].split()[1] for row in ROWS} == {"trl", "verl", "ms-swift", *released}


@pytest.mark.parametrize("row", LOSSES, ids=lambda row: row["name"])
def test_loss_and_gradient_are_theirs(row):
    settings = dict(row["settings"])
    mask_kl, gap, cap = (settings.pop(key, None) for key in ("off_policy_mask", "gap_mask", "cap"))
    algorithm = load_algorithm(settings.pop("algorithm"), settings)
    table = {key: torch.tensor(row[key], dtype=torch.float64) for key in ("logprobs", "old", "entropy", "advantages")}
    mask = torch.tensor(row["mask"]).bool()
    if algorithm.entropy_share < 1:
        table["advantages"] = most_uncertain(table["advantages"], table["entropy"], mask, algorithm.entropy_share).double()
    rollout, lengths = mask.nonzero()[:, 0], mask.sum(1)
    logprobs = table["logprobs"].requires_grad_()
    old = logprobs.detach() if gap is not None else table["old"]  # what the batch calls old is the sampler then
    inputs = made(logprobs[mask], old[mask], table["advantages"][mask], rollout, lengths)
    loss, cut, *_ = algorithm.loss(inputs, *measured_for(algorithm, inputs))
    if mask_kl is not None:
        left_out = drifted(inputs, inputs.old_logprobs_L, mask_kl)
        assert 0 < left_out.sum() < len(left_out)
        loss = loss.masked_fill(left_out, 0.0)
    if gap is not None:
        sampler, own = table["old"][mask], torch.ones(len(rollout), dtype=torch.bool)
        left_out = apart(inputs, inputs.old_logprobs_L, sampler, own, gap)
        assert 0 < left_out.sum() < len(left_out)
        weight, _ = importance_weights(inputs.old_logprobs_L, sampler, own, False, cap)
        loss = loss * weight * ~left_out
    batch = SimpleNamespace(num_tokens=int(mask.sum()), num_rollouts=len(lengths), lengths_N=lengths)
    found = average(loss, SimpleNamespace(rollout_L=rollout), batch, algorithm.normalise, algorithm.constant)
    found.backward()
    if algorithm.id not in ("gpg", "aspo"):  # whose value isn't that of credit times log p, which has the same gradient
        assert found.item() == pytest.approx(row["loss"], rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(logprobs.grad.numpy(), row["gradient"], rtol=2e-4, atol=1e-6)
    assert cut.dtype == torch.float32 and set(cut.tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("row", [r for r in ROWS if "penalised_gradient" in r], ids=lambda row: row["name"])
def test_a_mask_of_divergence_with_a_penalty_is_prime_rl_s(row):
    """Its `default_loss_fn`, whose gradient reaches the tokens that have moved too far by the penalty alone."""
    algorithm = load_algorithm((settings := dict(row["settings"])).pop("algorithm"), settings)
    new, old, credit = (torch.tensor(row[key], dtype=torch.float64) for key in ("logprobs", "old", "advantages"))
    inputs = made(new.requires_grad_(), old, credit, torch.zeros(40).long(), torch.tensor([40]))
    loss, cut = algorithm.loss(inputs)
    loss.sum().backward()
    np.testing.assert_allclose(new.grad.numpy(), row["penalised_gradient"], rtol=1e-4, atol=1e-6)
    penalty = 2 * settings["penalty"] * (new - old).detach()
    assert 3 < cut.sum() < 37 and torch.allclose(new.grad[cut > 0], penalty[cut > 0])


@pytest.mark.parametrize("row", CREDITS, ids=lambda row: row["name"])
def test_credit_is_theirs(row):
    """A prompt with one completion has credit there; here it teaches nothing."""
    algorithm = load_algorithm((settings := dict(row["settings"])).pop("algorithm"), settings)
    signals = {"rewards_N": row["rewards"], "groups_N": row["groups"], "lengths_N": row["lengths"]}
    found = algorithm.advantage(*(torch.tensor(signals[name]) for name in algorithm.needs))
    assert found.dtype == torch.float32 and found.tolist() == pytest.approx(row["credit"], abs=1e-5)


# -- slow loops --------------------------------------------------------------------------------------------------------------


def slope(function, at, by=1e-6):
    return (function(at + by) - function(at - by)) / (2 * by)


def test_sapo_one_token_at_a_time():
    rng = np.random.default_rng(0)
    new, old, credit = rng.normal(-2, 1, 60), rng.normal(-2, 1, 60), rng.normal(0, 1, 60)
    logprobs = torch.tensor(new, requires_grad=True)
    loss, _ = soft_gate(made(logprobs, old, credit), temperature=2.0, negative_temperature=5.0)
    loss.sum().backward()
    for i in range(60):
        t = 2.0 if credit[i] > 0 else 5.0

        def objective(p, i=i, t=t):
            return 4 / t / (1 + math.exp(-t * (math.exp(p - old[i]) - 1))) * credit[i]

        assert loss[i].item() == pytest.approx(-objective(new[i]))
        assert logprobs.grad[i].item() == pytest.approx(-slope(objective, new[i]), abs=1e-5)


def test_divergence_ppo_one_token_at_a_time():
    """A rare token that grew tenfold goes on; a likely one that lost a fifth doesn't."""
    new, old = torch.tensor([1e-3, 0.79, 0.99, 0.79]).log().requires_grad_(), torch.tensor([1e-4, 0.99, 0.79, 0.99]).log()
    loss, cut = divergence_mask(made(new, old, [1.0, -1.0, 1.0, 1.0]), limit=5.0)
    assert cut.tolist() == [0.0, 1.0, 1.0, 0.0]
    loss.sum().backward()
    assert new.grad.tolist() == pytest.approx([-5.0, 0.0, 0.0, -0.79 / 0.99]), "a weight of 10 is bounded by 5"
    kl = 0.99 * math.log(0.99 / 0.79) + 0.01 * math.log(0.01 / 0.21)
    for bound, expected in ((kl - 1e-4, 1.0), (kl + 1e-4, 0.0)):
        _, cut = divergence_mask(made(new, old, [1.0, -1.0, 1.0, 1.0]), divergence="kl", clip_low=bound, clip_high=9.0)
        assert cut.tolist() == [0.0, expected, 0.0, 0.0]


def test_gmpo_is_the_mean_of_logarithms_that_are_clipped_one_by_one():
    new = torch.tensor([1.0, 0.2, -1.0, 0.1, 2.0, -3.0], requires_grad=True)
    credit = torch.tensor([2.0, 2.0, 1.0, -1.0, -1.0, -1.0])
    loss, cut = geometric_mean(made(new, torch.zeros(6), credit), clip_low=0.5, clip_high=0.3)
    means = [(0.3 + 0.2) / 2, -1.0, (0.1 + 2.0 - 0.5) / 3]
    assert loss.tolist() == pytest.approx(
        [-math.exp(means[r]) * a for r, a in zip(ROLLOUT.tolist(), credit.tolist(), strict=True)]
    )
    assert cut.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    loss.sum().backward()
    assert [bool(g) for g in new.grad] == [False, True, True, True, True, False]


def test_vespo_weighs_rollouts_by_the_product_of_their_ratios():
    new, credit = torch.tensor([0.3, -0.1, 0.5, 0.2, 0.2, 0.3]), torch.tensor([1.0, 1.0, -2.0, 1.0, 1.0, -1.0])
    new.requires_grad_()
    loss, _ = gamma_weight(made(new, torch.zeros(6), credit))
    loss.sum().backward()
    product = [math.exp(0.2)] * 2 + [math.exp(0.5)] + [math.exp(0.7)] * 3
    for i, (w, a) in enumerate(zip(product, credit.tolist(), strict=True)):
        k, decay = (2, 3) if a >= 0 else (3, 2)
        assert new.grad[i].item() == pytest.approx(-(w**k) * math.exp(decay * (1 - w)) * a, rel=1e-5)


def test_what_follows_is_discounted_token_by_token():
    rng = np.random.default_rng(3)
    for lengths in ([1], [1, 1, 1], [5, 1, 4], [16, 3], [17, 0, 2]):
        rollout = np.repeat(np.arange(len(lengths)), lengths)
        values = rng.normal(size=len(rollout))
        found = discounted_ahead(torch.tensor(values), torch.tensor(rollout), 0.7)
        slow = [
            sum(0.7 ** (j - i) * values[j] for j in range(i, len(values)) if rollout[j] == rollout[i]) for i in range(len(values))
        ]
        assert found.tolist() == pytest.approx(slow)


def test_fipo_weighs_what_comes_before_a_rise():
    new = torch.tensor([0.0, 0.1, 0.0, 0.0, -0.5, 0.0])
    loss, _ = future_weighted(made(new, torch.zeros(6), torch.ones(6)), half_life=1.0, only_raises=False)
    weights = (-loss / new.exp()).tolist()
    assert weights == pytest.approx([math.exp(0.05), math.exp(0.1), 1.0, 0.8, 0.8, 1.0], rel=1e-5)
    risky = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.5, 0.0])  # a ratio of 4.5: without more weight where it is punished
    loss, _ = future_weighted(made(risky, torch.zeros(6), -torch.ones(6)), dual_clip=0.0)
    assert (loss / risky.exp()).tolist() == pytest.approx([1.0, 1.0, 1.0, 1.2, 1.0, 1.0])
    loss, _ = future_weighted(made(risky, torch.zeros(6), -torch.ones(6)), dual_clip=4.0)
    assert loss[3].item() == pytest.approx(1.0), "beyond dual_clip it counts for no other"


def test_real_is_a_cross_entropy_over_each_group():
    """Its gradient by each rollout's log-probabilities is that of the losses of groups, by autograd."""
    rng, lengths = np.random.default_rng(5), torch.tensor([2, 1, 3, 2, 1, 4, 1, 2])
    rollout, groups = torch.arange(8).repeat_interleave(lengths), torch.tensor([0, 1, 0, 1, 0, 1, 2, 2])
    credits = torch.tensor([0.5, -0.5, -0.5, 0.5, math.nan, 0.5, 0.0, 0.0])
    new = torch.tensor(rng.normal(-1, 0.5, len(rollout)), requires_grad=True)
    old = torch.tensor(rng.normal(-1, 0.5, len(rollout)))
    sums = torch.zeros(8, dtype=torch.float64).index_add(0, rollout, new - old)
    scores, whole = sums / lengths / 0.5, 0.0
    for group in (0, 1):  # group 2 is of one kind
        mine = [n for n in range(8) if groups[n] == group and not math.isnan(credits[n])]
        wrong = sum(scores[n].exp() for n in mine if credits[n] <= 0)
        right = sum((-scores[n]).exp() for n in mine if credits[n] > 0)
        whole = whole + len(mine) * ((1 + wrong).log() + (1 + right).log())
    (expected,) = torch.autograd.grad(whole, new)
    inputs = made(new, old, credits[rollout].nan_to_num(0.0), rollout, lengths)
    loss, _ = reward_labels(inputs, sums.detach(), groups, credits)
    loss.sum().backward()
    assert loss.sum().item() == pytest.approx(whole.item()) and new.grad.tolist() == pytest.approx(expected.tolist())


def test_clip_cov_leaves_out_some_tokens_of_the_band_the_same_in_every_micro_batch():
    inputs = random_batch(7)
    batch, places = whole_batch(inputs)
    plain, before = clipped_surrogate(inputs)
    loss, cut, chosen = clipped_covariance(inputs, batch, places, share=0.05, low=0.2, high=2.0)
    credit, logprobs = inputs.advantages_L, inputs.logprobs_L.detach()
    covariance = (credit - credit.mean()) * (logprobs - logprobs.mean())
    band = (covariance > 0.2) & (covariance < 2.0) & (before == 0)
    left_out = (loss == 0) & (plain != 0)
    assert left_out.sum() == 20 < band.sum() and not (left_out & ~band).any()
    assert torch.equal(cut, before.maximum(left_out.float())) and torch.equal(loss[~left_out], plain[~left_out])
    assert torch.equal(chosen, left_out.float())
    half = slice(0, 200)
    part = made(*(x[half] for x in (inputs.logprobs_L, inputs.old_logprobs_L, credit, inputs.rollout_L)))
    assert torch.equal(clipped_covariance(part, batch, places[half], share=0.05, low=0.2, high=2.0)[0], loss[half])
    assert (clipped_covariance(inputs, batch, places, low=90.0, high=91.0)[0] == plain).all(), "nothing is in that band"


def test_kl_cov_penalises_the_largest_covariances():
    inputs = random_batch(8)
    loss, cut, chosen = covariance_penalty(inputs, *whole_batch(inputs), share=0.01, penalty=3.0)
    credit, logprobs = inputs.advantages_L, inputs.logprobs_L.detach()
    log_ratio = logprobs - inputs.old_logprobs_L
    covariance = (credit - credit.mean()) * (logprobs - logprobs.mean())
    ranked = set(covariance.argsort(descending=True)[:4].tolist())
    expected = [
        -math.exp(log_ratio[i]) * credit[i].item() + (3.0 * abs(log_ratio[i].item()) if i in ranked else 0.0) for i in range(400)
    ]
    assert loss.tolist() == pytest.approx(expected) and not cut.any() and {*chosen.nonzero()[:, 0].tolist()} == ranked
    same = made(logprobs.requires_grad_(), inputs.old_logprobs_L, torch.ones(400), inputs.rollout_L)
    loss, _, chosen = covariance_penalty(same, *whole_batch(same), share=0.01, penalty=3.0)
    assert loss.tolist() == pytest.approx((-log_ratio.exp()).tolist()) and not chosen.any(), (
        "without spread no token has a covariance above 0"
    )


def test_gspo_token_reaches_each_token_by_itself():
    """With one advantage a rollout it is GSPO; with one a token each learns from its own."""
    found = {}
    for per_token, credit in itertools.product((False, True), ([1.0, 1.0, -1.0, 2.0, 2.0, 2.0], [1.0, 0.0, -1.0, 2.0, 0.0, 0.0])):
        new = torch.tensor([0.1, -0.2, 0.3, 0.1, 0.0, -0.1], requires_grad=True)
        loss, _ = sequence_surrogate(
            made(new, torch.zeros(6), torch.tensor(credit)), clip_low=0.5, clip_high=0.5, per_token=per_token
        )
        loss.sum().backward()
        found[per_token, sum(credit)] = new.grad.tolist()
    assert found[False, 7.0] == pytest.approx(found[True, 7.0]) and found[False, 2.0] != pytest.approx(found[True, 2.0])
    ratio = math.exp(-0.05)
    assert found[True, 2.0][:2] == pytest.approx([-ratio, 0.0]) and found[False, 2.0][:2] == pytest.approx([-ratio / 2] * 2)


# -- credit ------------------------------------------------------------------------------------------------------------------

NAN = math.nan


def test_a_failed_score_counts_nowhere():
    rewards, groups = torch.tensor([1.0, NAN, 0.0, 0.5, 0.5, 1.0]), torch.tensor([0, 0, 0, 1, 1, 2])
    lengths = torch.tensor([1, 9, 3, 2, 2, 7])
    expect = [0.75, NAN, -0.25, 0.0, 0.0, 0.0]  # the mean of 1 token of 1 and 3 of 0
    assert length_weighted(rewards, groups, lengths).tolist() == pytest.approx(expect, nan_ok=True)
    assert best_of_group(rewards, groups, scale="none").tolist() == pytest.approx([1.0, NAN, 0.0, 0.0, 0.0, 0.0], nan_ok=True)
    scaled = 1.0 / (0.5**0.5 + 1e-6)
    assert best_of_group(rewards, groups).tolist() == pytest.approx([scaled, NAN, 0.0, 0.0, 0.0, 0.0], nan_ok=True)
    expect = [0.5 * 5 / 2, NAN, -0.5 * 5 / 2, 0.0, 0.0, 0.0]  # 2 of 5 valid rollouts are in a group with spread
    assert rescaled(rewards, groups).tolist() == pytest.approx(expect, nan_ok=True)


def test_rollouts_without_a_token_and_batches_that_teach_nothing():
    rewards, groups = torch.tensor([1.0, 0.0]), torch.zeros(2, dtype=torch.long)
    assert length_weighted(rewards, groups, torch.zeros(2, dtype=torch.long)).tolist() == [0.5, -0.5]
    for function in (best_of_group, rescaled):
        assert function(torch.full((3,), 0.3), torch.tensor([0, 0, 1])).tolist() == [0.0, 0.0, 0.0]
        assert function(torch.full((2,), NAN), groups).isnan().all()
    assert length_weighted(torch.full((3,), 0.3), torch.tensor([0, 0, 1]), torch.tensor([1, 5, 2])).tolist() == [0.0, 0.0, 0.0]


def test_the_best_of_a_group_is_compared_with_the_best_of_the_others():
    rng = np.random.default_rng(2)
    for _ in range(100):
        rewards, groups = rng.integers(0, 5, 7) / 4, rng.integers(0, 3, 7)
        found = best_of_group(torch.tensor(rewards), torch.tensor(groups), scale="none").tolist()
        for i in range(7):
            mine = [r for r, g in zip(rewards, groups, strict=True) if g == groups[i]]
            others = [rewards[j] for j in range(7) if groups[j] == groups[i] and j != i]
            assert found[i] == pytest.approx(max(mine) - max(others) if others else 0.0)


def test_the_optimal_baseline_has_the_least_variance():
    """Of all baselines, if a rollout's squared gradient is its length: the least mean of length times squared advantage."""
    rng = np.random.default_rng(4)
    rewards, lengths = rng.random(6), rng.integers(1, 20, 6)
    found = length_weighted(torch.tensor(rewards), torch.zeros(6, dtype=torch.long), torch.tensor(lengths)).double().numpy()
    least = (lengths * found**2).sum()
    assert all((lengths * (found + shift) ** 2).sum() > least for shift in (-0.01, 0.01))


def test_the_tokens_of_highest_entropy():
    entropy = torch.tensor([[1.0, 5.0, 2.0], [9.0, 3.0, 8.0], [4.0, 6.0, 0.5]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False], [True, True, True]])
    credit = torch.tensor([1.0, NAN, -2.0])
    found = most_uncertain(credit, entropy, mask, 0.5)  # of 1 5 2 4 6 0.5, the failed rollout and its 9 left out
    assert found[0].tolist() == [0.0, 1.0, 0.0] and found[2].tolist() == [-2.0, -2.0, 0.0] and found[1].isnan().all()
    assert most_uncertain(credit, entropy, mask, 0.0)[2].tolist() == [0.0, -2.0, 0.0]
    assert most_uncertain(credit, entropy, mask, 1.0)[0].tolist() == [1.0, 1.0, 1.0]
    assert most_uncertain(torch.full((3,), NAN), entropy, mask, 0.2).isnan().all()
    for share in (0.1, 0.2, 0.3, 0.7):
        values = torch.rand(1, 101, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        kept = most_uncertain(torch.ones(1), values, torch.ones(1, 101, dtype=torch.bool), share)
        assert torch.equal(kept > 0, values >= values.quantile(1 - share) - 1e-12)


# -- on-policy ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [f for f in EVERY if f is not quadratic_penalty], ids=lambda f: f.__name__)
def test_on_policy_it_is_the_policy_gradient(function):
    new = torch.tensor([-1.0, -0.1, -0.5, -2.0, -0.3, -0.7], requires_grad=True)
    credit = group_relative(torch.tensor([1.0, 0.0, 0.5]), torch.zeros(3, dtype=torch.long))[ROLLOUT]
    loss, cut = function(made(new, new.detach(), credit))
    loss.sum().backward()
    assert new.grad.tolist() == pytest.approx((-credit).tolist(), abs=1e-6) and not cut.any()
