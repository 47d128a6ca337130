"""The learner's objective and its passes, worked out by hand for a policy that is nothing but one logit per token.

How the optimiser then moves the weights is in `test_optimizer.py`.
"""

import math
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import log_softmax
from transformers import PreTrainedConfig

from mmrl.algorithms.loss import clipped_surrogate
from mmrl.algorithms.presets import Algorithm
from mmrl.api.errors import PluginError, UserError
from mmrl.config.sections import PolicyConfig, RlStage, SftStage
from mmrl.policies.batches import Batch, MicroBatch
from mmrl.policies.reference import Reference
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.vlm import VLM, ForwardOutputs
from mmrl.train.update import loss_scale
from mmrl.train.update.demonstrations import Demonstrations
from mmrl.train.update.learner import Learner
from mmrl.train.update.loss_weights import check_loss_output, importance_weights


class Bandit:
    """Logits `w` of V tokens, whatever the prompt."""

    device, processor, exact_sampler = torch.device("cpu"), None, False

    def __init__(self, *logits, dtype=torch.float32):
        self.model = torch.nn.Module()
        self.model.w, self.model.config = torch.nn.Parameter(torch.tensor(logits, dtype=dtype)), PreTrainedConfig()
        self.family = Family(self.model, None)
        self.temperatures = []

    @property
    def w(self):
        return self.model.w

    def parameters(self):
        return self.model.named_parameters()

    def clone(self, frozen=False):
        return Bandit(*self.w.tolist())

    def outputs(self, micro, temperature, *, states=False, entropy_gradient=False):
        self.temperatures.append(temperature)
        logprobs_V = log_softmax(self.w.float() / temperature, 0)
        entropy = -(logprobs_V.exp() * logprobs_V).sum()
        entropy_L = (entropy if entropy_gradient else entropy.detach()).expand(len(micro.target_L))
        return ForwardOutputs(logprobs_L=logprobs_V[micro.target_L], entropy_L=entropy_L)

    def logprobs(self, micro, temperature):
        found = self.outputs(micro, temperature)
        return found.logprobs_L, found.entropy_L


def reference_of(policy, *logits):
    """A reference of this policy, from a time when its logits were these."""
    found = Reference(policy, adapters=False)
    with torch.no_grad():
        found.copy.w.copy_(torch.tensor(logits))
    found.copy.temperatures = []
    return found


def batch(tokens, advantages, sampler=None, splits=None, rollouts=None, off_policy=None):
    """These tokens, by default each a rollout of its own, in micro-batches of these sizes."""
    tokens, advantages = torch.tensor(tokens), torch.tensor(advantages)
    sampler = torch.zeros(len(tokens)) if sampler is None else torch.tensor(sampler)
    owner = torch.arange(len(tokens)) if rollouts is None else torch.tensor(rollouts)
    moved = torch.tensor([False] * len(tokens) if off_policy is None else off_policy)
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
            place_L=torch.zeros_like(o),
            off_policy_L=m,
            final_R=nothing[0],
            final_rollout_R=nothing[0],
        )
        for t, a, s, o, m in zip(*(x.split(splits) for x in (tokens, advantages, sampler, owner, moved)), strict=True)
    )
    lengths = owner.bincount()
    return Batch(micro=micro, num_tokens=len(tokens), num_rollouts=len(lengths), lengths_N=lengths)


def rl(
    policy,
    normalise="token",
    temperature=1.0,
    reference=None,
    gap_limit=math.inf,
    clip_low=0.2,
    clip_high=0.2,
    constant=1.0,
    **settings,
):
    stage = RlStage(kind="rl", **{"steps": 10, "learning_rate": 1.0, "max_grad_norm": 1e9, **settings})
    loss = partial(clipped_surrogate, clip_low=clip_low, clip_high=clip_high)
    algorithm = Algorithm(id="test", advantage=print, needs=(), loss=loss, normalise=normalise, constant=constant)
    return Learner(policy, stage, algorithm, temperature=temperature, reference=reference, gap_limit=gap_limit)


def sft(policy, **settings):
    stage = SftStage(kind="sft", **{"steps": 10, "learning_rate": 0.5, "max_grad_norm": 1e9, **settings})
    return Learner(policy, stage)


E3, E1 = math.exp(3), math.exp(1)
HALF = math.log(0.5)


# -- one step -----------------------------------------------------------------------------------------------------------


def test_a_supervised_step_and_its_figures():
    """Adam's first step is the learning rate in the direction of the gradient's sign; weight decay comes before it."""
    policy = Bandit(3.0, 1.0)
    learner = sft(policy, weight_decay=0.1)
    p = E3 / (E3 + E1)
    found = learner.update([batch([1], [1.0])], 0)
    assert found["loss"] == pytest.approx(-math.log(1 - p)) and found["learning_rate"] == 0.5
    assert found["entropy"] == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    assert found["grad_norm"] == pytest.approx(math.sqrt(2) * p)
    assert policy.w.tolist() == pytest.approx([3.0 * 0.95 - 0.5, 1.0 * 0.95 + 0.5], abs=1e-6)
    assert learner.state()["optimizer/w/exp_avg"].tolist() == pytest.approx([0.1 * p, -0.1 * p])
    assert policy.w.grad is None and policy.temperatures == [1.0]


@pytest.mark.parametrize(
    ("normalise", "loss"),
    [("token", -(1 + 2 + 3 - 8) / 4), ("sequence", -((1 + 2 + 3) / 3 - 8) / 2), ("constant", -(1 + 2 + 3 - 8) / 2 / 5)],
)
@pytest.mark.parametrize("splits", [[4], [1, 3], [3, 1], [1, 1, 1, 1]])
def test_the_loss_is_averaged_over_the_batch_however_it_is_split(normalise, loss, splits):
    found = rl(Bandit(0.0, 1.0), normalise, constant=5.0).update(
        [batch([0, 1, 0, 1], [1.0, 2.0, 3.0, -8.0], None, splits, [0, 0, 0, 1])], 0
    )
    assert found["loss"] == pytest.approx(loss)


