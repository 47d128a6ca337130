"""A critic on real, tiny models: its values don't depend on how a batch is laid out, and its gradient goes where it should."""

import functools
from dataclasses import replace

import pytest
import torch
from mmrl_robotics.small import Small

import vlm_cases as cases
from mmrl.algorithms.presets import load_algorithm
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import CriticConfig, PolicyConfig, RlStage
from mmrl.policies.batches import ActionMicroBatch, Credit
from mmrl.policies.critic import Critic
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack

FAMILIES = (*cases.FAMILIES, "llava")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """One policy of each family; llava stands for those that mmrl has no adapter for."""

    @functools.cache
    def make(family):
        if family != "llava":
            return cases.policy(family)
        return VLM(PolicyConfig(model=cases.llava(tmp_path_factory.mktemp("llava"))))

    return make


def fresh(**critic):
    """A policy of its own, and a learner with a critic."""
    vlm = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=2"))
    return vlm, learner(vlm, **critic)


def learner(vlm, steps=10, **critic):
    stage = RlStage(kind="rl", algorithm="ppo", steps=steps, learning_rate=1e-3, critic=critic)
    made = Critic(vlm, stage.critic, seed=5)
    return Learner(vlm, stage, load_algorithm("ppo", {}), critic=made)


def roused(critic, seed=7):
    """The critic with a last layer that isn't zero."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        critic.head[-1].weight.normal_(generator=noise)
        critic.head[-1].bias.fill_(0.25)
    return critic


def measured(owner, found, shared, budget, credit=None):
    batch = pack(
        found,
        credit or Credit(advantages=torch.ones(len(found))),
        owner.policy,
        shared_prefix=shared and owner.policy.family.shares_prefix,
        budget=budget,
        keep_zero=True,
    )
    return owner.measure(batch, frozenset({"values"})), batch


def by_hand(vlm, head, rollout):
    """(values before each sampled token, value at the end)."""
    states, at = cases.naive_states(vlm, rollout)
    with torch.no_grad():
        values = head(states)[:, 0]
    return values[[place for turn in at for place in turn]], values[-1]


@pytest.mark.parametrize("backbone", ["shared", "separate"])
@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_those_of_each_sequence_alone(policy, family, backbone):
    vlm = policy(family)
    owner = learner(vlm, backbone=backbone, hidden_sizes=[16])
    roused(owner.critic)
    found = cases.in_turns(vlm)
    want = [by_hand(vlm, owner.critic.head, r) for r in found]
    assert torch.cat([w for w, _ in want]).std() > 0.1, "they differ"
    backwards = list(reversed(range(len(found))))
    for shared, budget, order in (
        (True, 10_000, None),
        (False, 10_000, None),
        (False, 1, None),
        (True, 60, None),
        (True, 10_000, backwards),
        (False, 1, backwards),
    ):
        order = order or list(range(len(found)))
        got, batch = measured(owner, [found[n] for n in order], shared, budget)
        assert len(batch.micro) == {10_000: 1, 60: len(batch.micro), 1: len(found)}[budget]
        for row, n in enumerate(order):
            values, end = want[n]
            assert got["values"].shape[1] == max(r.length for r in found)
            assert (got["values"][row, : len(values)] - values).abs().max() < 2e-5
            assert not got["values"][row, len(values) :].any(), "0 behind the end"
            assert abs(got["bootstrap"][row] - end) < 2e-5


def test_a_critic_begins_at_zero_and_draws_from_its_own_generator():
    vlm = cases.policy("qwen2_5_vl")
    before = torch.get_rng_state()
    kinds = (("shared", 1), ("separate", 1), ("shared", 2))
    made = [Critic(vlm, CriticConfig(hidden_sizes=[16, 8], backbone=backbone), seed) for backbone, seed in kinds]
    assert torch.equal(torch.get_rng_state(), before)
    for critic in made:
        owner = Learner(vlm, RlStage(kind="rl", steps=1), critic=critic)
        got, _ = measured(owner, cases.in_turns(vlm), True, 10_000)
        assert not got["values"].any() and not got["bootstrap"].any()
        owner.close()
    first, same, other = ([p for n, p in c.parameters() if n.startswith("value.")] for c in made)
    assert [tuple(p.shape) for p in first] == [(16, 64), (16,), (8, 16), (8,), (1, 8), (1,)]
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True)) and not torch.equal(first[0], other[0])
    assert torch.allclose(first[0] @ first[0].T, torch.eye(16), atol=1e-5), "orthogonal"


def test_without_hidden_layers_the_head_is_linear():
    critic = Critic(cases.policy("qwen2_5_vl"), CriticConfig(), seed=0)
    assert [(n, tuple(p.shape)) for n, p in critic.parameters()] == [("value.0.weight", (1, 64)), ("value.0.bias", (1,))]


# -- gradients --------------------------------------------------------------------------------------------------------------


def value_credit(found):
    """No credit for the policy; targets for the critic at each rollout's first and last token."""
    longest = max(r.length for r in found)
    returns = torch.full((len(found), longest), torch.nan)
    for n, r in enumerate(found):
        returns[n, 0], returns[n, r.length - 1] = 1.0 + n, -2.0
    zeros = torch.zeros(len(found), longest)
    return Credit(advantages=zeros, values_NT=zeros, returns_NT=returns)


