"""Updates of mixtures of experts: routes are replayed, wherever the tokens are; penalties of routers against transformers'
loss and against sums token by token; and what is measured."""

import math
from types import SimpleNamespace

import pytest
import torch
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextConfig, Gemma4TextRouter
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import load_balancing_loss_func

import expert_cases as experts
import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.config.sections import LoraConfig, TrainConfig
from mmrl.policies.batches import Credit
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.vlm.experts import RouterPass, choice, routed, routers_of, watched
from mmrl.train.sampling.masked import masked_rollouts, with_masked
from mmrl.train.smoke import smoke
from mmrl.train.update.pack_conversations import pack
from mmrl.train.update.routing import Routing

OTHERS = [pytest.param(family, marks=pytest.mark.slow) for family in experts.UNDERSTOOD[1:]]
FAMILIES = [experts.UNDERSTOOD[0], *OTHERS]
R3 = {"router_replay": "R3"}


@pytest.fixture
def steps(monkeypatch):
    """The log-probabilities and the routes of every pass of an update, in their order."""
    seen = []
    through = Routing.outputs

    def outputs(self, micro, *args, **options):
        found = through(self, micro, *args, **options)
        seen.append((micro, found.logprobs_L.detach(), self.last.taken if hasattr(self, "last") else None))
        return found

    monkeypatch.setattr(Routing, "outputs", outputs)
    return seen


def gap(steps):
    return max(float((found - micro.sampler_logprobs_L).abs().max()) for micro, found, _ in steps)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_planted_flips_of_routes_show_and_a_replay_cures_them(family, shared, steps):
    vlm = experts.policy(family)
    rollouts = experts.sampled(vlm)
    batch = experts.batch(vlm, rollouts, shared, budget=150)
    assert len(batch.micro) > 1
    plain = experts.learner(vlm, learning_rate=1e-12, experts={"compare_sampler": True}).update([batch], 0)
    assert plain["experts/mismatch"] > 0.3 and gap(steps) > 0.05
    steps.clear()
    replayed = experts.learner(vlm, experts=R3).update([batch], 0)
    assert gap(steps) < 1e-5 and replayed["logprob_gap"] < 1e-6
    if len(routers_of(vlm.model)) == 1:  # then what a router sees doesn't depend on a replay
        assert replayed["experts/mismatch"] == pytest.approx(plain["experts/mismatch"])


def test_the_share_that_differs_is_counted_token_by_token():
    vlm = experts.policy()
    rollouts = experts.sampled(vlm)
    batch = experts.batch(vlm, rollouts)
    (micro,) = batch.micro
    metrics = experts.learner(vlm, experts=R3).update([batch], 0)
    vlm = experts.policy()
    own = [[] for _ in routers_of(vlm.model)]
    now = RouterPass({r: i for i, r in enumerate(routers_of(vlm.model).values())}, given_MTK=micro.routes_MTK)
    hooks = [
        r.register_forward_hook(lambda r, args, out, i=i: own[i].append(choice(r, type(r).forward(r, *args))[0]))
        for i, r in enumerate(routers_of(vlm.model).values())
    ]
    watched(vlm.model)
    with routed(now), torch.no_grad():
        vlm.outputs(micro, 1.0)
    del hooks
    differing, load = [], [[0] * 4 for _ in own]
    for layer, (chosen,) in enumerate(own):
        for at in micro.source_L.tolist():
            told = set(micro.routes_MTK[layer, at].tolist())
            differing.append(1 - len(told & set(chosen[at].tolist())) / 2)
            for expert in told:
                load[layer][expert] += 1
    assert metrics["experts/mismatch"] == pytest.approx(sum(differing) / len(differing))
    assert metrics["experts/busiest"] == pytest.approx(sum(max(row) * 4 / sum(row) for row in load) / len(load))
    assert metrics["experts/unused_share"] == sum(n == 0 for row in load for n in row) / 8


@pytest.mark.parametrize(
    ("lora", "offload"),
    [(None, False), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(LoraConfig(rank=4), False), (None, True)])],
)
def test_layers_that_are_computed_again_take_the_same_routes(lora, offload):
    """Those that a backward pass computes again too: their gradients are those of layers that aren't."""
    vlm = experts.policy(lora=lora)
    (micro,) = experts.batch(vlm, experts.sampled(vlm)).micro
    gradients = []
    for on in (False, True):
        routing = Routing(vlm, experts.learner(vlm, experts=R3 | {"aux_loss_coef": 0.1, "z_loss_coef": 0.1}).rl.experts)
        batch = experts.batch(vlm, experts.sampled(vlm))
        routing.begin([batch], later=False)
        routing.prepare(batch)
        vlm.model.zero_grad()
        with gradient_checkpointing(vlm.model, on, offload):
            found = routing.outputs(micro, 1.0)
            loss = (found.logprobs_L * micro.advantages_L).sum() + routing.penalty(batch)
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for _, p in vlm.parameters() if p.grad is not None]))
        figures = routing.figures()
    assert figures["experts/busiest"] < 4 and figures["experts/router_entropy"] <= math.log(4) + 1e-6
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