def test_figures_are_means_over_tokens_of_all_micro_batches():
    p = E1 / (1 + E1)
    sampler = [math.log(1 - p) + 0.1, math.log(p) - 0.3, math.log(p), math.log(1 - p)]
    found = rl(Bandit(0.0, 1.0)).update([batch([0, 1, 1, 0], [1.0, 1.0, 1.0, 1.0], sampler, [3, 1])], 0)
    assert found["logprob_gap"] == pytest.approx(0.1), "differences don't cancel"
    assert found["entropy"] == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    assert found["kl"] == 0.0 and found["clip_share"] == 0.0


def test_a_batch_in_which_nothing_is_to_be_learned_changes_nothing():
    policy = Bandit(0.0, 1.0)
    none = Batch(micro=(), num_tokens=4, num_rollouts=2, lengths_N=torch.tensor([2, 2]))
    found = rl(policy, weight_decay=0.5).update([none], 0)
    assert policy.w.tolist() == [0.0, 1.0] and found["loss"] == 0.0 and found["grad_norm"] == 0.0
    assert found.keys() == {"loss", "grad_norm", "learning_rate"}, "there is no entropy of nothing"


def test_the_temperature_of_the_sampler_is_that_of_the_learner():
    policy = Bandit(2.0, 0.0)
    reference = reference_of(policy, 0.0, 0.0)
    p = E1 / (1 + E1)  # logits 2 and 0 at temperature 2
    found = rl(policy, temperature=2.0, reference=reference, kl_coef=0.1).update([batch([0], [1.0], [math.log(p)])], 0, kl=0.1)
    assert found["logprob_gap"] == pytest.approx(0.0, abs=1e-6) and found["grad_norm"] > 0.0
    assert set(policy.temperatures) == set(reference.copy.temperatures) == {2.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_micro_batches_add_up_in_float32(dtype):
    """Gradients of -32 and three of -0.125: bfloat16 has no number between -32 and -32.25."""
    learner = rl(Bandit(0.0, 0.0, dtype=dtype))
    found = learner.update([batch([0, 0, 0, 0], [256.0, 1.0, 1.0, 1.0], splits=[1, 1, 1, 1])], 0)
    assert found["grad_norm"] == pytest.approx(32.375 * math.sqrt(2), rel=1e-6)


@pytest.mark.parametrize("size", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_in_float16_no_gradient_is_lost_to_its_range_and_no_step_to_an_overflow(size, minibatches):
    """The same step as in float32, up to the rounding of the weights; what the scale brings above 65504 is computed again."""
    found = {}
    for dtype in (torch.float32, torch.float16):
        policy = Bandit(0.5, -0.25, 0.125, dtype=dtype)
        learner = rl(policy, learning_rate=0.25 / size, optimizer="sgd", beta1=0.0)
        metrics = learner.update([batch([0, 1, 2, 0], [size, -size, size / 2, 0.0], splits=[2, 2])] * minibatches, 0)
        assert learner.optimizer.steps == minibatches
        found[dtype] = policy.w.detach().float(), metrics
    (one, plain), (two, scaled) = found.values()
    assert (one - two).abs().max() < 1e-3 and (one - torch.tensor([0.5, -0.25, 0.125])).abs().max() > 0.01
    assert scaled["grad_norm"] == pytest.approx(plain["grad_norm"], rel=2e-3) and "loss_scale" not in plain
    assert (scaled["loss_scale"] < 2**16) == (size == 100.0)
    assert scaled["entropy"] == pytest.approx(plain["entropy"], rel=1e-3)


def test_in_float16_a_loss_that_is_not_finite_is_told_at_once():
    policy = Bandit(0.5, -0.25, dtype=torch.float16)
    learner = rl(policy)
    with pytest.raises(UserError, match=r'the loss is not finite: activations overflow in float16.*policy\.dtype = "bfloat16"'):
        learner.update([batch([0, 1], [math.inf, 1.0])], 0)
    assert learner.optimizer.scale.value == loss_scale.FIRST and policy.w.tolist() == [0.5, -0.25]


def test_demonstrations_are_imitated_again_after_an_overflow(monkeypatch):
    found = {}
    for first in (2.0**10, 2.0**22):
        monkeypatch.setattr(loss_scale, "FIRST", first)
        policy = Bandit(0.5, -0.25, 0.125, dtype=torch.float16)
        learner = rl(policy, learning_rate=0.25, optimizer="sgd", beta1=0.0)
        gold = Demonstrations(batch=batch([1, 2], [0.0, 0.0]), weight=0.5)
        metrics = learner.update([batch([0, 1, 2, 0], [1.0, -1.0, 0.5, 0.0])], 0, demonstrations=gold)
        found[first] = policy.w.tolist(), {k: v for k, v in metrics.items() if k != "loss_scale"}
        assert metrics["loss_scale"] < 2.0**20
    one, two = found.values()
    assert one[0] == pytest.approx(two[0], abs=2e-3) and one[1] == pytest.approx(two[1], rel=5e-3)


# -- several passes and mini-batches ------------------------------------------------------------------------------------


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
    found = learner.update([batch([0], [advantage], [HALF - 0.25])], 0)
    new = math.log(1 / (1 + math.exp(-2 * advantage)))
    assert found["loss"] == pytest.approx(loss) and found["clip_share"] == clipped
    assert (found["grad_norm"] == 0.0) == (clipped == 1.0)
    assert found["logprob_gap"] == pytest.approx(0.25), "of the first pass, before any update"
    assert found["entropy"] == pytest.approx(-sum(p * math.log(p) for p in (math.exp(new), 1 - math.exp(new))))
    assert found["kl"] == pytest.approx(math.exp(HALF - new) - 1 - (HALF - new)), "how far the passes drifted"
    assert learner.state()["optimizer/w/step"].item() == 2


def test_every_pass_takes_a_step():
    policy = Bandit(0.0, 0.0)
    learner = rl(policy, epochs=3, clip_low=1.0, clip_high=1e9)
    first = learner.update([batch([0, 1], [1.0, -1.0], [HALF, HALF])], 0)
    assert learner.state()["optimizer/w/step"].item() == 3 and policy.w[0] > 2.0
    assert first["learning_rate"] == 1.0
    learner.update([batch([0, 1], [1.0, -1.0], [0.0, 0.0])], 1)
    assert learner.state()["optimizer/w/step"].item() == 6


@pytest.mark.parametrize(("limit", "steps"), [(0.4, 1), (0.45, 2), (None, 3)])
def test_passes_end_before_an_update_that_begins_too_far_from_the_sampler(limit, steps):
    """Logits (0, 0), then (1, -1): the token's probability goes from 1/2 to sigma(2), which is a KL of 2 sigma(2) - 1 - log(2
    sigma(2)) = 0.195, and for the other token 2 sigma(-2) - 1 - log(2 sigma(-2)) = 0.672; the mean of both is 0.434. A third pass
    would begin further away still."""
    policy, old = Bandit(0.0, 0.0), HALF
    learner = rl(policy, epochs=3, stop_kl=limit, clip_low=1.0, clip_high=1e9)
    found = learner.update([batch([0, 1], [1.0, -1.0], [old, old])], 0)
    assert learner.state()["optimizer/w/step"].item() == steps and policy.w.grad is None
    assert found.get("optimizer_steps") == (None if limit is None else steps) and "moved" not in found
    assert found["grad_norm"] > 0, "figures are those of the last pass that was made"


def test_a_pass_may_end_between_two_mini_batches_and_the_next_update_begins_anew():
    policy = Bandit(0.0, 0.0)
    learner = rl(policy, stop_kl=0.1, clip_high=1e9)
    halves = [batch([0], [1.0], [HALF]), batch([1], [1.0], [HALF])]
    assert learner.update(halves, 0)["optimizer_steps"] == 1
    assert policy.w.tolist() == pytest.approx([1.0, -1.0], abs=1e-5), "the second one left nothing behind"
    assert learner.update(halves[:1], 1)["optimizer_steps"] == 1, "distances are from the weights of now"


def test_each_update_compares_with_its_own_first_pass():
    policy = Bandit(0.0, 0.0)
    learner = rl(policy)
    learner.update([batch([0], [1.0])], 0)
    assert learner.update([batch([0], [1.0])], 1)["loss"] == -1.0, "the ratio is 1 again"


def test_every_mini_batch_takes_a_step_and_compares_with_the_weights_before_the_first():
    """Logits (0, 0), then (1, -1): the second mini-batch's ratio is 2 sigma(2), over its bound."""
    policy = Bandit(0.0, 0.0)
    learner = rl(policy)
    found = learner.update([batch([0], [1.0], [HALF]), batch([0, 0], [3.0, 3.0], [HALF, HALF])], 0)
    assert learner.state()["optimizer/w/step"].item() == 2
    assert found["loss"] == pytest.approx(-(1 + 1.2 * 3) / 2) and found["clip_share"] == 0.5, "means over mini-batches"
    assert found["logprob_gap"] == pytest.approx(0.0, abs=1e-6), "what was sampled was sampled before the first step"


# -- what is added to the loss ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimate", "value", "slope"),
    [
        ("k1", lambda x: x, lambda x: 1.0),
        ("k2", lambda x: x * x / 2, lambda x: x),
        ("k3", lambda x: math.exp(-x) - 1 + x, lambda x: 1 - math.exp(-x)),
    ],
)
def test_the_kl_penalty_its_weight_and_its_figure(estimate, value, slope):
    """Policy sigma(1) against reference one half, advantage 0: the loss is the penalty alone, at today's weight."""
    policy = Bandit(1.0, 0.0)
    reference = reference_of(policy, 0.0, 0.0)
    logp = math.log(E1 / (1 + E1))
    learner = rl(policy, reference=reference, kl_coef=0.5, kl_estimator=estimate)
    found = learner.update([batch([0], [0.0], [logp])], 0, kl=0.25)
    gap = logp - HALF
    assert found["kl"] == pytest.approx(math.exp(-gap) - 1 + gap), "k3, whatever the penalty is"
    assert found["loss"] == pytest.approx(0.25 * value(gap))
    gradient = 0.25 * slope(gap) * (1 - math.exp(logp))  # times d logp / d w0
    assert learner.state()["optimizer/w/exp_avg"].tolist() == pytest.approx([0.1 * gradient, -0.1 * gradient])
    assert reference.copy.w.tolist() == [0.0, 0.0] and reference.copy.w.grad is None


def kl_by_trl(policy, old, reference, tokens):
    """TRL 1.16, `GRPOTrainer._compute_loss` with use_bias_correction_kl, averaged over tokens. All are logits."""
    per_token_logps, old_logps, ref_logps = (log_softmax(w, 0)[tokens] for w in (policy, old, reference))
    per_token_kl = torch.exp(ref_logps - per_token_logps) - (ref_logps - per_token_logps) - 1
    return (per_token_kl * torch.exp(per_token_logps - old_logps)).mean()


OLD, NOW, THEN = [0.3, -0.4, 0.9], [1.0, 0.2, -0.5], [-0.7, 0.5, 0.4]


def test_the_bias_correction_is_trls():
    """What another policy sampled is compared with its sampler, with gradient through the ratio."""
    policy, tokens = Bandit(*NOW), [0, 2, 1, 1]
    sampler = log_softmax(torch.tensor(OLD), 0)[tokens].tolist()
    learner = rl(policy, reference=reference_of(policy, *THEN), kl_coef=0.5, kl_bias_correction=True)
    w = torch.tensor(NOW, requires_grad=True)
    wanted = 0.25 * kl_by_trl(w, torch.tensor(OLD), torch.tensor(THEN), tokens)
    wanted.backward()
    found = learner.update([batch(tokens, [0.0] * 4, sampler, off_policy=[True] * 4)], 0, kl=0.25)
    assert found["loss"] == pytest.approx(wanted.item(), rel=1e-5)
    assert learner.state()["optimizer/w/exp_avg"].tolist() == pytest.approx((0.1 * w.grad).tolist(), rel=1e-4)


def test_from_the_second_pass_on_the_bias_correction_compares_with_the_first():
    tokens = [0, 2, 1, 1]
    once, twice = Bandit(*NOW), Bandit(*NOW)
    sampler = log_softmax(torch.tensor(NOW), 0)[tokens].tolist()
    for policy, epochs in ((once, 1), (twice, 2)):
        keys = {"kl_coef": 0.5, "kl_bias_correction": True, "epochs": epochs, "learning_rate": 0.3}
        learner = rl(policy, reference=reference_of(policy, *THEN), **keys)
        found = learner.update([batch(tokens, [0.0] * 4, sampler)], 0, kl=0.5)
        before = torch.tensor(NOW) if epochs == 1 else once.w.detach()
        wanted = 0.5 * kl_by_trl(before, torch.tensor(NOW), torch.tensor(THEN), tokens)
        assert found["loss"] == pytest.approx(wanted.item(), rel=1e-5)
    assert (once.w - torch.tensor(NOW)).abs().max() > 0.1


@pytest.mark.parametrize(("estimate", "correct", "right"), [("k3", True, True), ("k1", True, True), ("k3", False, False)])
def test_with_bias_correction_the_mean_gradient_is_that_of_the_divergence(estimate, correct, right):
    """All draws of an older policy with probabilities of eighths, as often as they come."""
    tokens = [0, 1, 2, 2, 3, 3, 3, 3]
    old = torch.tensor([1 / 8, 1 / 8, 2 / 8, 4 / 8])
    now, then = [0.5, -0.3, 0.9, 0.0], [0.0, 1.0, -0.4, 0.3]
    policy = Bandit(*now)
    keys = {"kl_coef": 0.5, "kl_bias_correction": correct, "kl_estimator": estimate}
    learner = rl(policy, reference=reference_of(policy, *then), **keys)
    learner.update([batch(tokens, [0.0] * 8, old.log()[tokens].tolist(), off_policy=[True] * 8)], 0, kl=1.0)
    w = torch.tensor(now, requires_grad=True)
    p, q = log_softmax(w, 0), log_softmax(torch.tensor(then), 0)
    (p.exp() * (p - q)).sum().backward()
    gap = (learner.state()["optimizer/w/exp_avg"] - 0.1 * w.grad).abs().max().item()
    assert gap < 1e-7 if right else gap > 1e-3


def test_a_penalty_in_the_reward_is_none_of_the_loss():
    policy = Bandit(1.0, 0.0)
    learner = rl(policy, reference=reference_of(policy, 0.0, 0.0), kl_coef=0.5, kl_in="reward")
    gap = math.log(E1 / (1 + E1)) - HALF
    found = learner.update([batch([0], [0.0])], 0, kl=0.5)
    assert found["loss"] == 0.0 and found["grad_norm"] == 0.0 and not learner.needs_every_rollout
    assert found["kl"] == pytest.approx(math.exp(-gap) - 1 + gap), "it is measured all the same"


def test_the_entropy_bonus():
    """Of sigma(1): the gradient of minus the entropy by the first logit is p (1 - p)."""
    policy = Bandit(1.0, 0.0)
    learner = rl(policy, entropy_coef=0.5)
    p = E1 / (1 + E1)
    found = learner.update([batch([0, 1], [0.0, 0.0])], 0)
    assert found["loss"] == pytest.approx(-0.5 * found["entropy"])
    assert found["entropy"] == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))
    assert learner.state()["optimizer/w/exp_avg"].tolist() == pytest.approx([0.05 * p * (1 - p), -0.05 * p * (1 - p)])


