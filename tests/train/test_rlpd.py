"""RLPD: what its updates do, and that it resumes bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.action_values import ActionValues
from mmrl.policies.actors import SquashedNormal
from mmrl.train.update.replay import Episode, Layout, Replay
from mmrl.train.update.rlpd import Rlpd

STAGE = {"kind": "off-policy", "steps": 1, "batch_size": 64, "updates": 4, "critics": 4, "hidden": [32, 32]}
STAGE |= {"learning_rate": 3e-3, "start_temperature": 0.1}
BINS = {"low": -2.0, "high": 1.0, "bins": 21}
GAMMA = 0.5


def learner(seed: int, features: int = 1, **keys: Any) -> Rlpd:
    torch.manual_seed(seed)
    return Rlpd(SquashedNormal(features, 1, hidden=(32, 32)), features, OffPolicyStage(**(STAGE | keys)), seed)


def walk(policy: Rlpd | None, seed: int, terminated: bool = True, count: int = 3) -> Episode:
    """Steps on a line: an action moves a quarter of itself, and what is paid is minus the square of the distance to 0.3."""
    generator = torch.Generator().manual_seed(seed)
    at, seen, actions = torch.rand(1, generator=generator) * 2 - 1, [], []
    for _ in range(count):
        seen.append(at)
        noise = torch.randn(1, 1, generator=generator)
        actions.append(noise[0].clamp(-1, 1) if policy is None else policy.act(at[None], noise)[0])
        at = at + actions[-1] / 4
    places = torch.stack([*seen, at])
    rewards = -(places[1:, 0] - 0.3).square()
    return Episode(
        seen_TF=places[:-1], after_TF=places[1:], actions_TA=torch.stack(actions), rewards_T=rewards, terminated=terminated
    )


def memory(count: int, first: int = 0, **options: float) -> Replay:
    replay = Replay(Layout(simulator="line", action=1, features=1), 1000, gamma=GAMMA, **options)
    for n in range(count):
        replay.add(walk(None, first + n))
    return replay


def test_an_ensemble_is_so_many_networks_side_by_side() -> None:
    torch.manual_seed(0)
    many = ActionValues(3, 2, critics=3, hidden=(8, 5))
    seen, actions = torch.randn(4, 3), torch.randn(4, 6, 2)
    found = many(seen, actions).detach().numpy()
    for e, n, m in np.ndindex(3, 4, 6):
        x = torch.cat([seen[n], actions[n, m]]).numpy()
        for k, layer in enumerate(many.layers):
            x = x @ layer.weight[e].detach().numpy() + layer.bias[e, 0].detach().numpy()
            if k < 2:
                x = np.maximum((x - x.mean()) / np.sqrt(x.var() + 1e-5), 0)
        assert found[e, n, m] == pytest.approx(x[0], abs=1e-5)
    assert torch.allclose(many(seen, actions[:, 2]), many(seen, actions)[:, :, 2], atol=1e-6)


def test_the_squashed_density_sums_to_one_and_has_a_gradient() -> None:
    torch.manual_seed(1)
    policy = SquashedNormal(1, 1, hidden=(4,)).double()
    seen = torch.full((1, 1), 0.7, dtype=torch.float64)
    noise = torch.linspace(-8, 8, 4001, dtype=torch.float64)[None, :, None]
    actions, logprobs = policy.sample(seen, noise)
    mass = torch.trapezoid(logprobs[0].exp(), actions[0, :, 0])
    assert mass.item() == pytest.approx(1.0, abs=1e-4)
    assert policy.sample(seen, torch.full((1, 1), 1e3, dtype=torch.float64))[1].isfinite().all()  # far out, where tanh is 1
    actions.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.head.parameters())


@pytest.mark.parametrize("bins", [{}, BINS], ids=["numbers", "bins"])
def test_critics_learn_what_a_terminated_and_a_cut_off_step_are_worth(bins: dict[str, Any]) -> None:
    """All is the same place; a step pays -0.5. Terminated it is worth -0.5, cut off -0.5 / (1 - gamma) = -1."""
    worth = {}
    for terminated in (True, False):
        replay = Replay(Layout(simulator="still", action=1, features=1), 100, gamma=GAMMA)
        for n in range(20):
            action = torch.rand(1, 1, generator=torch.Generator().manual_seed(n)) * 2 - 1
            still, paid = torch.zeros(1, 1), torch.full((1,), -0.5)
            replay.add(Episode(seen_TF=still, after_TF=still, actions_TA=action, rewards_T=paid, terminated=terminated))
        agent = learner(0, **bins, updates=70, target_rate=0.2, learning_rate=1e-2)
        worth[terminated] = agent.update(replay)["value"]
    assert worth[True] == pytest.approx(-0.5, abs=0.06)
    assert worth[False] == pytest.approx(-1.0, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("conservative", [0.0, 0.1])
def test_it_learns_to_walk_to_the_place_that_pays(conservative: float) -> None:
    offline, online = memory(40), memory(5, 100)
    agent = learner(3, conservative=conservative)
    starts = torch.tensor([[-1.0], [0.3], [1.0]])

    def far() -> float:
        return (agent.act(starts, torch.zeros(3, 1))[:, 0] - torch.tensor([1.0, 0.0, -1.0])).abs().max().item()

    before = far()
    for n in range(50):
        agent.update(online, offline)
        online.add(walk(agent, 1000 + n))
    assert before > 0.6 and far() < 0.35


def test_a_resumed_run_is_the_run_bit_for_bit(tmp_path: Path) -> None:
    options = {"conservative": 1.0, "n_step": 3, "ema_decay": 0.9}
    whole, offline, online = learner(7, **options), memory(10), memory(5, 50, alpha=0.6, beta=0.4)
    whole.update(online, offline)
    online.save(tmp_path / "replay.safetensors")
    resumed, again = learner(7, **options), memory(0, alpha=0.6, beta=0.4)
    resumed.load_state(whole.state())
    again.load(tmp_path / "replay.safetensors")
    for agent, replay in ((whole, online), (resumed, again)):
        for _ in range(2):
            agent.update(replay, offline)
            replay.add(walk(agent, 9, terminated=False))
    theirs = resumed.state()
    assert whole.state().keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in whole.state().items())


def test_targets_move_by_their_rate_alone() -> None:
    agent, replay = learner(2, critics=2, subset=2, updates=1, target_rate=0.25), memory(5)
    before = [p.clone() for p in agent.target.parameters()]
    agent.update(replay)
    for old, new, source in zip(before, agent.target.parameters(), agent.critic.parameters(), strict=True):
        assert torch.allclose(new, old + 0.25 * (source - old), atol=1e-7) and not torch.equal(new, source)
        assert new.grad is None


def test_targets_are_those_of_the_target_critics_and_set_priorities() -> None:
    """With target critics that say 0, a target is the reward alone, whatever the critics that learn say."""
    agent, replay = learner(2, critics=2, subset=2, updates=1, batch_size=256), memory(5)
    with torch.no_grad():
        for weights in agent.target.parameters():
            weights.zero_()
    kept = {name: x[: len(replay)] for name, x in replay._kept.items()}
    q = agent.critic(kept["seen"], kept["actions"]).detach()
    assert q.abs().min() > 1e-4
    agent.update(replay)
    assert torch.allclose(kept["priorities"].float(), (q - kept["rewards"]).abs().mean(0) + 1e-6, atol=1e-6)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="make the sizes equal"):
        learner(0, features=2).load_state(learner(0).state())
    with pytest.raises(UserError, match="conservative needs the density of actions"):
        Rlpd(SquashedNormal(1, 1, residual=0.1), 1, OffPolicyStage(**STAGE, conservative=1.0), 0)


def test_the_policy_s_update_leaves_its_critics_alone_and_the_other_way_round() -> None:
    agent, replay = learner(4, critics=2, subset=2, updates=1), memory(5)
    drawn, noise = replay.draw(32, 0), torch.Generator().manual_seed(0)
    before = {name: x.clone() for name, x in agent.state().items()}
    agent._update_actor(drawn, noise, 0)
    after = agent.state()
    assert all(torch.equal(x, after[name]) for name, x in before.items() if name.startswith(("critic", "target")))
    assert not torch.equal(before["actor/head.weight"], after["actor/head.weight"])
    agent._update_critic(drawn, noise, 0)
    last = agent.state()
    assert all(torch.equal(x, last[name]) for name, x in after.items() if name.startswith("actor"))
    assert not torch.equal(after["critic/layers.0.weight"], last["critic/layers.0.weight"])


def test_a_residual_policy_begins_at_its_base_and_stays_near_it() -> None:
    policy = SquashedNormal(5, 2, hidden=(8,), residual=0.25)
    features = torch.rand(6, 5) * 2 - 1
    noise = torch.randn(6, 3, 2, generator=torch.Generator().manual_seed(0)) * 5
    assert torch.equal(policy.sample(features, torch.zeros(6, 2))[0], features[:, -2:])
    actions, _ = policy.sample(features, noise)
    expected = (features[:, None, -2:] + 0.25 * noise.tanh()).clamp(-1, 1)  # its first standard deviation is 1
    assert torch.allclose(actions, expected, atol=1e-6)


def test_actions_at_the_ends_are_imitated_just_inside_of_them() -> None:
    """Where the number before tanh is 7, a wide normal around 0 is likelier than a narrow one at 5: the mean learns nothing."""
    policy = SquashedNormal(1, 2)
    actions, inside = torch.tensor([[1.0, -1.0], [0.3, 0.0]]), torch.tensor([[0.99, -0.99], [0.3, 0.0]])
    assert torch.allclose(policy.action(actions, policy.chosen(actions)), inside, atol=2e-6)


def test_while_it_explores_novelty_is_paid_in_standard_deviations_and_the_critics_then_begin_anew() -> None:
    """The target of each update against a slow reference, and the deviation over all that was paid so far."""
    policy, online = learner(2, explore_steps=3, steps=9, updates=1, subset=4), memory(12)
    first = {name: x.clone() for name, x in policy.critic.state_dict().items()}
    paid: list[float] = []
    for number in range(3):
        online.add(walk(None, 100 + number))
        seen = online.states.numpy()
        drawn = online.draw(64, derive(2, "off-policy", number, 0))
        far = np.array([np.sort(np.abs(seen[:, 0] - s))[5] for s in drawn.seen_nF[:, 0].numpy()])
        paid += far.tolist()
        generator = torch.Generator().manual_seed(derive(derive(2, "off-policy", number, 0), "noise"))
        following = policy.following(drawn, generator).detach().numpy()
        q = policy.critic(drawn.seen_nF, drawn.actions_nA).detach().numpy()
        targets = far / np.std(paid) + drawn.discounts_n.numpy() * following
        figures = policy.update(online, step=number)
        assert figures["value_loss"] == pytest.approx(((q - targets) ** 2).mean(1).sum(), rel=1e-4)
        assert figures["off_policy/novelty"] == pytest.approx(far.mean(), rel=1e-5)
    assert policy.novelty.std == pytest.approx(np.std(paid))
    again = learner(2, explore_steps=3, steps=9, updates=1)
    again.load_state(policy.state())
    assert again.novelty.std == policy.novelty.std
    assert "off_policy/novelty" not in policy.update(online, step=3)
    policy.begin_anew()
    fresh = policy.critic.state_dict()
    assert all(torch.equal(x, policy.target.state_dict()[name]) for name, x in fresh.items())
    assert not torch.equal(fresh["layers.0.weight"], first["layers.0.weight"]), "other first weights"
    other = learner(2, explore_steps=3, steps=9, updates=1)
    other.begin_anew()
    assert all(torch.equal(x, fresh[name]) for name, x in other.critic.state_dict().items()), "nothing learned is left"
