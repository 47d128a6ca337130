"""IQL: its losses and gradients equal those of CORL's code, it learns from offline data alone, and it resumes bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from linear_qs import Linear
from mmrl.api.errors import UserError
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.actors import NoisyTanh, SquashedNormal
from mmrl.train.update.iql import Iql
from mmrl.train.update.replay import Drawn, Episode, Layout, Replay

STAGE = {
    "kind": "off-policy",
    "steps": 1,
    "batch_size": 64,
    "updates": 1,
    "critics": 2,
    "hidden": [32, 32],
    "learning_rate": 3e-3,
}
ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "iql.jsonl").read_text().splitlines()]


def learner(actor: SquashedNormal | None = None, features: int = 1, *, how: dict[str, Any] | None = None, **keys: Any) -> Iql:
    torch.manual_seed(3)
    stage = OffPolicyStage(**(STAGE | {"iql": how or {}} | keys))
    return Iql(actor or SquashedNormal(features, 1, hidden=(32, 32)), features, stage, 3)


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_losses_and_gradients_are_those_of_public_code(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = {name: torch.tensor(value) for name, value in row.items()}
    actor = SquashedNormal(3, 2)
    actor.body, actor.head = nn.Sequential(), nn.Linear(3, 4, bias=False)
    with torch.no_grad():
        actor.head.weight.copy_(x["policy"].T)
    agent = learner(actor, 3, how={name: row[name] for name in ("expectile", "inverse_temperature")}, target_rate=0.005)
    agent.critic, agent.target, agent.values = Linear(x["qs"]), Linear(x["target_qs"]), Linear(x["values"][None])  # type: ignore[assignment]
    own: dict[str, list[nn.Parameter]] = {
        "critic": [agent.critic.weights],  # type: ignore[list-item]
        "values": [agent.values.weights],  # type: ignore[union-attr,list-item]
        "actor": [actor.head.weight],
    }
    losses, gradients = {}, {}

    def stepped(name: str, loss: torch.Tensor, step: int) -> dict[str, float]:
        """As an optimiser with the learning rate 1, so that what is computed with weights after their update shows."""
        losses[name], (gradients[name],) = loss.item(), torch.autograd.grad(loss, own[name])
        with torch.no_grad():
            own[name][0] -= gradients[name] / (2 if name == "critic" else 1)
        return {"grad_norm": 0.0}

    monkeypatch.setattr(agent, "stepped", stepped)
    drawn = Drawn(
        seen_nF=x["features"],
        actions_nA=x["actions"],
        rewards_n=x["rewards"],
        discounts_n=row["discount"] * (1 - x["terminated"]),
        after_nF=x["after"],
        paid_n=torch.full((5,), torch.nan),
        weights_n=torch.ones(5),
        places_n=torch.arange(5),
        last_n=torch.arange(5),
    )
    agent._update_critic(drawn, torch.Generator(), 0)
    agent._update_actor(drawn, 0)
    # the public code takes the mean of its two critics' losses, ours is their sum
    assert losses == pytest.approx(
        {"critic": 2 * row["qs_loss"], "values": row["values_loss"], "actor": row["loss"]}, rel=2e-5, abs=2e-6
    )
    assert torch.allclose(gradients["critic"], 2 * x["qs_gradient"], atol=5e-6)
    assert torch.allclose(gradients["values"][0], x["values_gradient"], atol=5e-6)
    assert torch.allclose(gradients["actor"].T, x["policy_gradient"], rtol=2e-5, atol=2e-5)
    assert torch.allclose(agent.target.weights, x["target_qs_after"], atol=2e-6)  # type: ignore[arg-type]


def line(seed: int, good: float) -> Episode:
    """A step on a line, from anywhere, by an action that is good with this chance: it is paid 1 near 0.5, and else 0."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.rand(1, 1, generator=generator) * 2 - 1
    near = torch.rand(1, generator=generator) < good
    action = torch.where(near, torch.tensor(0.5), torch.tensor(-0.5))[None] + torch.randn(1, 1, generator=generator) * 0.05
    paid = (action[:, 0] > 0).float()
    return Episode(seen_TF=at, after_TF=at, actions_TA=action, rewards_T=paid, terminated=True)


def memory(good: float, count: int = 300) -> Replay:
    replay = Replay(Layout(simulator="line", action=1, features=1), 1000, gamma=0.5)
    for n in range(count):
        replay.add(line(n, good))
    return replay


def likeliest(agent: Iql) -> float:
    """The mean of its likeliest actions."""
    places = torch.linspace(-1, 1, 21)[:, None]
    return float(agent.actor.sample(places, torch.zeros(21, 1))[0].detach().mean())


def test_it_learns_the_better_actions_of_offline_data_alone() -> None:
    """A third of the data is good. Who imitates all of it alike chooses in between, and IQL what is good."""
    nothing, offline = Replay(Layout(simulator="line", action=1, features=1), 1000, gamma=0.5), memory(good=1 / 3)
    found = {}
    for beta in (0.0, 10.0):
        agent = learner(how={"inverse_temperature": beta})
        for _ in range(200):
            metrics = agent.update(nothing, offline)
        found[beta] = likeliest(agent)
        assert beta or metrics["off_policy/imitated_weight"] == 1.0
    assert found[10.0] > 0.35, found
    assert found[0.0] < 0.1, found


def test_weights_are_clipped() -> None:
    agent = learner(how={"inverse_temperature": 1e4, "max_weight": 7.0})
    for _ in range(3):
        metrics = agent.update(memory(0.5))
    assert 0 < metrics["off_policy/imitated_weight"] <= 7.0


def test_it_resumes_bit_for_bit() -> None:
    online, offline = memory(0.5), memory(0.2)
    whole, stopped = learner(), learner()
    for _ in range(6):
        whole.update(online, offline)
    for _ in range(3):
        stopped.update(online, offline)
    resumed = learner()
    resumed.load_state(stopped.state())
    for _ in range(3):
        resumed.update(online, offline)
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name


@pytest.mark.parametrize(
    ("actor", "told"),
    [
        (NoisyTanh(1, 1, noise=0.1), r"stages\.iql learns how far actions spread, and policy\.options\.noise is fixed: .* 0"),
        (SquashedNormal(2, 1, residual=0.5), r"a residual policy chooses corrections: set policy\.options\.residual = 0"),
    ],
)
def test_policies_that_it_can_not_teach_are_refused(actor: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        learner(actor, 2)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"iql": {}, "td3": {}}, "td3 and iql are two ways in which a policy learns: drop one of them"),
        ({"iql": {}, "conservative": 1.0}, r"conservative has no effect without other critics than IQL's \(iql\)"),
        ({"iql": {}, "subset": 1}, r"subset has no effect without other critics than IQL's \(iql\)"),
        ({"iql": {}, "backup_entropy": True}, "backup_entropy has no effect without a soft actor-critic, and iql is another way"),
        ({"iql": {"expectile": 1.0}}, "less than 1"),
        ({"iql": {"expectile": 0.0}}, "greater than 0"),
        ({"iql": {"max_weight": 0.0}}, "greater than"),
        ({"offline_steps": 1}, "offline_steps learn from offline data: set offline, or drop them"),
        ({"offline": "expert", "offline_updates": 3}, "offline_updates has no effect without offline_steps"),
        ({"offline": "expert", "offline_steps": 3}, "offline_steps = 3 of steps = 1: give at most as many as there are"),
        ({"offline": "expert", "steps": 9, "offline_steps": 2, "explore_steps": 2}, "offline_steps play none: drop one"),
    ],
)
def test_settings_that_go_together_badly_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        OffPolicyStage(**(STAGE | keys))