def test_the_weight_of_the_entropy_bonus_may_change():
    learner = rl(Bandit(1.0, 0.0), adaptive_entropy={"target": 0.1}, learning_rate=1e-9)
    assert learner.needs_every_rollout
    assert learner.update([batch([0, 1], [0.0, 0.0])], 0)["loss"] == 0.0
    learner.penalties.entropy_coef = 0.25
    found = learner.update([batch([0, 1], [0.0, 0.0])], 0)
    assert found["loss"] == pytest.approx(-0.25 * found["entropy"])
    assert learner.state()["optimizer/w/exp_avg"].abs().max() > 0


def test_which_updates_need_the_rollouts_without_an_advantage():
    policy = Bandit(0.0, 0.0)
    assert not sft(policy).needs_every_rollout and not rl(policy).needs_every_rollout
    assert rl(policy, entropy_coef=0.01).needs_every_rollout
    assert rl(policy, reference=reference_of(policy, 0.0, 0.0), kl_coef=0.1).needs_every_rollout


def test_a_frozen_copy_stays_when_the_policy_moves():
    policy = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1"))
    copy = policy.clone(frozen=True)
    before = {name: p.clone() for name, p in policy.parameters()}
    assert copy.family.model is copy.model is not policy.model and policy.family.model is policy.model
    assert not any(p.requires_grad for _, p in copy.parameters()) and all(p.requires_grad for _, p in policy.parameters())
    with torch.no_grad():
        for _, p in policy.parameters():
            p.add_(1.0)
    assert all(torch.equal(p, before[name]) for name, p in copy.parameters())


