"""The loss of what less of an image changes, against transformers' own forward passes; and answers to noisy images."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import vlm_cases as cases
from mmrl.algorithms.loss import clipped_surrogate
from mmrl.algorithms.presets import Algorithm
from mmrl.api.errors import PluginError, UserError
from mmrl.api.sampling import Group
from mmrl.api.seeds import derive
from mmrl.api.tasks.perturb import masked, noisy
from mmrl.api.types import Score
from mmrl.config.sections import NoisyConfig, PerceptionConfig, RlStage
from mmrl.train.checks.images import check_images_shown
from mmrl.train.sampling.masked import masked_rollouts, with_masked, with_masked_logprobs
from mmrl.train.sampling.noisy import NoisyRollouts
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack

CREDIT = cases.credit(1.0, -0.5, 0.0, 2.0, -1.0, 0.75, 0.5, -2.0)
KEYS = {"kind": "rl", "steps": 10, "learning_rate": 1e-3, "max_grad_norm": 1e9, "optimizer": "sgd", "beta1": 0.9}


class Encodes:
    """A collector that reads prompts."""

    def __init__(self, vlm):
        self.vlm, self.read = vlm, []

    def encode(self, prompts):
        self.read += prompts
        return [self.vlm.encode(p) for p in prompts]


def learner_of(vlm, **keys):
    algorithm = Algorithm(id="test", advantage=print, needs=(), loss=clipped_surrogate, normalise="token", constant=1.0)
    return Learner(vlm, RlStage(**KEYS, **keys), algorithm, temperature=0.8)


def tokens_of(vlm, rollouts):
    """transformers' log-probabilities of all tokens of all rollouts, with gradient, and the same as their own credit."""
    own = [cases.naive_logprobs(vlm, r, 0.8) for r in rollouts]
    advantages = torch.cat([a.expand(len(t)) for a, t in zip(CREDIT.advantages, own, strict=True)])
    return torch.cat(own), advantages


def flat_gradient(vlm):
    found = torch.cat([p.grad.flatten() for _, p in vlm.parameters() if p.grad is not None]).clone()
    vlm.model.zero_grad()
    return found


def wanted(vlm, plain, less, coef, both, penalty=0.0, own_penalty=0.0):
    """(loss, flat gradient) of the sum of PAPO's formulas, where the ratio is 1."""
    vlm.model.zero_grad()
    logp_L, advantages_L = tokens_of(vlm, plain)
    masked_L, _ = tokens_of(vlm, less)
    masked_L = masked_L if both else masked_L.detach()
    ratio_L = (logp_L - logp_L.detach()).exp()
    kl_L = (masked_L - logp_L).exp() - (masked_L - logp_L) - 1
    loss = (-ratio_L * advantages_L - coef * kl_L - penalty * logp_L - own_penalty * masked_L).mean()
    loss.backward()
    return loss.item(), kl_L.mean().item(), flat_gradient(vlm)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("budget", [60, 10_000])
def test_the_loss_and_its_gradient_are_those_of_papos_formula(both, budget, monkeypatch):
    vlm = cases.policy("qwen2_5_vl")
    plain = cases.rollouts(vlm, [cases.prompt(1), cases.prompt(2, 2)])
    own = {"entropy_penalty": 0.25, "gradient": "both"} if both else {}
    learner = learner_of(vlm, perception={"coef": 0.5, "masked": 0.6, **own}, entropy_penalty=0.125)
    less = masked_rollouts(plain, Encodes(vlm), learner.rl.perception, 7)
    made = partial(pack, credit=CREDIT, policy=vlm, shared_prefix=True, budget=budget, keep_zero=learner.needs_every_rollout)
    batch, other = made(plain), made(less)
    if both:
        batches = with_masked([batch], [other])
    else:
        whole = pack(less, cases.credit(*[1.0] * 8), vlm, shared_prefix=True, budget=10_000)
        batches = with_masked_logprobs([batch], learner.measure(whole, frozenset({"logprobs"}))["logprobs"])
    gradients = []
    monkeypatch.setattr(learner.optimizer, "step", lambda *_, **__: gradients.append(flat_gradient(vlm)) or {})
    found = learner.update(batches, 0)
    loss, kl, gradient = wanted(vlm, plain, less, 0.5, both, 0.125, 0.25 if both else 0.0)
    assert found["loss"] == pytest.approx(loss, rel=1e-4) and found["perception/kl"] == pytest.approx(kl, rel=1e-3) and kl > 0
    assert ((gradients[0] - gradient).norm() / gradient.norm()).item() < 1e-4


def test_rollouts_without_an_advantage_have_a_gradient_if_they_are_compared_or_their_entropy_is():
    vlm = cases.policy("qwen2_5_vl")
    assert not learner_of(vlm).needs_every_rollout and not learner_of(vlm, perception={}).needs_every_rollout
    assert (
        learner_of(vlm, perception={"coef": 0.01}).needs_every_rollout
        and learner_of(vlm, entropy_penalty=0.1).needs_every_rollout
    )