def test_r2_takes_the_routes_of_the_first_pass_again(steps):
    vlm = experts.policy()
    rollouts = experts.sampled(vlm, flip=False)
    batch = experts.batch(vlm, rollouts)
    own = experts.learner(vlm, epochs=3, learning_rate=0.05).update([batch], 0)
    first, *later = [taken for *_, taken in steps]
    assert own["experts/changed"] > 0 and any(not torch.equal(a, b) for a, b in zip(first, later[-1], strict=True))
    steps.clear()
    vlm = experts.policy()
    replayed = experts.learner(vlm, epochs=3, learning_rate=0.05, experts={"router_replay": "R2"}).update([batch], 0)
    first, *later = [taken for *_, taken in steps]
    assert replayed["experts/changed"] > 0 and len(later) == 2
    assert all(torch.equal(a, b) for taken in later for a, b in zip(first, taken, strict=True))


def test_a_masked_pass_takes_its_own_routes_before_the_update_again_and_is_not_measured(monkeypatch):
    vlm = experts.policy()
    rollouts = experts.sampled(vlm, flip=False)
    own = {"router_replay": "R2", "aux_loss_coef": 0.1}
    stage = {"perception": {"coef": 0.5, "gradient": "both"}, "epochs": 2, "minibatches": 2, "learning_rate": 0.05}
    learner, seen = experts.learner(vlm, experts=own, **stage), []
    through = Routing._keep

    def keep(self, micro, now, *args, **options):
        seen.append((micro, torch.stack(now.taken)))
        return through(self, micro, now, *args, **options)

    monkeypatch.setattr(Routing, "_keep", keep)
    less = masked_rollouts(
        rollouts, SimpleNamespace(encode=lambda prompts: [*map(vlm.encode, prompts)]), learner.rl.perception, 7
    )
    batches, others = ([experts.batch(vlm, part) for part in (found[:4], found[4:])] for found in (rollouts, less))
    found = learner.update(with_masked(batches, others), 0)
    for batch in others:
        (micro,) = batch.micro
        first, *later = [taken for one, taken in seen if one is micro]
        assert len(later) == 2 and all(torch.equal(first, taken) for taken in later)
        with routed(learner.routing._pass(micro)) as now, torch.no_grad():
            vlm.states(micro)
        assert not torch.equal(first, torch.stack(now.taken)), "the weights choose others by now"
    (micro,) = batches[1].micro
    assert learner.routing.last.tokens_T.sum() == len(micro.source_L) and found["perception/kl"] > 0


def test_routes_of_an_update_are_forgotten_with_it():
    vlm = experts.policy()
    batch = experts.batch(vlm, experts.sampled(vlm, flip=False))
    learner = experts.learner(vlm, epochs=2, learning_rate=0.05, experts={"router_replay": "R2"})
    learner.update([batch], 0)
    (micro,) = batch.micro  # as if micro-batches of the next step had the ids of this one's
    found = learner.measure(batch, frozenset({"logprobs"}))["logprobs"][micro.rollout_L, micro.place_L]
    torch.testing.assert_close(found, vlm.outputs(micro, 1.0).logprobs_L.detach())


@pytest.mark.parametrize("need", ["log_ratios_N", "batch_M3"])
def test_what_a_loss_needs_is_measured_with_the_replayed_routes(need):
    vlm = experts.policy()
    batch = experts.batch(vlm, experts.sampled(vlm))
    learner = experts.learner(vlm, epochs=2, learning_rate=1e-12, experts=R3)
    seen, clipped = [], learner.loss
    learner.loss = lambda inputs, known: (seen.append(known), clipped(inputs))[1]
    learner.measured.needs = (need,)
    learner.update([batch], 0)
    moved = seen[-1][:, 0] - seen[-1][:, 1] if need == "batch_M3" else seen[-1]
    assert len(seen) == 2 and moved.abs().max() < 1e-4