# -- other policies' samples --------------------------------------------------------------------------------------------


def test_what_was_sampled_from_another_prompt_is_compared_with_its_sampler():
    """The first token was sampled at a quarter, from a prompt with a hint; here its probability is a half: the ratio is 2."""
    policy = Bandit(0.0, 0.0)
    sampler, moved = [math.log(0.25), HALF - 0.1], [True, False]
    found = rl(policy, clip_high=2.0).update([batch([0, 0], [1.0, 1.0], sampler, off_policy=moved)], 0)
    assert found["loss"] == pytest.approx(-(2 + 1) / 2)
    assert found["logprob_gap"] == pytest.approx(0.1), "the other one alone"
    assert rl(Bandit(0.0, 0.0)).update([batch([0], [1.0], [math.log(0.25)], off_policy=[True])], 0)["clip_share"] == 1.0


@pytest.mark.parametrize(("rule", "weights"), [("off", [1, 1, 1, 1]), ("truncate", [1.5, 2, 1, 1]), ("mask", [1.5, 0, 1, 1])])
def test_the_correction_of_a_sampler_with_other_probabilities(rule, weights):
    """Probability one half here; at the sampler a third and a fifth. The others were sampled elsewhere, or by nobody."""
    policy, advantages = Bandit(0.0, 0.0), [1.0, 10.0, 100.0, 1000.0]
    sampler = [math.log(1 / 3), math.log(1 / 5), HALF, math.nan]
    learner = rl(policy, importance_sampling=rule, importance_sampling_cap=2.0)
    found = learner.update([batch([0, 0, 0, 0], advantages, sampler, off_policy=[False, False, True, True])], 0)
    assert found["loss"] == pytest.approx(-sum(w * a for w, a in zip(weights, advantages, strict=True)) / 4)