def test_all_completions_of_a_prompt_have_the_same_mask_and_tokens_stay():
    vlm, collector = cases.policy("qwen2_5_vl"), Encodes(cases.policy("qwen2_5_vl"))
    rollouts = cases.rollouts(vlm, [cases.prompt(1), cases.prompt(2, 0), cases.prompt(2, 2)], group=2)
    rollouts = [replace(r, is_stub=r.group == 2) for r in rollouts] + cases.rollouts(vlm, [cases.prompt(1)], group=2)
    config = PerceptionConfig(masked=0.5, patch=28)
    found = masked_rollouts(rollouts, collector, config, 3)
    first, _, without, _, stub, *_ = found
    assert [p.id for p in collector.read] == ["p1", "p1"], "once for each prompt that is read, and none without an image"
    assert without is rollouts[2] and stub is rollouts[4]
    assert first.inputs is found[1].inputs and not torch.equal(
        first.inputs.media["pixel_values"], rollouts[0].inputs.media["pixel_values"]
    )
    assert [r.turns[0].token_ids for r in found] == [r.turns[0].token_ids for r in rollouts]
    assert torch.equal(first.inputs.ids, rollouts[0].inputs.ids)
    image = masked(rollouts[0].prompt, derive(3, 0), 0.5, 28).images[0]
    assert image.tobytes() == first.prompt.images[0].tobytes(), "drawn from the seed and the group"


def test_a_model_that_reads_other_tokens_for_a_masked_image_is_refused():
    vlm = cases.policy("qwen2_5_vl")
    other = SimpleNamespace(encode=lambda prompts: [vlm.encode(cases.prompt(3)) for _ in prompts])
    with pytest.raises(PluginError, match="'p1' of task '' has other tokens if its image is masked"):
        masked_rollouts(cases.rollouts(vlm, [cases.prompt(1)]), other, PerceptionConfig(), 0)


@pytest.mark.parametrize("key", ["perception", "noisy"])
def test_a_stage_whose_tasks_show_no_image_is_refused(key):
    stage = RlStage(**KEYS, **{key: {"coef": 0.1} if key == "perception" else {}})
    shown = {"a": [cases.prompt(1, 0)], "b": [cases.prompt(2, 1)]}
    splits, of = (
        (lambda label, split: shown[label]),
        lambda *labels: SimpleNamespace(weights=lambda stage: dict.fromkeys(labels, 1.0)),
    )
    check_images_shown(of("a", "b"), 0, stage, splits)
    with pytest.raises(UserError, match=rf"stages\.0\.{key} changes images, and no prompt of a has one: leave it out"):
        check_images_shown(of("a"), 0, stage, splits)


# -- noisy images -------------------------------------------------------------------------------------------------------


class Samples:
    """A step's sampler: what noisy images are answered scores 0.25."""

    seed, progress = 5, 0.5

    def __init__(self, vlm):
        self.vlm, self.asked = vlm, []

    def complete(self, groups, prompts, share=1.0):
        self.asked.append((prompts, share))
        made = [cases.rollouts(self.vlm, [p], group=2, seed=9) for p in prompts]
        return [replace(g, prompt=p, rollouts=rs, scores=[], notes={}) for g, p, rs in zip(groups, prompts, made, strict=True)]

    def score(self, groups, without=()):
        for group in groups:
            group.scores = [Score(0.25) for _ in group.rollouts]


def test_answers_to_noisy_images_join_the_group_as_answers_to_the_clean_ones():
    vlm = cases.policy("qwen2_5_vl")
    sample, groups = Samples(vlm), []
    for number, prompt in enumerate([cases.prompt(1), cases.prompt(2, 0)]):
        own = cases.rollouts(vlm, [prompt], group=3)
        scores = [Score(1.0) for _ in own]
        groups.append(Group(number=number, place=("t", number), prompt=prompt, inputs=own[0].inputs, rollouts=own, scores=scores))
    rule = NoisyRollouts(NoisyConfig(level=400, schedule="linear", share=0.7))
    found = rule(groups, sample)
    ((prompts, share),) = sample.asked
    assert share == 0.7 and found is groups
    image = noisy(cases.prompt(1), 5, 200).images[0]
    assert [p.images[0].tobytes() for p in prompts] == [image.tobytes()], "at half the stage, and no text alone"
    assert [len(g.rollouts) for g in found] == [5, 3] and [s.value for s in found[0].scores] == [1.0] * 3 + [0.25] * 2
    for rollout in found[0].rollouts[3:]:
        assert rollout.off_policy and rollout.prompt is groups[0].prompt and rollout.inputs is groups[0].inputs
    assert rule.counts(found) == {"noisy/clean_reward": 1.0, "noisy/reward": 0.25, "noisy/level": 200.0}


@pytest.mark.parametrize("ratio", ["sampled", "clean"])
def test_the_ratio_of_such_answers_divides_by_what_is_asked(ratio):
    """By the sampler's exp(-1) each, or by the policy before the update: then the ratio is 1, as in NoisyRollout's code."""
    vlm = cases.policy("qwen2_5_vl")
    rollouts = [replace(r, off_policy=True) for r in cases.rollouts(vlm, [cases.prompt(1)])]
    credit = cases.credit(-1.0, -1.0, -1.0, -1.0)
    batch = pack(rollouts, credit, vlm, shared_prefix=True, budget=10_000)
    algorithm = Algorithm(
        id="test", advantage=print, needs=(), loss=partial(clipped_surrogate, clip_low=1.0, clip_high=1e9),
        normalise="token", constant=1.0,
    )  # fmt: skip
    learner = Learner(vlm, RlStage(**KEYS | {"learning_rate": 1e-12}, noisy={"ratio": ratio}), algorithm, temperature=0.8)
    logp = torch.cat([cases.naive_logprobs(vlm, r, 0.8) for r in rollouts]).detach()
    expected = (logp + 1).exp().mean().item() if ratio == "sampled" else 1.0
    found = learner.update([batch], 0)
    assert found["loss"] == pytest.approx(expected, rel=1e-4) and "logprob_gap" not in found
