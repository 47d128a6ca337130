"""The optimiser's steps, worked out by hand for a policy that is nothing but one logit per token."""

import math

import pytest
import torch
from torch.nn.functional import log_softmax

from mmrl.algorithms.loss import clipped_surrogate, negative_log_likelihood
from mmrl.errors import UserError
from mmrl.learn import Learner, frozen_copy, learning_rate
from mmrl.policies.vlm import VLM
from mmrl.schema import PolicyConfig, RlStage, SftStage
from mmrl.types import Batch, MicroBatch


class Bandit:
    """Logits `w` of V tokens, whatever the prompt."""

    device = torch.device("cpu")

    def __init__(self, *logits, dtype=torch.float32):
        self.model = torch.nn.Module()
        self.model.w = self.w = torch.nn.Parameter(torch.tensor(logits, dtype=dtype))
        self.temperatures = []

    def parameters(self):
        return self.model.named_parameters()

    def logprobs(self, micro, temperature):
        self.temperatures.append(temperature)
        logprobs_V = log_softmax(self.w.float() / temperature, 0)
        entropy = -(logprobs_V.exp() * logprobs_V).sum().detach()
        return logprobs_V[micro.target_L], entropy.expand(len(micro.target_L))


def batch(tokens, advantages, sampler=None, splits=None, rollouts=None):
    """These tokens, by default each a rollout of its own, in micro-batches of these sizes."""
    tokens, advantages = torch.tensor(tokens), torch.tensor(advantages)
    sampler = torch.zeros(len(tokens)) if sampler is None else torch.tensor(sampler)
    owner = torch.arange(len(tokens)) if rollouts is None else torch.tensor(rollouts)
    splits = splits or [len(tokens)]
    nothing = torch.zeros(1, 1, dtype=torch.long)
    micro = tuple(
        MicroBatch(
            ids_BS=nothing,
            segment_BS=nothing,
            positions=None,
            media={},
            source_L=t,
            target_L=t,
            sampler_logprobs_L=s,
            advantages_L=a,
            rollout_L=o,
        )
        for t, a, s, o in zip(*(x.split(splits) for x in (tokens, advantages, sampler, owner)), strict=True)
    )
    lengths = owner.bincount()
    return Batch(micro=micro, num_tokens=len(tokens), num_rollouts=len(lengths), lengths_N=lengths)


def rl(policy, normalise="token", temperature=1.0, reference=None, gap_limit=math.inf, **settings):
    stage = RlStage(kind="rl", **{"steps": 10, "learning_rate": 1.0, "max_grad_norm": 1e9, **settings})
    return Learner(policy, stage, clipped_surrogate, normalise, temperature, reference, gap_limit)


def sft(policy, **settings):
    stage = SftStage(kind="sft", **{"steps": 10, "learning_rate": 0.5, "max_grad_norm": 1e9, **settings})
    return Learner(policy, stage, negative_log_likelihood, "token")


E3, E1 = math.exp(3), math.exp(1)
HALF = math.log(0.5)


# -- one step -----------------------------------------------------------------------------------------------------------


def test_a_supervised_step_and_its_figures():
    """Adam's first step is the learning rate in the direction of the gradient's sign; weight decay comes before it."""
    policy = Bandit(3.0, 1.0)
    learner = sft(policy, weight_decay=0.1)
    p = E3 / (E3 + E1)
    found = learner.update(batch([1], [1.0]), 0)
    assert found["loss"] == pytest.approx(-math.log(1 - p)) and found["learning_rate"] == 0.5
    assert found["entropy"] == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    assert found["grad_norm"] == pytest.approx(math.sqrt(2) * p)
    assert policy.w.tolist() == pytest.approx([3.0 * 0.95 - 0.5, 1.0 * 0.95 + 0.5], abs=1e-6)
    assert learner.state()["w/exp_avg"].tolist() == pytest.approx([0.1 * p, -0.1 * p])
    assert policy.w.grad is None and policy.temperatures == [1.0]


def test_without_weight_decay_only_the_gradient_moves_the_weights():
    policy = Bandit(3.0, 1.0)
    sft(policy).update(batch([1], [1.0]), 0)
    assert policy.w.tolist() == pytest.approx([2.5, 1.5], abs=1e-6)