def test_a_ratio_at_the_cap_is_kept():
    old, sampler = torch.zeros(2), torch.tensor([-math.log(2.0), -math.log(2.0) - 1e-3])
    weight, cut = importance_weights(old, sampler, torch.tensor([True, True]), True, 2.0)
    assert weight.tolist() == pytest.approx([2.0, 0.0]) and cut.tolist() == [False, True]


@pytest.mark.parametrize(
    ("rule", "floor", "weights"),
    [
        ("truncate", 0.0, [0.5, 0.5, 2.0, 2.0, 1.0]),
        ("truncate", 0.8, [0.8, 0.8, 2.0, 2.0, 1.0]),
        ("mask", 0.0, [0.5, 0.5, 0.0, 0.0, 1.0]),
        ("mask", 0.8, [0.0, 0.0, 0.0, 0.0, 1.0]),
    ],
)
def test_the_ratio_of_a_whole_completion_is_the_product_of_its_tokens(rule, floor, weights):
    """Probability one half here. Ratios of 2 and 1/4, whose product is a half; of 3 and 1; and of a token that nobody sampled."""
    sampler = [HALF - math.log(r) for r in (2, 1 / 4, 3, 1)] + [math.nan]
    learner = rl(
        Bandit(0.0, 0.0),
        importance_sampling=rule,
        importance_sampling_level="sequence",
        importance_sampling_floor=floor,
        gap_limit=9.0,
    )
    advantages = [1.0, 10.0, 100.0, 1000.0, 1e4]
    found = learner.update([batch([0] * 5, advantages, sampler, rollouts=[0, 0, 1, 1, 2])], 0)
    assert found["loss"] == pytest.approx(-sum(w * a for w, a in zip(weights, advantages, strict=True)) / 5)
    outside = sum(w in (0.0, 0.8, 2.0) for w in weights)
    assert found["importance/capped_share"] == pytest.approx(outside / 4)


def test_normalised_weights_are_divided_by_their_mean_over_the_step():
    """Probability one half here. Weights of 1.5, 2 (of 4), 0.5 and 1, whose mean is 1.25, in one mini-batch or two; the token
    that nobody sampled keeps its own. The metric is the mean before the division."""
    ratios, advantages = [1.5, 4.0, 0.5, 1.0, math.nan], [1.0, 10.0, 100.0, 1000.0, 1e4]
    sampler, weights = [HALF - math.log(r) for r in ratios], [1.5 / 1.25, 2 / 1.25, 0.5 / 1.25, 1 / 1.25, 1.0]
    keys = {"importance_sampling": "truncate", "importance_sampling_normalise": True, "gap_limit": 9.0}
    whole = [batch([0] * 5, advantages, sampler, rollouts=range(5))]
    halves = [batch([0] * len(s), advantages[s.start : s.stop], sampler[s.start : s.stop], rollouts=range(len(s)))
              for s in (range(2), range(2, 5))]  # fmt: skip
    for made, parts in ((whole, [range(5)]), (halves, [range(2), range(2, 5)])):
        found = rl(Bandit(0.0, 0.0), **keys, learning_rate=1e-9).update(made, 0)
        means = [sum(weights[i] * advantages[i] for i in part) / len(part) for part in parts]
        assert found["loss"] == pytest.approx(-sum(means) / len(means), rel=1e-5)
        assert found["logprob_gap"] > 0.1, "the first pass still measures it"
    assert rl(Bandit(0.0, 0.0), **keys, epochs=2).update(whole, 0)["importance/mean"] == pytest.approx(1.25)