@torch.no_grad()
def test_means_over_the_vocabulary_are_those_of_the_replayed_routes():
    vlm = experts.policy()
    batch = experts.batch(vlm, experts.sampled(vlm))
    (micro,) = batch.micro
    with routed(RouterPass(watched(vlm.model), given_MTK=micro.routes_MTK)):
        expected = vlm.mean_logprobs(micro, 1.0)
    learner = experts.learner(vlm, epochs=2, experts=R3)
    learner.measured.needs = ("mean_log_ratio_L",)
    torch.testing.assert_close(learner.measured.before(batch)[0], expected)
    assert (vlm.mean_logprobs(micro, 1.0) - expected).abs().max() > 1e-3


def test_slopes_are_the_squared_gradients_of_log_probabilities_by_logits():
    """With the replayed routes, and behind a temperature."""
    vlm = experts.policy()
    batch = experts.batch(vlm, experts.sampled(vlm))
    (micro,) = batch.micro
    with torch.no_grad(), routed(RouterPass(watched(vlm.model), given_MTK=micro.routes_MTK)):
        values_L, head, _ = vlm._forward(micro, False)
        logits = head(values_L).float() / 2
    logits.requires_grad_()
    vlm.distribution(logits, 1.0).gather(-1, micro.target_L[:, None]).sum().backward()
    learner = experts.learner(vlm, experts=R3)
    learner.temperature = 2.0
    found = learner.measure(batch, frozenset({"slopes"}))["slopes"][micro.rollout_L, micro.place_L]
    torch.testing.assert_close(found, logits.grad.square().sum(-1))
    assert found.min() > 0


def router_logits(vlm, rollouts):
    """The logits of each layer before each trained token, [L, E], from transformers' own pass over each conversation."""
    found = [[] for _ in routers_of(vlm.model)]
    for rollout in rollouts:
        seen = []
        hooks = [
            r.register_forward_hook(lambda r, _, out, seen=seen: seen.append(choice(r, out)[1]))
            for r in routers_of(vlm.model).values()
        ]
        cases.naive_logprobs(vlm, rollout, 1.0)
        for hook in hooks:
            hook.remove()
        start = len(rollout.inputs.ids) - 1
        for layer, logits in enumerate(seen):
            found[layer].append(logits[start : start + rollout.length])
    return [torch.cat(rows) for rows in found]


@pytest.mark.parametrize(
    ("shared", "budget"), [(True, 130), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(True, 10_000), (False, 130)])]
)
def test_penalties_are_transformers_loss_and_the_mean_of_squares_over_all_trained_tokens(shared, budget):
    vlm = experts.policy()
    rollouts = experts.sampled(vlm, flip=False)
    batch = experts.batch(vlm, rollouts, shared, budget)
    learner = experts.learner(vlm, experts={"aux_loss_coef": 0.3, "z_loss_coef": 0.2})
    routing = learner.routing
    vlm.model.zero_grad()
    routing.begin([batch], later=False)
    routing.prepare(batch)
    for micro in batch.micro:
        routing.outputs(micro, 1.0)
        routing.penalty(batch).backward()
    gradient = torch.cat([r.weight.grad.flatten() for r in routers_of(vlm.model).values()])
    figures = routing.figures()
    vlm.model.zero_grad()
    logits = router_logits(vlm, rollouts)
    aux = sum(load_balancing_loss_func((one,), 4, 2) for one in logits) / len(logits)
    z = sum(sum(row.exp().sum().log() ** 2 for row in one) / len(one) for one in logits) / len(logits)
    (0.3 * aux + 0.2 * z).backward()
    expected = torch.cat([r.weight.grad.flatten() for r in routers_of(vlm.model).values()])
    vlm.model.zero_grad()
    assert figures["experts/aux_loss"] == pytest.approx(float(aux), rel=1e-5)
    assert figures["experts/z_loss"] == pytest.approx(float(z), rel=1e-5)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_the_balance_loss_teaches_adapters_what_routers_read():
    """Routers have none and stay as they are: experts become equally busy as the attention before them learns."""
    vlm = experts.policy(lora=LoraConfig(rank=4, target_modules=["language"]))
    rollouts = experts.sampled(vlm, flip=False)
    packed = pack(rollouts, Credit(advantages=torch.zeros(len(rollouts))), vlm, shared_prefix=True, budget=10_000, keep_zero=True)
    before = {name: p.detach().clone() for name, p in vlm.model.named_parameters()}
    learner = experts.learner(vlm, experts={"aux_loss_coef": 1.0}, learning_rate=0.02, steps=20)
    busiest = [learner.update([packed], step)["experts/busiest"] for step in range(12)]
    assert busiest[-1] < 1.1 < 1.3 < busiest[0], "of 4 experts with an equal share each"
    changed = {name for name, p in vlm.model.named_parameters() if not torch.equal(p, before[name])}
    assert all("lora_" in name for name in changed) and any("layers.0.self_attn" in name for name in changed)


