"""PA-RL: where its candidates come from, what its critics learn from them, and what its policy imitates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mmrl.algorithms import off_policy
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import OffPolicyStage, PolicyConfig
from mmrl.policies.load import make_policy
from mmrl.policies.squashed import Squashed
from mmrl.train.update.candidates import OfFeatures, OfScenes
from mmrl.train.update.improving import Improving
from mmrl.train.update.learner import Learner
from mmrl.train.update.replay import Drawn, draw_mixed
from mmrl.train.update.scenes import BothScenes
from remembered import both

STAGE = {"kind": "off-policy", "steps": 1, "batch_size": 8, "updates": 2, "critics": 3, "subset": 2, "hidden": [16]}
HOW = {"candidates": 6, "keep": 2, "steps": 2, "step_size": 0.05, "batch_size": 5}
FLOW = {"kind": "robotics/small", "model": "mlp", "options": {"dims": 1, "state": 2, "hidden": [8], "head": "flow"}}
SQUASHED = {"kind": "squashed", "model": "mlp", "options": {"dims": 1, "state": 2, "hidden": [8]}}


def improving(policy: dict[str, Any] = SQUASHED, **keys: Any) -> Improving:
    made, stage = make_policy(PolicyConfig(**policy), device="cpu", seed=2), OffPolicyStage(**(STAGE | {"improve": HOW} | keys))
    scenes = BothScenes(both([4, 5, 3], 20)[1], both([6], 6)[1])
    source = OfFeatures(made, 6) if isinstance(made, Squashed) else OfScenes(made, 6, scenes)
    return Improving(Learner(made, stage), source, 2, 1, stage, 5)


def drawn(n: int = 8, seed: int = 0) -> Drawn:
    return draw_mixed(both([4, 5, 3], 20)[0], both([6], 6)[0], n, seed, share=0.5)


def test_candidates_of_scenes_are_samples_of_the_policy_where_transitions_begin_and_end() -> None:
    source = improving(FLOW).source
    assert isinstance(source, OfScenes)
    source.renew(11)
    some, nothing = drawn(), torch.Generator()
    for after in (False, True):
        features = some.after_nF if after else some.seen_nF
        found = source.of(some, after, nothing)
        assert found.shape == (8, 6, 1) and found.abs().max() <= 1
        for n in range(8):
            is_old = bool(some.places_n[n] < 0)
            place = (some.last_n if after else some.places_n)[n : n + 1]
            scenes = source.scenes.offline if is_old else source.scenes.online
            assert scenes is not None
            (row,) = scenes.rows_of(-1 - place if is_old else place, after)
            alone = Observation(images={}, state=features[n : n + 1], instructions=[""])
            calls = torch.tensor([2 * row + is_old])
            expected = source.policy.candidates(alone, torch.tensor([11]), calls, 6)
            assert torch.allclose(found[n], expected[0, :, :, 0], atol=1e-6), (
                "of the observation alone, whatever is drawn with it"
            )
    before = source.of(some, False, nothing)
    assert torch.equal(before, source.of(some, False, nothing)), "kept until the policy changes"
    source.renew(12)
    assert not torch.equal(before, source.of(some, False, nothing))


def test_the_target_is_the_lowest_of_some_critics_at_the_best_action_that_was_found() -> None:
    learner, some = improving(), drawn()
    with torch.no_grad():  # the target critics are others, so that the test sees which are asked
        for parameter in learner.target.parameters():
            parameter.add_(0.05)
    found = learner.following(some, torch.Generator().manual_seed(3))
    again = torch.Generator().manual_seed(3)
    candidates = learner.source.of(some, True, again)
    subset = torch.randperm(3, generator=again)[:2]
    for n in range(8):
        features = some.after_nF[n : n + 1]
        q = lambda actions: learner.critic(features, actions).mean(0)  # noqa: B023, E731
        best = off_policy.improve(candidates[n : n + 1], q, keep=2, steps=2, step_size=0.05)[0][:, 0]
        assert learner.critic(features, best).mean() >= learner.critic(features, candidates[n : n + 1]).mean(0).max() - 1e-6
        expected = min(float(learner.target(features, best)[e, 0].detach()) for e in subset)
        assert found[n].item() == pytest.approx(expected, abs=1e-5)


def test_the_penalty_needs_no_density_and_has_the_data_s_action_among_the_candidates() -> None:
    """As in the public code with `cql_importance_sample = False`: log mean exp over random actions, the best one here and the
    best one there, each of them counted so often, and the data's; the policy's are at least the return."""
    learner, some = improving(conservative=1.0, conservative_samples=2), drawn()
    q_En = learner.critic(some.seen_nF, some.actions_nA)
    found = learner.contrasted(some, q_En, torch.Generator().manual_seed(9)).item()
    again = torch.Generator().manual_seed(9)
    here = learner.best(some.seen_nF, learner.source.of(some, False, again))
    there = learner.best(some.after_nF, learner.source.of(some, True, again))
    anywhere = torch.rand(8, 2, 1, generator=again) * 2 - 1
    slow = 0.0
    for e in range(3):
        for n in range(8):
            ask = lambda action: float(learner.critic(some.seen_nF[n : n + 1], action[None])[e, 0].detach())  # noqa: B023, E731
            paid = float(some.paid_n[n])
            qs = [ask(a) for a in anywhere[n]] + [max(ask(a), paid) for a in (here[n], here[n], there[n], there[n])]
            qs.append(float(q_En[e, n].detach()))
            slow += (np.log(np.mean(np.exp(qs))) - qs[-1]) / 8
    assert found == pytest.approx(slow, abs=1e-5)


@pytest.mark.parametrize("policy", [SQUASHED, FLOW], ids=["squashed", "flow"])
def test_what_is_imitated_is_the_best_action_where_the_transition_begins(policy: dict[str, Any]) -> None:
    learner = improving(policy)
    online, offline = both([4, 5, 3], 20)[0], both([6], 6)[0]
    some, best, metrics = learner.imitated(online, offline, 0)
    assert best.shape == (5, 1) and best.abs().max() <= 1 and metrics["off_policy/gain"] > 0
    shown = learner.source.imitations(some, best)
    for n, rollout in enumerate(shown):
        track = rollout.data
        assert track is not None and rollout.is_demonstration and track.valid_TK.tolist() == [[True]]
        if policy is FLOW:
            assert track.state is not None and torch.equal(track.state[0], some.seen_nF[n])
            assert torch.equal(track.choices[0, 0, 0], best[n])
        else:
            assert torch.equal(track.choices[0, 0, :2], some.seen_nF[n])
            assert torch.allclose(track.choices[0, 0, 2:].tanh(), best[n], atol=1e-4)


def test_an_action_is_drawn_by_its_q_and_without_a_temperature_it_is_the_best() -> None:
    learner, some = improving(), drawn()
    candidates = learner.source.of(some, False, torch.Generator().manual_seed(1))
    actions, q_nk = learner.improved(some.seen_nF, candidates)
    assert torch.equal(learner.picked(some.seen_nF, candidates, 0.0, torch.full((8,), 0.999)), actions[:, 0])
    for n in range(8):
        chances = np.exp(q_nk[n].double().numpy() / 0.1)
        chances /= chances.sum()
        for at in (0.01, chances[0] - 1e-3, chances[0] + 1e-3, 0.99):
            found = learner.picked(some.seen_nF, candidates, 0.1, torch.full((8,), float(at)))
            assert torch.equal(found[n], actions[n, int(np.searchsorted(np.cumsum(chances), at))])


def test_the_data_s_action_climbs_in_place_of_the_worst_that_is_kept() -> None:
    """Where the policy imitates, as in the public code, and not in the target or the penalty."""
    learner = improving(improve=HOW | {"data_action": True, "imitation_temperature": 1e9, "steps": 1, "step_size": 1e-9})
    online, offline, seen = both([4, 5, 3], 20)[0], both([6], 6)[0], set()
    for number in range(20):
        some, found, _ = learner.imitated(online, offline, number)
        seen |= {n for n in range(5) if torch.allclose(found[n], some.actions_nA[n], atol=1e-5)}
    assert len(seen) == 5, "with a high temperature every second one is the data's"
    plain = improving(improve=HOW | {"steps": 1, "step_size": 1e-9})
    some, found, _ = plain.imitated(online, offline, 0)
    assert not torch.isclose(found, some.actions_nA, atol=1e-5).any()


def test_iql_s_target_is_its_value_and_the_value_an_expectile_of_the_target_critics() -> None:
    """The losses of one update are of the weights before it, as in the public code: the target uses the value before the value
    learns, and the value the target critics before they move."""
    learner, some = improving(improve=HOW | {"expectile": 0.8}, updates=1, batch_size=8, offline_share=0.5, offline="x"), drawn()
    assert learner.values is not None
    with torch.no_grad():
        for parameter in learner.target.parameters():
            parameter.add_(0.05)
    value = lambda seen: float(learner.value_of(seen[None])[0].detach())  # noqa: E731
    targets = [float(some.rewards_n[n] + some.discounts_n[n] * value(some.after_nF[n])) for n in range(8)]
    slow, lowest, slopes = 0.0, [], []
    for n in range(8):
        lowest.append(float(learner.target(some.seen_nF[n : n + 1], some.actions_nA[n : n + 1])[:, 0].min().detach()))
        error = lowest[n] - value(some.seen_nF[n])
        side = 0.8 if error > 0 else 0.2
        slow += side * error**2 * float(some.weights_n[n]) / 8
        slopes.append(-2 * side * error * float(some.weights_n[n]) / 8)
    q_En = learner.critic(some.seen_nF, some.actions_nA).detach()
    expected = sum(float((q_En[e, n] - targets[n]) ** 2) * float(some.weights_n[n]) / 8 for e in range(3) for n in range(8))
    before = {name: x.clone() for name, x in learner.values.named_parameters()}
    _, figures = learner._update_critic(some, torch.Generator().manual_seed(3), 0)
    assert figures["value_loss"] == pytest.approx(expected, rel=1e-5)
    assert figures["off_policy/expectile_loss"] == pytest.approx(slow, rel=1e-4)
    # the bias of the last layer has the sum of the slopes as its gradient, so that Adam's first step has its sign
    moved = learner.values.layers[-1].bias - before["layers.1.bias"]
    assert moved.item() * sum(slopes) < 0


def test_iql_s_values_begin_anew_with_the_critics_after_the_policy_explored() -> None:
    """What was paid for novelty must not stay in the targets of the reward."""
    learner = improving(improve=HOW | {"expectile": 0.8}, steps=9, explore_steps=3)
    assert learner.values is not None
    first = {name: x.clone() for name, x in learner.values.state_dict().items()}
    learner.update(both([4, 5, 3], 20)[0], step=0)
    learner.begin_anew()
    fresh = learner.values.state_dict()
    assert not torch.equal(fresh["layers.0.weight"], first["layers.0.weight"]), "other first weights"
    assert not learner.optimizers["values"].rule.state, "no running means of the gradients by novelty"
    other = improving(improve=HOW | {"expectile": 0.8}, steps=9, explore_steps=3)
    other.begin_anew()
    assert other.values is not None
    assert all(torch.equal(x, fresh[name]) for name, x in other.values.state_dict().items()), "nothing learned is left"


def test_many_actions_of_an_observation_have_the_qs_that_each_has_alone() -> None:
    critic, seen, actions = improving().critic, torch.randn(4, 2), torch.randn(4, 3, 1)
    for m in range(3):
        assert torch.allclose(critic(seen, actions)[:, :, m], critic(seen, actions[:, m]), atol=1e-6)