def test_a_gradient_longer_than_the_limit_is_scaled_down_to_it():
    for limit, scale in ((0.01, 0.01 / math.sqrt(0.5)), (0.8, 1.0)):
        learner = sft(Bandit(0.0, 0.0), max_grad_norm=limit)
        found = learner.update(batch([0], [1.0]), 0)
        assert found["grad_norm"] == pytest.approx(math.sqrt(0.5)), "as it was before"
        assert learner.state()["w/exp_avg"].tolist() == pytest.approx([-0.05 * scale, 0.05 * scale], rel=1e-3)


@pytest.mark.parametrize(("normalise", "loss"), [("token", -(1 + 2 + 3 - 8) / 4), ("sequence", -((1 + 2 + 3) / 3 - 8) / 2)])
@pytest.mark.parametrize("splits", [[4], [1, 3], [3, 1], [1, 1, 1, 1]])
def test_the_loss_is_averaged_over_the_batch_however_it_is_split(normalise, loss, splits):
    found = rl(Bandit(0.0, 1.0), normalise).update(batch([0, 1, 0, 1], [1.0, 2.0, 3.0, -8.0], None, splits, [0, 0, 0, 1]), 0)
    assert found["loss"] == pytest.approx(loss)


def test_figures_are_means_over_tokens_of_all_micro_batches():
    p = E1 / (1 + E1)
    sampler = [math.log(1 - p) + 0.1, math.log(p) - 0.3, math.log(p), math.log(1 - p)]
    found = rl(Bandit(0.0, 1.0)).update(batch([0, 1, 1, 0], [1.0, 1.0, 1.0, 1.0], sampler, [3, 1]), 0)
    assert found["logprob_gap"] == pytest.approx(0.1), "differences don't cancel"
    assert found["entropy"] == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    assert found["kl"] == 0.0 and found["clip_share"] == 0.0


def test_a_batch_in_which_nothing_is_to_be_learned_changes_nothing():
    policy = Bandit(0.0, 1.0)
    none = Batch(micro=(), num_tokens=4, num_rollouts=2, lengths_N=torch.tensor([2, 2]))
    found = rl(policy, weight_decay=0.5).update(none, 0)
    assert policy.w.tolist() == [0.0, 1.0] and found["loss"] == 0.0 and found["grad_norm"] == 0.0
    assert found.keys() == {"loss", "grad_norm", "learning_rate"}, "there is no entropy of nothing"


def test_the_temperature_of_the_sampler_is_that_of_the_learner():
    policy, reference = Bandit(2.0, 0.0), Bandit(0.0, 0.0)
    p = E1 / (1 + E1)  # logits 2 and 0 at temperature 2
    found = rl(policy, temperature=2.0, reference=reference, kl=0.1).update(batch([0], [1.0], [math.log(p)]), 0)
    assert found["logprob_gap"] == pytest.approx(0.0, abs=1e-6) and found["grad_norm"] > 0.0
    assert set(policy.temperatures) == set(reference.temperatures) == {2.0}


# -- several passes over one batch --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "low", "high", "loss", "clipped"),
    [
        (1.0, 0.1, 0.5, -1.5, 1.0),
        (1.0, 0.1, 1.0, -2 / (1 + math.exp(-2)), 0.0),
        (-1.0, 0.1, 0.5, 0.9, 1.0),
        (-1.0, 0.9, 0.5, 2 / (1 + math.exp(2)), 0.0),
    ],
)
def test_from_the_second_pass_on_the_ratio_to_the_first_is_clipped(advantage, low, high, loss, clipped):
    """Logits (0, 0), one step of 1 each: (1, -1) or (-1, 1); the first token's probability goes from 0.5 to sigma(2) or
    sigma(-2)."""
    policy = Bandit(0.0, 0.0)
    learner = rl(policy, epochs=2, clip_low=low, clip_high=high)
    found = learner.update(batch([0], [advantage], [HALF - 0.25]), 0)
    new = math.log(1 / (1 + math.exp(-2 * advantage)))
    assert found["loss"] == pytest.approx(loss) and found["clip_share"] == clipped
    assert (found["grad_norm"] == 0.0) == (clipped == 1.0)
    assert found["logprob_gap"] == pytest.approx(0.25), "of the first pass, before any update"
    assert found["entropy"] == pytest.approx(-sum(p * math.log(p) for p in (math.exp(new), 1 - math.exp(new))))
    assert found["kl"] == pytest.approx(math.exp(HALF - new) - 1 - (HALF - new)), "how far the passes drifted"
    assert learner.state()["w/step"].item() == 2