def test_rollouts_without_an_advantage_are_penalised_too():
    vlm = experts.policy()
    assert experts.learner(vlm, experts={"z_loss_coef": 0.1}).needs_every_rollout
    assert not experts.learner(vlm, experts=R3).needs_every_rollout


def test_frozen_routers_stay_and_are_trained_again_by_a_later_stage():
    vlm = experts.policy()
    batch = experts.batch(vlm, experts.sampled(vlm))
    before = [r.weight.clone() for r in routers_of(vlm.model).values()]
    learner = experts.learner(vlm, experts={**R3, "freeze_router": True})
    learner.update([batch], 0)
    learner.close()
    assert all(torch.equal(a, r.weight) for a, r in zip(before, routers_of(vlm.model).values(), strict=True))
    experts.learner(vlm).update([batch], 0)
    assert not any(torch.equal(a, r.weight) for a, r in zip(before, routers_of(vlm.model).values(), strict=True))


def test_a_dense_model_has_no_figures_and_no_replay():
    vlm = cases.policy("qwen2_5_vl")
    rollouts = cases.rollouts(vlm, [cases.prompt(1)])
    metrics = experts.learner(vlm, train=TrainConfig(), learning_rate=1e-12).update([experts.batch(vlm, rollouts)], 0)
    assert not any(name.startswith("experts/") for name in metrics)
    with pytest.raises(UserError, match=r"^stages\.experts is for mixtures of experts, and this model has none: leave it"):
        experts.learner(vlm, experts=R3)


def test_a_sampler_that_tells_nothing_is_refused():
    vlm = experts.policy()
    batch = experts.batch(vlm, cases.rollouts(vlm, [cases.prompt(1)]))
    with pytest.raises(UserError, match=r'^stages\.experts\.router_replay = "R3" replays .* it told of none: use "R2"'):
        experts.learner(vlm, experts=R3).update([batch], 0)


def test_a_router_that_tells_probabilities_has_finite_gradients_and_no_z_loss(monkeypatch):
    """Gemma 4's. A probability may be 0."""
    router = Gemma4TextRouter(Gemma4TextConfig(hidden_size=16, num_experts=4, top_k_experts=2))
    hidden = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        router.proj.weight.copy_(torch.randn(4, 16, generator=torch.Generator().manual_seed(2)) * 1000)
    now = RouterPass({router: 0}, tokens_T=torch.ones(5), penalised=True)
    output = router(hidden)
    assert (output[0] == 0).any()
    now.open = True
    now.routed(router, (hidden,), output)
    now.probabilities[0].square().sum().backward()
    assert router.proj.weight.grad.isfinite().all() and now.entropy.isfinite()
    vlm = experts.policy()
    monkeypatch.setattr("mmrl.policies.vlm.experts._OF_PROBABILITIES", ("Qwen3VLMoeTextTopKRouter",))
    with pytest.raises(UserError, match=r"^stages\.experts\.z_loss_coef is of logits, and the routers of qwen3_vl_moe tell prob"):
        experts.learner(vlm, experts={"z_loss_coef": 0.1})


@pytest.mark.slow
def test_routers_that_are_not_understood_may_only_be_frozen():
    vlm = experts.policy("ernie4_5_vl_moe")
    with pytest.raises(UserError, match=r"^stages\.experts\.router_replay: the routers of ernie4_5_vl_moe aren't understood"):
        experts.learner(vlm, experts=R3)
    learner = experts.learner(vlm, experts={"freeze_router": True})
    assert not any(p.requires_grad for r in routers_of(vlm.model).values() for p in r.parameters())
    learner.close()


@pytest.mark.parametrize("stage", [{"experts": R3}, {}])
def test_a_smoke_run_has_experts_if_something_is_said_about_them(stage):
    stages = [{"kind": "rl", "steps": 1, **stage}]
    run = {"name": "a", "policy": {"model": "Qwen/Qwen3-VL-30B-A3B-Instruct"}, "tasks": [{"id": "toy/colour"}], "stages": stages}
    assert smoke(parse_config(run)).policy.model == ("tiny:qwen3_vl_moe" if stage else "tiny:qwen2_5_vl")