def gradients(owner, batch):
    """By name, of the value loss; nothing is stepped."""
    owner._accumulate(owner._counted(batch), [], 0.0, 1.0, False, [])
    named = [*owner.policy.parameters(), *owner.critic.parameters()]
    found = {name: p.grad.clone() for name, p in named if p.grad is not None}
    for _, p in named:
        p.grad = None
    return found


def apart(a, b):
    """The largest relative difference of a weight's gradient; those that are zero but for rounding don't count."""
    size = max(g.norm().item() for g in b.values())
    return max(((a[n] - b[n]).norm() / (b[n].norm() + 1e-4 * size)).item() for n in a)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_value_loss_reaches_a_shared_backbone_unless_detached(policy, family):
    vlm = policy(family)
    found = cases.in_turns(vlm)
    reached = {}
    for name, options in {"shared": {}, "detached": {"detach": True}, "separate": {"backbone": "separate"}}.items():
        owner = learner(vlm, **options)
        roused(owner.critic)
        got = gradients(owner, measured(owner, found, True, 10_000, value_credit(found))[1])
        reached[name] = {n for n, g in got.items() if g.abs().max() > 0}
        own = {n for n in reached[name] if n.startswith(("value.", "critic."))}
        assert {"value.0.weight", "value.0.bias"} <= own
        inner = [n.removeprefix("critic.") for n in (reached[name] - own if name == "shared" else own) if ".0." in n]
        if name != "detached":
            assert any("language_model" in n for n in inner) and any("vis" in n for n in inner)
            assert not any("lm_head" in n for n in reached[name]), "no logit is part of it"
        if name != "shared":
            assert reached[name] == own
    assert reached["detached"] == {"value.0.weight", "value.0.bias"}


