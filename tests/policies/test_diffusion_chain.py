"""Denoising as a stochastic policy: its likelihood is that of DPPO's released code and of plain loops, and so is the loss."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mmrl.algorithms.denoising import denoising_gae, scheduled_surrogate
from mmrl.algorithms.loss import LossInputs
from mmrl.policies.acting.flow import PLACES
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.diffusion.denoising import Denoising, noise_schedule

GOLDEN = Path(__file__).parents[1] / "golden" / "dppo.jsonl"
CLOSE = {"atol": 2e-5, "rtol": 2e-5}
EXECUTED = 3
SEEDS = torch.arange(5)
DRAW = CallRandomness(seeds_n=SEEDS, calls_n=torch.zeros_like(SEEDS))


def chain(**changed):
    return Denoising(**{"betas_T": noise_schedule("squaredcos_cap_v2", 6, 1e-4, 0.02), "steps": 6, "tuned_steps": 6, **changed})


def of(row):
    """The chain of a row of the published code's."""
    case = row["case"]
    return chain(
        betas_T=torch.tensor(row["betas"]),
        steps=case.get("ddim_steps", case["denoising_steps"]),
        scheduler="DDIM" if case.get("use_ddim") else "DDPM",
        predicts="epsilon" if case.get("predict_epsilon", True) else "sample",
        clip=case.get("denoised_clip_value", 1.0),
        tuned_steps=case["ft_denoising_steps"],
        likelihood_std=case.get("min_logprob_denoising_std", 0.1),
        eta=case["eta"],
    )


def linear(actor, state):
    def predict(x, times):
        return x @ actor["mix"] + times[:, :, None, None] * actor["by_time"] + (state[:, None] @ actor["by_state"])[:, None, None]

    return predict


@pytest.mark.parametrize("row", [json.loads(line) for line in GOLDEN.read_text().splitlines()], ids=lambda r: str(r["case"])[:40])
def test_likelihoods_and_the_loss_are_those_of_the_published_code(row):
    case, steps = row["case"], row["case"]["ft_denoising_steps"]
    actor = {name: torch.tensor(x, requires_grad=True) for name, x in row["actor"].items()}
    logprobs, entropy = of(row).score(linear(actor, torch.tensor(row["state"])), torch.tensor(row["chains"]), 1.0)
    torch.testing.assert_close(logprobs, torch.tensor(row["new"]), **CLOSE)
    assert (entropy >= math.log(case.get("min_logprob_denoising_std", 0.1)) + 1.418).all()

    def mean(x):
        return x[:, :, :EXECUTED].mean((2, 3))

    count = len(row["advantages"])
    rewards = torch.zeros(count, steps)
    rewards[:, -1] = torch.tensor(row["advantages"])
    advantages, targets = denoising_gae(
        rewards,
        torch.zeros_like(rewards),
        torch.zeros(count),
        torch.zeros(count, steps, dtype=torch.int64),
        denoising_gamma=case["gamma_denoising"],
        whiten=False,
    )
    assert targets[:, 1:].isnan().all()
    inputs = LossInputs(
        logprobs_L=mean(logprobs).flatten(),
        old_logprobs_L=mean(torch.tensor(row["old"])).flatten(),
        advantages_L=advantages.flatten(),
        rollout_L=torch.arange(count).repeat_interleave(steps),
        lengths_N=torch.full((count,), steps),
    )
    through = torch.linspace(0, 1, steps).repeat(count)
    bounds = {"clip": case["clip_ploss_coef"], "first_clip": 0.001, "clip_rate": 3.0}
    loss, clipped = scheduled_surrogate(inputs, through, **bounds)
    torch.testing.assert_close(loss.mean().item(), row["loss"], atol=2e-6, rtol=2e-5)
    loss.mean().backward()
    torch.testing.assert_close(actor["by_time"].grad, torch.tensor(row["slope"]), atol=1e-4, rtol=1e-3)
    # theirs counts every ratio beyond a bound, ours those that lose their gradient
    assert 0 < clipped.mean() <= row["clipped"]


def test_a_discount_counts_the_later_steps_of_the_same_call():
    units = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, -1, -1, -1]])
    rewards = torch.tensor([[0.0, 0, 0, 0, 0, 8], [0, 0, 4, 0, 0, 0]])
    found, targets = denoising_gae(
        rewards, torch.zeros(2, 6), torch.zeros(2), units, gamma=0.5, lam=1.0, denoising_gamma=0.5, whiten=False
    )
    assert found.tolist() == [[1, 2, 4, 2, 4, 8], [1, 2, 4, 0, 0, 0]]
    assert targets[:, [0, 3]].nan_to_num(-1).tolist() == [[4, 8], [4, -1]]


def test_bounds_grow_towards_the_last_step():
    through, ones = torch.tensor([0.0, 0.5, 1.0]), torch.ones(3)
    inputs = LossInputs(
        logprobs_L=torch.full((3,), 1.0),
        old_logprobs_L=torch.zeros(3),
        advantages_L=ones,
        rollout_L=ones.long(),
        lengths_N=ones.long(),
    )
    loss, clipped = scheduled_surrogate(inputs, through, clip=0.1, first_clip=0.02, clip_rate=2.0)
    middle = 0.02 + 0.08 * (math.e - 1) / (math.e**2 - 1)
    assert (-loss - 1).tolist() == pytest.approx([0.02, middle, 0.1], abs=1e-6) and clipped.tolist() == [1, 1, 1]