def test_every_pass_takes_a_step():
    policy = Bandit(0.0, 0.0)
    learner = rl(policy, epochs=3, clip_low=1.0, clip_high=1e9)
    first = learner.update(batch([0, 1], [1.0, -1.0], [HALF, HALF]), 0)
    assert learner.state()["w/step"].item() == 3 and policy.w[0] > 2.0
    assert first["learning_rate"] == 1.0
    learner.update(batch([0, 1], [1.0, -1.0], [0.0, 0.0]), 1)
    assert learner.state()["w/step"].item() == 6


def test_each_update_compares_with_its_own_first_pass():
    policy = Bandit(0.0, 0.0)
    learner = rl(policy)
    learner.update(batch([0], [1.0]), 0)
    assert learner.update(batch([0], [1.0]), 1)["loss"] == -1.0, "the ratio is 1 again"


# -- the reference ------------------------------------------------------------------------------------------------------


def test_the_kl_penalty_its_weight_and_its_figure():
    """Policy sigma(1) against reference one half, advantage 0: the loss is the penalty alone."""
    policy, reference = Bandit(1.0, 0.0), Bandit(0.0, 0.0)
    logp = math.log(E1 / (1 + E1))
    k3 = math.exp(HALF - logp) - 1 - (HALF - logp)
    learner = rl(policy, reference=reference, kl=0.25)
    found = learner.update(batch([0], [0.0], [logp]), 0)
    assert found["kl"] == pytest.approx(k3) and found["loss"] == pytest.approx(0.25 * k3)
    slope = 0.25 * (1 - math.exp(HALF - logp)) * (1 - math.exp(logp))  # d k3 / d logp, times d logp / d w0
    assert learner.state()["w/exp_avg"].tolist() == pytest.approx([0.1 * slope, -0.1 * slope])
    assert reference.w.tolist() == [0.0, 0.0] and reference.w.grad is None


def test_a_frozen_copy_stays_when_the_policy_moves():
    policy = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1"))
    reference = frozen_copy(policy)
    before = {name: p.clone() for name, p in policy.parameters()}
    assert reference.family.model is reference.model is not policy.model and policy.family.model is policy.model
    assert not any(p.requires_grad for _, p in reference.parameters()) and all(p.requires_grad for _, p in policy.parameters())
    with torch.no_grad():
        for _, p in policy.parameters():
            p.add_(1.0)
    assert all(torch.equal(p, before[name]) for name, p in reference.parameters())


# -- what is refused ----------------------------------------------------------------------------------------------------


def test_a_gap_above_the_limit_leaves_everything_as_it_was():
    policy = Bandit(0.0, 0.0)
    learner = rl(policy, gap_limit=0.2, epochs=2)
    with pytest.raises(UserError, match=r"disagree by 0\.250 nats a token \(limits\.logprob_gap = 0\.2\)"):
        learner.update(batch([0, 1], [1.0, -1.0], [HALF - 0.5, HALF]), 0)
    assert policy.w.tolist() == [0.0, 0.0] and policy.w.grad is None and learner.state() == {}
    assert learner.update(batch([0, 1], [1.0, -1.0], [HALF - 0.38, HALF]), 0)["logprob_gap"] == pytest.approx(0.19)


def test_demonstrations_have_no_sampler_to_disagree_with():
    stage, policy = SftStage(kind="sft", steps=1, learning_rate=0.5), Bandit(0.0, 0.0)
    found = Learner(policy, stage, negative_log_likelihood, "token", gap_limit=0.1).update(batch([0], [1.0]), 0)
    assert found["logprob_gap"] == pytest.approx(-HALF), "over the limit, and the step is taken"
    assert policy.w.tolist() == pytest.approx([0.5, -0.5], abs=1e-5)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_is_not_stepped_on(bad):
    policy = Bandit(0.0, 0.0)
    learner = rl(policy)
    with pytest.raises(UserError, match=f"the gradient is not finite .norm {math.nan}.: lower learning_rate or max_grad_norm"):
        learner.update(batch([0], [bad], [HALF]), 7)
    assert policy.w.tolist() == [0.0, 0.0] and policy.w.grad is None and learner.state() == {} and learner.steps == 0