@pytest.mark.parametrize("backbone", ["shared", "separate"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_values_do_not_depend_on_packing(policy, family, backbone):
    vlm = policy(family)
    owner, found = learner(vlm, backbone=backbone, hidden_sizes=[16], clip_range=0.0), cases.in_turns(vlm)
    roused(owner.critic)
    whole = gradients(owner, measured(owner, found, True, 10_000, value_credit(found))[1])
    assert max(g.abs().max() for n, g in whole.items() if "layers.0" in n) > 1e-4
    for shared, budget in ((False, 10_000), (False, 1), (True, 60)):
        got = gradients(owner, measured(owner, found, shared, budget, value_credit(found))[1])
        assert got.keys() == whole.keys() and apart(got, whole) < 1e-4


def test_a_separate_backbone_begins_as_the_policy_and_is_another():
    vlm, owner = fresh(backbone="separate")
    copy = owner.critic.backbone
    mine, theirs = dict(vlm.parameters()), dict(copy.parameters())
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)
    assert not {p.data_ptr() for p in mine.values()} & {p.data_ptr() for p in theirs.values()}
    assert copy.family.model is copy.model is not vlm.model and all(p.requires_grad for p in theirs.values())
    visual = copy.model.model.visual
    assert visual.patch_embed.forward.args[0] is visual.patch_embed, "what was sped up is its own too"
    frozen = vlm.clone(frozen=True)
    assert not any(p.requires_grad for _, p in frozen.parameters()) and all(p.requires_grad for p in mine.values())


# -- state ------------------------------------------------------------------------------------------------------------------


@pytest.mark.everyday
@pytest.mark.parametrize("backbone", ["shared", "separate"])
def test_a_learner_with_restored_state_goes_on_bit_for_bit(backbone):
    vlm, owner = fresh(backbone=backbone, hidden_sizes=[8], warmup_steps=1)
    found = cases.in_turns(vlm)

    def update(one, step):
        credit = replace(value_credit(found), advantages=torch.linspace(-1, 1, len(found)))
        return one.update([measured(one, found, True, 10_000, credit)[1]], step)

    for step in range(3):
        update(owner, step)
    state = {k: v.clone() for k, v in owner.state().items()}
    heads = {k for k in state if k.startswith("critic/value.")}
    assert heads == {f"critic/value.{k}" for k in ("0.weight", "0.bias", "2.weight", "2.bias")}
    assert any(k.startswith("critic/critic.") for k in state) == (backbone == "separate")
    assert any(k.startswith("optimizer/value.0.weight/") for k in state)
    other, again = fresh(backbone=backbone, hidden_sizes=[8], warmup_steps=1)
    with torch.no_grad():
        for (_, p), (_, q) in zip(other.parameters(), vlm.parameters(), strict=True):
            p.copy_(q)
    assert not torch.equal(owner.critic.head[0].weight, again.critic.head[0].weight)
    again.load_state(state)
    first, second = update(owner, 3), update(again, 3)
    assert first == second and first["value_loss"] > 0
    for (n, p), (_, q) in zip(
        [*vlm.parameters(), *owner.critic.parameters()], [*other.parameters(), *again.critic.parameters()], strict=True
    ):
        assert torch.equal(p, q), n
    assert all(torch.equal(v, again.state()[k]) for k, v in owner.state().items())


@pytest.mark.parametrize("backbone", ["shared", "separate"])
def test_a_policy_that_acts_is_valued_alike_in_episodes_and_in_the_update(backbone):
    """With a copy of the network that has learned something else than the policy."""
    policy = Small(PolicyConfig(model="mlp"), dims=2, state=3, hidden=[16], seed=1)
    critic = roused(Critic(policy, CriticConfig(backbone=backbone, hidden_sizes=[8]), seed=5))
    if critic.backbone:
        with torch.no_grad():
            for _, parameter in critic.backbone.parameters():
                parameter.mul_(1.5)
    rows, seeds_n = torch.randn(6, 3, generator=torch.Generator().manual_seed(2)), torch.arange(6)
    observation = Observation(images={}, state=rows, instructions=["go"] * 6)
    chosen = policy.act(observation, seeds_n, seeds_n * 0, 1.0, critic)
    calls = ActionMicroBatch(
        observation=observation,
        choices=chosen.choices,
        slots=1,
        valid_SK=torch.ones(6, 1, dtype=torch.bool),
        ratio="action",
        sampler_logprobs_L=chosen.logprobs_nKC.flatten(),
        advantages_L=torch.zeros(6),
        rollout_L=seeds_n,
        place_L=torch.zeros(6, dtype=torch.int64),
        off_policy_L=torch.zeros(6, dtype=torch.bool),
    )
    states = policy.outputs(calls, 1.0, states=True).states_QH
    torch.testing.assert_close(chosen.values_nU.flatten(), critic.values(calls, states)[0])
    torch.testing.assert_close(policy.values(observation, seeds_n, seeds_n, critic), chosen.values_nU)