@pytest.mark.parametrize("credit", [1.0, -1.0, 0.0])
def test_ratios_that_overflow_leave_numbers(credit):
    """As a sum over a chunk of actions may be, of a policy that has become sure of itself."""
    new = torch.tensor([0.0, -200.0, -95.0], requires_grad=True)
    inputs = LossInputs(
        logprobs_L=new,
        old_logprobs_L=torch.tensor([-200.0, 0.0, -1.0]),
        advantages_L=torch.full((3,), credit),
        rollout_L=torch.zeros(3, dtype=torch.long),
        lengths_N=torch.tensor([3]),
    )
    loss, _ = scheduled_surrogate(inputs, torch.tensor([0.0, 0.5, 1.0]))
    loss.sum().backward()
    assert loss.isfinite().all() and new.grad.isfinite().all()


def test_the_schedules_are_those_of_their_papers():
    cosine = noise_schedule("squaredcos_cap_v2", 50, 0, 0)
    kept = [math.cos((i / 50 + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(51)]
    wanted = torch.tensor([kept[i + 1] / kept[0] for i in range(49)])
    torch.testing.assert_close((1 - cosine).cumprod(0)[:49], wanted, atol=1e-6, rtol=1e-4)
    assert cosine[-1] == pytest.approx(0.999) and noise_schedule("linear", 3, 0.1, 0.3).tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert noise_schedule("scaled_linear", 3, 0.01, 0.09).tolist() == pytest.approx([0.01, 0.04, 0.09])
    assert chain(steps=2)._times.tolist() == [3, 0] and chain(steps=4)._times.tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("scheduler", ["DDPM", "DDIM"])
def test_a_perfect_prediction_leads_to_the_action(scheduler):
    """Of noise, at temperature 0, whatever DDPM adds on the way."""
    action, made = torch.tensor([[0.3, -0.7]]).expand(5, 4, 2), chain(scheduler=scheduler)
    before = made._kept[0]

    def predict(x, times):
        kept = before.flip(0)[times][:, :, None, None]
        return (x - kept.sqrt() * action[:, None]) / (1 - kept).sqrt()

    end, choices, logprobs = made.sample(predict, DRAW, (4, 2), 0.0)
    torch.testing.assert_close(end, action, atol=1e-4, rtol=0)
    assert choices.shape == (5, 7, 4, 2) and logprobs.shape == (5, 6, 4, 2)
    noisy, _, _ = made.sample(predict, DRAW, (4, 2), 1.0)
    assert (noisy - action).std() == pytest.approx(0.1, rel=0.4), "the last step's noise, which is exploration's alone"


@pytest.mark.parametrize("scheduler", ["DDPM", "DDIM"])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_what_is_sampled_is_what_is_scored(scheduler, temperature):
    made = chain(scheduler=scheduler, tuned_steps=4, exploration_std=0.2, likelihood_std=0.3, eta=0.7)

    def predict(x, times):
        return (x * (1 + times[:, :, None, None])).sin()

    end, choices, logprobs = made.sample(predict, DRAW, (4, 2), temperature)
    scored, _ = made.score(predict, choices, temperature)
    torch.testing.assert_close(scored, logprobs, atol=1e-5, rtol=1e-5)
    assert choices.shape == (5, 5, 4, 2) and torch.equal(choices[:, -1], end)


def test_a_demonstration_is_noised_at_times_from_all_parts():
    made, actions, asked = chain(predicts="epsilon"), torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(2)), []

    def predict(x, times):
        asked.append((x, times))
        return torch.zeros_like(x)

    loss, entropy = made.score(predict, actions[:, None], 1.0)
    ((x, times),) = asked
    assert times.shape == (3, PLACES) and (times.sort(1).values == times).all() and times.max() < 6 and times[:, 0].max() <= 1
    kept = (1 - made.betas_T).cumprod(0)[times][:, :, None, None]
    noise = (x - kept.sqrt() * actions[:, None]) / (1 - kept).sqrt()
    assert abs(noise.mean()) < 0.3 and 0.7 < noise.std() < 1.3
    torch.testing.assert_close(-loss[:, 0], noise.square().mean(1), atol=1e-4, rtol=1e-4)
    assert (entropy == 0).all()
    found, _ = chain(predicts="sample").score(predict, actions[:, None], 1.0)
    torch.testing.assert_close(-found[:, 0], actions.square())


def test_a_share_of_a_call_is_known_for_every_ratio():
    from mmrl.policies.batches import ActionMicroBatch

    def through(**of):
        some = torch.zeros(1)
        known = {"sampler_logprobs_L": some, "advantages_L": some, "rollout_L": some, "place_L": some, "off_policy_L": some}
        made = ActionMicroBatch(observation=SimpleNamespace(), choices=some, **known, **of)
        return made.through_call_L.tolist()

    valid = torch.tensor([[True, True], [True, False]])
    assert through(slots=2, valid_SK=valid, ratio="chunk") == [1, 1]
    assert through(slots=1, valid_SK=valid, ratio="action") == [0, 1, 1]
    assert through(slots=3, valid_SK=valid, ratio="token", tokens_S=torch.tensor([3, 1])) == [0, 0.5, 1, 1]
    assert through(slots=3, valid_SK=valid, ratio="token", tokens_S=torch.tensor([3, 3]), at_L=torch.tensor([5, 1])) == [1, 0.5]