def test_a_token_below_the_floor_is_masked_or_raised():
    sampler, own = torch.tensor([0.0, math.log(4.0), math.nan]), torch.tensor([True, True, False])
    for mask, weights in ((True, [1.0, 0.0, 1.0]), (False, [1.0, 0.5, 1.0])):
        weight, cut = importance_weights(torch.zeros(3), sampler, own, mask, 2.0, 0.5)
        assert weight.tolist() == pytest.approx(weights) and cut.tolist() == [False, True, False]


def test_completions_that_the_policy_has_left_and_should_leave_are_left_out():
    """Probability one half here; at the sampler 0.9 and a half, whose mean log-ratio is 0.29, or a half alone. Only what has a
    negative advantage is left out; another prompt's sampler counts as such."""
    sampler = [math.log(0.9), HALF, math.log(0.9), HALF, HALF, HALF]
    advantages = [-1.0, -10.0, 100.0, 1000.0, -1e4, -1e5]
    for limit, kept in ((0.2, advantages[2:]), (0.3, advantages)):
        learner = rl(Bandit(0.0, 0.0), off_policy_mask=limit, gap_limit=9.0)
        found = learner.update([batch([0] * 6, advantages, sampler, rollouts=[0, 0, 1, 1, 2, 2])], 0)
        assert found["loss"] == pytest.approx(-sum(kept) / 6)
        assert found["importance/drifted_share"] == pytest.approx((6 - len(kept)) / 6)
    hinted = batch([0] * 6, advantages, sampler, rollouts=[0, 0, 1, 1, 2, 2], off_policy=[True] * 6)
    assert rl(Bandit(0.0, 0.0), off_policy_mask=0.2).update([hinted], 0)["importance/drifted_share"] == pytest.approx(1 / 3)


def test_completions_on_which_sampler_and_learner_are_apart_are_left_out():
    """Probability one half here; ratios of completions whose geometric means are 1, 1.73, 1 / 1.73, 2 and 8. What nobody sampled,
    or another prompt's sampler, counts in no mean and stays."""
    ratios = [2, 1 / 2, 2, 3 / 2, 1 / 2, 2 / 3, 2, math.nan, 8]
    sampler = [HALF - math.log(r) for r in ratios]
    advantages = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]
    moved = [False] * 8 + [True]
    made = batch([0] * 9, advantages, sampler, rollouts=[0, 0, 1, 1, 2, 2, 3, 3, 4], off_policy=moved)
    always = 1.0 + 2.0 + 128.0 + 1.2 * 256.0  # the last one's ratio is to its sampler, and clipped
    for limit, kept in ((0.5, 0.0), (0.6, 4.0 + 8.0 + 16.0 + 32.0), (0.7, 4.0 + 8.0 + 16.0 + 32.0 + 64.0)):
        found = rl(Bandit(0.0, 0.0), gap_mask=limit, gap_limit=9.0).update([made], 0)
        assert found["loss"] == pytest.approx(-(always + kept) / 9)
        assert found["importance/apart_share"] == pytest.approx({0.5: 5, 0.6: 1, 0.7: 0}[limit] / 9)
    both = rl(Bandit(0.0, 0.0), gap_mask=0.5, importance_sampling="truncate", importance_sampling_cap=1.5, gap_limit=9.0)
    assert both.update([made], 0)["loss"] == pytest.approx(-(always + 0.5 - 1.0) / 9), "weights of 1.5 and 0.5 for the first"


def test_the_ratio_to_the_sampler():
    """Probability one half here, at the sampler a third, a quarter and a half; nobody sampled the last token."""
    sampler, advantages = [math.log(1 / 3), math.log(1 / 4), HALF, math.nan], [1.0, 10.0, 100.0, 1000.0]
    for to, ratios in (("sampler", [1.5, 1.6, 1.0, 1.0]), ("learner", [1.0] * 4)):
        policy = Bandit(0.0, 0.0)
        learner = rl(policy, ratio_to=to, clip_high=0.6, gap_limit=9.0)
        found = learner.update([batch([0] * 4, advantages, sampler, rollouts=[0, 1, 2, 3])], 0)
        assert found["loss"] == pytest.approx(-sum(r * a for r, a in zip(ratios, advantages, strict=True)) / 4)
        assert found["clip_share"] == (0.25 if to == "sampler" else 0.0)
        assert found["logprob_gap"] == pytest.approx((math.log(3 / 2) + math.log(2)) / 3), "still that before the update"
        slope = sum(r * a * (r != 1.6) for r, a in zip(ratios, advantages, strict=True)) / 4 / 2  # of the logit of token 0
        assert learner.state()["optimizer/w/exp_avg"][0].item() == pytest.approx(-0.1 * slope, rel=1e-5)


def test_in_later_passes_the_ratio_is_still_to_the_sampler():
    sampler = [math.log(1 / 3), math.log(1 / 4)]
    once, twice = Bandit(0.0, 0.0), Bandit(0.0, 0.0)
    for policy, epochs in ((once, 1), (twice, 2)):
        learner = rl(policy, ratio_to="sampler", clip_high=9.0, epochs=epochs, learning_rate=0.3, gap_limit=9.0)
        found = learner.update([batch([0, 1], [1.0, 0.5], sampler)], 0)
    p = log_softmax(once.w.detach(), 0).exp()
    assert found["loss"] == pytest.approx(-(3 * p[0].item() + 0.5 * 4 * p[1].item()) / 2, rel=1e-5) and abs(p[0] - 0.5) > 0.05


def test_a_bias_correction_whose_ratio_overflows_leaves_numbers():
    """The policy is the reference, and what another policy sampled is far likelier now than it was."""
    policy = Bandit(0.0, 0.0)
    learner = rl(policy, reference=reference_of(policy, 0.0, 0.0), kl_coef=0.5, kl_bias_correction=True)
    found = learner.update([batch([0], [0.0], [-99.0], off_policy=[True])], 0, kl=0.5)
    assert found["loss"] == 0.0 and learner.state()["optimizer/w/exp_avg"].isfinite().all()