# -- the schedule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "warmup", "rates"),
    [
        ("constant", 0, [8.0, 8.0, 8.0, 8.0]),
        ("constant", 2, [4.0, 8.0, 8.0, 8.0]),
        ("constant", 4, [2.0, 4.0, 6.0, 8.0]),
        ("constant", 8, [1.0, 2.0, 3.0, 4.0]),
        ("linear", 0, [8.0, 6.0, 4.0, 2.0]),
        ("linear", 2, [4.0, 8.0, 8.0, 4.0]),
        ("cosine", 0, [8.0, 4 + 4 * math.sqrt(0.5), 4.0, 4 - 4 * math.sqrt(0.5)]),
        ("cosine", 2, [4.0, 8.0, 8.0, 4.0]),
        ("cosine", 3, [8 / 3, 16 / 3, 8.0, 8.0]),
    ],
)
def test_the_rate_of_each_of_four_steps(schedule, warmup, rates):
    stage = SftStage(kind="sft", steps=4, learning_rate=8.0, warmup_steps=warmup, schedule=schedule)
    assert [learning_rate(stage, s) for s in range(4)] == pytest.approx(rates)


def test_each_step_is_taken_at_its_rate():
    for step, rate in ((0, 0.25), (1, 0.5), (6, 0.25)):
        policy = Bandit(0.0, 0.0)
        found = sft(policy, schedule="linear", warmup_steps=2).update(batch([0], [1.0]), step)
        assert found["learning_rate"] == rate and policy.w.tolist() == pytest.approx([rate, -rate], abs=1e-6)


# -- state --------------------------------------------------------------------------------------------------------------


def test_a_learner_with_restored_state_goes_on_bit_for_bit():
    policy = Bandit(0.0, 0.5, -0.5)
    learner = rl(policy, learning_rate=0.1)
    for step in range(3):
        learner.update(batch([0, 1], [1.0, -0.5]), step)
    state = {k: v.clone() for k, v in learner.state().items()}
    assert set(state) == {"w/step", "w/exp_avg", "w/exp_avg_sq"} and state["w/step"].item() == 3
    other, fresh = Bandit(*policy.w.tolist()), Bandit(*policy.w.tolist())
    again = rl(other, learning_rate=0.1)
    again.load_state(state)
    for one in (learner, again, rl(fresh, learning_rate=0.1)):
        one.update(batch([2], [1.0]), 3)
    assert torch.equal(policy.w, other.w) and not torch.equal(policy.w, fresh.w)
    assert state["w/step"].item() == 3, "what was given is not shared"
    assert all(torch.equal(learner.state()[k], again.state()[k]) for k in state)


def test_what_needs_no_gradient_has_no_optimiser():
    policy = Bandit(0.0, 0.0)
    policy.model.still = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    learner = rl(policy, weight_decay=0.5)
    learner.update(batch([0], [1.0]), 0)
    assert policy.model.still.tolist() == [1.0, 1.0] and {k.split("/")[0] for k in learner.state()} == {"w"}


def test_bfloat16_weights_add_up_micro_batches_in_float32():
    """Gradients of -32 and three of -0.125: bfloat16 has no number between -32 and -32.25."""
    learner = rl(Bandit(0.0, 0.0, dtype=torch.bfloat16))
    found = learner.update(batch([0, 0, 0, 0], [256.0, 1.0, 1.0, 1.0], splits=[1, 1, 1, 1]), 0)
    assert found["grad_norm"] == pytest.approx(32.375 * math.sqrt(2), rel=1e-6)


def test_bfloat16_weights_add_up_steps_that_are_smaller_than_their_spacing():
    """Between 1 and 2 neighbours are 2**-7 apart; six steps of 2**-10 are three quarters of that."""
    policy = Bandit(1.0, 1.5, dtype=torch.bfloat16)
    learner = sft(policy, learning_rate=2**-10)
    for step in range(3):
        learner.update(batch([0], [1.0]), step)
    assert policy.w.tolist() == [1.0, 1.5]
    state = {k: v.clone() for k, v in learner.state().items()}
    assert state["w/master"].dtype == torch.float32
    assert state["w/master"].tolist() == pytest.approx([1 + 3 * 2**-10, 1.5 - 3 * 2**-10], abs=1e-5)
    other = Bandit(1.0, 1.5, dtype=torch.bfloat16)
    again = sft(other, learning_rate=2**-10)
    again.load_state(state)
    for step in range(3, 6):
        for one in (learner, again):
            one.update(batch([0], [1.0]), step)
    assert policy.w.tolist() == [1 + 2**-7, 1.5 - 2**-7] and torch.equal(policy.w, other.w)
    assert policy.w.grad is None
