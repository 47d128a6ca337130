"""Routers of mixtures of experts: which models' are understood, what they make of given experts, and what a sampler tells."""

from dataclasses import replace

import pytest
import torch

import expert_cases as experts
import vlm_cases as cases
from mmrl.api.interfaces import Task
from mmrl.api.types import Reply, user_message
from mmrl.policies.vlm.experts import choice, routers_of, watched, with_experts
from mmrl.policies.vlm.routes import UNKNOWN, Routes
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.snapshot import SnapshotGenerator
from mmrl.rollout.turns import ConversationCollector
from planned_exchange import Planned

OTHERS = [pytest.param(family, marks=pytest.mark.slow) for family in experts.UNDERSTOOD[1:]]
LLAMA = pytest.param("llama4", marks=pytest.mark.slow)
FAMILIES = [experts.UNDERSTOOD[0], *OTHERS]


def gates(family, router, logits, at):
    """What the experts `at` count by, from the published formulas: a softmax over all experts, the chosen ones of which are
    scaled to 1 (Qwen3-MoE), or sigmoids, likewise, times a factor (DeepSeek-V3, arXiv 2412.19437, equations 13 to 15), or a
    sigmoid for each alone (Llama 4)."""
    found = []
    for row, chosen in zip(logits.tolist(), at.tolist(), strict=True):
        if family in ("qwen3_vl_moe", "qwen3_5_moe", "qwen3_omni_moe"):
            scores = torch.tensor(row).exp()
        else:
            scores = torch.tensor([1 / (1 + 2.718281828459045**-x) for x in row])
        kept = scores[chosen]
        found.append(kept if family == "llama4" else kept / kept.sum() * getattr(router, "routed_scaling_factor", 1.0))
    return torch.stack(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_router_computes_the_gates_of_given_experts_from_its_present_scores(family):
    vlm = experts.policy(family)
    assert vlm.unrouted == ""
    router = next(iter(routers_of(vlm.model).values()))
    hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    own, logits = choice(router, router(hidden))
    assert torch.equal(own.sort().values, logits.topk(own.shape[1]).indices.sort().values)
    least = logits.topk(own.shape[1], largest=False).indices
    output = with_experts(router, (hidden,), least)
    given = output[1] if family != "llama4" else output[0].gather(1, least)
    torch.testing.assert_close(given, gates(family, router, logits, least), rtol=1e-5, atol=1e-6)
    given.square().sum().backward()
    assert next(router.parameters()).grad.abs().sum() > 0


@pytest.mark.slow
def test_whose_routes_are_not_known():
    assert "words and pictures have experts of their own" in experts.policy("ernie4_5_vl_moe").unrouted
    assert cases.policy("qwen2_5_vl").unrouted == "" and not watched(cases.policy("qwen2_5_vl").model)


def seen_by_the_model(vlm, rollout):
    """The experts of all tokens of a conversation in transformers' own pass over it, [S, M, K], sorted."""
    found = []
    hooks = [r.register_forward_hook(lambda r, _, out: found.append(choice(r, out)[0])) for r in routers_of(vlm.model).values()]
    with torch.no_grad():
        cases.naive_states(vlm, rollout)
    for hook in hooks:
        hook.remove()
    return torch.stack(found, 1).sort(-1).values


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != LLAMA])  # whose processor gives pixels of 16 bits
def test_a_sampler_tells_the_experts_of_every_token_that_it_read(family):
    vlm = experts.policy(family)
    rollouts = experts.sampled(vlm, flip=False)
    for rollout in rollouts:
        routes, expected = rollout.routes, seen_by_the_model(vlm, rollout)
        told = torch.cat([routes.prompt_PMK, routes.after_AMK]).long().sort(-1).values
        assert len(told) == len(rollout.inputs.ids) + rollout.length - 1
        assert (told == expected[: len(told)]).float().mean() > 0.99  # where scores are nearly equal, rounding may decide
    assert rollouts[0].routes.prompt_PMK is rollouts[3].routes.prompt_PMK
    assert LocalGenerator(vlm).generate([rollouts[0].inputs], 1, replace(experts.SAMPLING, routes=False))[0][0].routes is None


def test_a_token_keeps_the_experts_with_which_it_was_first_read():
    """New routers come in the middle, and all that was read before is read again with them."""
    vlm = experts.policy()
    prompts = [cases.prompt(1), cases.prompt(4, 2)]
    inputs = [vlm.encode(prompt) for prompt in prompts]

    def other_routers():
        for router in routers_of(generator.policy.model).values():
            router.weight.data.neg_()

    generator = SnapshotGenerator(vlm, interrupt=True)
    plain = generator.generate(inputs, 3, experts.SAMPLING)
    generator.exchange = Planned({4: other_routers})
    found = generator.generate(inputs, 3, experts.SAMPLING)
    rollouts = iter(cases.as_rollouts(prompts, inputs, found))
    for one, two in zip((c for g in plain for c in g), (c for g in found for c in g), strict=True):
        assert torch.equal(one.routes.prompt_PMK, two.routes.prompt_PMK)
        assert torch.equal(one.routes.after_AMK[:3], two.routes.after_AMK[:3])
        assert len(two.routes.after_AMK) == len(two.token_ids) - 1 and (two.routes.after_AMK != UNKNOWN).all()
        later = two.routes.after_AMK[3:].long().sort(-1).values
        assert torch.equal(
            later, seen_by_the_model(generator.policy, next(rollouts))[len(two.routes.prompt_PMK) + 3 :][: len(later)]
        )


class Twice(Task):
    """A picture is shown in the second turn, too."""

    splits = ("train",)

    def prompts(self, split, seed):
        return [cases.prompt(1)]

    def environment(self, prompt):
        return Shows()


class Shows:
    def __init__(self):
        self.steps = 0

    def step(self, completion):
        self.steps += 1
        return Reply(messages=[user_message("and this?", cases.picture(9))], terminated=self.steps == 2)

    def close(self):
        """Nothing to close."""


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_vl_moe", "qwen3_5_moe"])
def test_routes_of_later_turns_follow_those_of_earlier_ones(family):
    vlm = experts.policy(family)
    collector = ConversationCollector(vlm, LocalGenerator(vlm), {"twice": Twice()})
    prompts = [replace(cases.prompt(1), task="twice"), replace(cases.prompt(4, 2), task="twice")]
    for rollout in collector.collect(prompts, collector.encode(prompts), 2, experts.SAMPLING):
        assert len(rollout.turns) == 2
        told = torch.cat([rollout.routes.prompt_PMK, rollout.routes.after_AMK]).long().sort(-1).values
        read = len(rollout.inputs.ids) + rollout.length + len(rollout.turns[1].observed_ids) - 1
        assert len(told) == read and (told == told.clamp_min(0)).all()


def test_routes_go_on_where_they_ended():
    one, two = torch.zeros(3, 1, 2, dtype=torch.int16), torch.ones(8, 1, 2, dtype=torch.int16)
    found = Routes(one, one[:2]).then(Routes(two, two[:1]))
    assert found.prompt_PMK is one and found.after_AMK[:, 0, 0].tolist() == [0, 0, 1, 1, 1, 1]