def test_a_loss_may_see_all_tokens_of_its_mini_batch():
    """Two mini-batches of two micro-batches each: what was sampled is known at the first update and measured at later ones."""
    seen = []

    def loss(inputs, batch_M3, places_L):
        seen.append((batch_M3, places_L, inputs))
        return clipped_surrogate(inputs)

    stage = RlStage(kind="rl", steps=10, learning_rate=1.0, max_grad_norm=1e9, epochs=2)
    needs = ("batch_M3", "places_L")
    algorithm = Algorithm(id="t", advantage=print, needs=(), loss=loss, loss_needs=needs, normalise="token", constant=1.0)
    policy = Bandit(0.0, 1.0, 2.0)
    old = policy.w.detach().log_softmax(0)
    made = [batch([0, 1, 2], [1.0, -2.0, 3.0], splits=[2, 1]), batch([2, 2, 0], [4.0, 5.0, -6.0], splits=[1, 2])]
    Learner(policy, stage, algorithm).update(made, 0)
    assert len(seen) == 8
    for number, (table, places, inputs) in enumerate(seen):
        tokens, credit = ([0, 1, 2], [1.0, -2.0, 3.0]) if number % 4 < 2 else ([2, 2, 0], [4.0, 5.0, -6.0])
        assert table[:, 1].tolist() == pytest.approx(old[tokens].tolist()) and table[:, 2].tolist() == credit
        torch.testing.assert_close(table[places, 0], inputs.logprobs_L.detach())
        assert torch.equal(table[places, 2], inputs.advantages_L) and not table.requires_grad
        moved = (table[:, 0] - table[:, 1]).abs().max().item()
        assert (moved < 1e-6) is (number < 2), "only the step's first update is of the policy that sampled"


@pytest.mark.parametrize("to", ["learner", "sampler"])
def test_all_tokens_of_a_mini_batch_are_compared_with_what_each_is(to):
    """The second was sampled from another prompt, and nobody sampled the last."""
    seen, sampler = [], [math.log(1 / 3), math.log(1 / 4), math.nan]

    def loss(inputs, batch_M3, places_L):
        seen.append((batch_M3[places_L], inputs))
        return clipped_surrogate(inputs)

    stage = RlStage(kind="rl", steps=10, learning_rate=1.0, epochs=2, ratio_to=to)
    needs = ("batch_M3", "places_L")
    algorithm = Algorithm(id="t", advantage=print, needs=(), loss=loss, loss_needs=needs, normalise="token", constant=1.0)
    made = batch([0, 1, 1], [1.0, -2.0, 3.0], sampler, splits=[2, 1], off_policy=[False, True, False])
    Learner(Bandit(0.0, 0.0), stage, algorithm).update([made], 0)
    old = torch.cat([table[:, 1] for table, _ in seen[2:]]).tolist()
    assert old == pytest.approx([sampler[0] if to == "sampler" else HALF, sampler[1], HALF])
    for table, inputs in seen:
        torch.testing.assert_close(table[:, 1], inputs.old_logprobs_L)


# -- demonstrations -----------------------------------------------------------------------------------------------------


def test_demonstrations_have_no_sampler_to_disagree_with():
    """Nobody sampled them: their log-probabilities are NaN, there is no gap to report and none to refuse."""
    policy = Bandit(0.0, 0.0)
    found = sft(policy).update([batch([0], [1.0], [math.nan])], 0)
    assert found.keys() == {"loss", "entropy", "clip_share", "kl", "grad_norm", "learning_rate"}
    assert policy.w.tolist() == pytest.approx([0.5, -0.5], abs=1e-5)


def test_the_gap_is_that_of_the_tokens_that_were_sampled():
    learner = rl(Bandit(0.0, 0.0), gap_limit=0.2)
    found = learner.update([batch([0, 0, 1], [1.0, 1.0, 1.0], [math.nan, HALF - 0.15, math.nan])], 0)
    assert found["logprob_gap"] == pytest.approx(0.15) and found["loss"] == -1.0, "the others are trained on all the same"
    assert "logprob_gap" not in learner.update([batch([0], [1.0], [math.nan])], 1)


def test_a_token_weighs_its_own_probability():
    """DFT: with p of the token, the gradient of each logit is p (softmax - one-hot) instead of softmax - one-hot."""
    policy = Bandit(0.0, math.log(3.0))
    found = sft(policy, token_weights="probability", optimizer="sgd", beta1=0.0).update([batch([0, 1], [1.0, 1.0])], 0)
    assert found["loss"] == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)) / 2)
    slope = (0.25 * (0.25 - 1) + 0.75 * 0.25) / 2
    assert policy.w.tolist() == pytest.approx([-0.5 * slope, math.log(3.0) + 0.5 * slope], abs=1e-6)


@pytest.mark.parametrize(("uncertain", "factor"), [(False, 1.0), (True, 0.75 * 0.25)])
def test_demonstrations_share_the_loss_with_what_was_sampled(uncertain, factor):
    """Token 1 has the probability a quarter: w of its -log p, weighed by p (1 - p) if asked, and 1 - w of the algorithm's."""
    policy = Bandit(math.log(3.0), 0.0)
    learner = rl(policy)
    gold = Demonstrations(batch=batch([1, 1], [1.0, 1.0], [math.nan] * 2), weight=0.75, uncertain=uncertain)
    found = learner.update([batch([0], [2.0], [math.log(0.75)])], 0, demonstrations=gold)
    assert found["loss"] == pytest.approx(-0.25 * 2) and found["imitation/weight"] == 0.75
    assert found["imitation/loss"] == pytest.approx(0.75 * factor * math.log(4))
    gradient = -0.25 * 2 * 0.25 + 0.75 * factor * 0.75  # by the first logit: of the surrogate, of the likelihood
    assert learner.state()["optimizer/w/exp_avg"].tolist() == pytest.approx([0.1 * gradient, -0.1 * gradient])


@pytest.mark.parametrize("epochs", [1, 3])
def test_demonstrations_alone(epochs):
    """One step, since `epochs` are passes over what was sampled."""
    policy = Bandit(0.0, 0.0)
    gold = Demonstrations(batch=batch([1], [1.0], [math.nan]), weight=1.0)
    found = rl(policy, epochs=epochs).update([], 0, demonstrations=gold)
    assert found.keys() == {"loss", "grad_norm", "learning_rate", "imitation/loss", "imitation/weight"}
    assert found["imitation/loss"] == pytest.approx(-HALF) and found["loss"] == 0.0
    assert policy.w.tolist() == pytest.approx([-1.0, 1.0], abs=1e-5)


# -- what is refused ----------------------------------------------------------------------------------------------------


def test_a_gap_above_the_limit_leaves_everything_as_it_was():
    policy = Bandit(0.0, 0.0)
    learner = rl(policy, gap_limit=0.2, epochs=2)
    with pytest.raises(UserError, match=r"disagree by 0\.250 nats a token \(limits\.logprob_gap = 0\.2\)"):
        learner.update([batch([0, 1], [1.0, -1.0], [HALF - 0.5, HALF])], 0)
    assert policy.w.tolist() == [0.0, 0.0] and policy.w.grad is None and learner.state() == {}
    assert learner.update([batch([0, 1], [1.0, -1.0], [HALF - 0.38, HALF])], 0)["logprob_gap"] == pytest.approx(0.19)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_is_not_stepped_on(bad):
    policy = Bandit(0.0, 0.0)
    learner = rl(policy)
    with pytest.raises(UserError, match=f"the gradient is not finite .norm {math.nan}.: lower learning_rate or max_grad_norm"):
        learner.update([batch([0], [bad], [HALF])], 7)
    assert policy.w.tolist() == [0.0, 0.0] and policy.w.grad is None and learner.state() == {}
    assert learner.optimizer.steps == 0


# -- state --------------------------------------------------------------------------------------------------------------


def test_a_learner_with_restored_state_goes_on_bit_for_bit(tmp_path):
    """Its moments and the reference it compares with, through a file."""
    policy = Bandit(0.0, 0.5, -0.5)
    learner = rl(policy, learning_rate=0.1, reference=reference_of(policy, 1.0, 0.0, -1.0), kl_coef=0.5)
    for step in range(3):
        learner.update([batch([0, 1], [1.0, -0.5])], step, kl=0.5)
    save_file(learner.state(), tmp_path / "learner.safetensors")
    state = load_file(tmp_path / "learner.safetensors")
    expected = {"optimizer/w/step", "optimizer/w/exp_avg", "optimizer/w/exp_avg_sq", "reference/w"}
    assert set(state) == expected and state["optimizer/w/step"].item() == 3 and state["reference/w"].tolist() == [1.0, 0.0, -1.0]
    others = [Bandit(*policy.w.tolist()) for _ in range(3)]
    again, without_moments, without_reference = (
        rl(other, learning_rate=0.1, reference=Reference(other, adapters=False), kl_coef=0.5) for other in others
    )
    again.load_state(state)
    without_moments.reference.load_state({"w": state["reference/w"]})
    without_reference.optimizer.load_state(
        {k.removeprefix("optimizer/"): v for k, v in state.items() if k in expected - {"reference/w"}}
    )
    for one in (learner, again, without_moments, without_reference):
        one.update([batch([2], [1.0])], 3, kl=0.5)
    assert torch.equal(policy.w, others[0].w)
    assert not torch.equal(policy.w, others[1].w) and not torch.equal(policy.w, others[2].w), "both matter"
    assert state["optimizer/w/step"].item() == 3, "what was given is not shared"
    assert all(torch.equal(learner.state()[k], again.state()[k]) for k in state)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (torch.zeros(()), r"each a tensor \[2\], not \[\]"),
        (torch.zeros(2), r"not \[2\]"),
        ((torch.zeros(()), torch.zeros(2)), r"not \[\], \[2\]"),
        ((torch.zeros(2), 0.5), r"not \[2\], 0.5"),
    ],
)
def test_a_loss_that_averages_is_told_apart_from_one_that_does_not(found, said):
    with pytest.raises(PluginError, match="algorithm 'a': its loss must return .*" + said):
        check_loss_output(found, torch.zeros(2), "algorithm 'a': its loss")
    assert check_loss_output((torch.ones(2), torch.zeros(2)), torch.zeros(2), "x")[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda p: (p.detach(), p.detach()), "has no gradient: compute loss_L from inputs.logprobs_L"),
        (lambda p: (p.detach().long(), p.detach()), "has no gradient"),
        (lambda p: (p.to("meta"), p.detach()), "must stay on the device of its inputs, cpu"),
        (lambda p: (p, p.detach().to("meta")), "must stay on the device of its inputs, cpu"),
    ],
)
def test_a_loss_that_nothing_could_be_learned_from_is_refused(loss, said):
    logprobs_L = torch.zeros(2, requires_grad=True)
    with pytest.raises(PluginError, match=f"a loss {said}"):
        check_loss_output(loss(logprobs_L), logprobs_L, "a loss")
    assert check_loss_output((logprobs_L, logprobs_L > 0), logprobs_L, "a loss")[1].dtype == torch.float32, (
        "truths may tell what is clipped"
    )
