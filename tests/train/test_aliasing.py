"""DSRL-NA: its losses and gradients equal those of its published code, its critics of noise learn what the base does with noise
that nobody chose, and it resumes bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from linear_qs import Linear
from mmrl.api.errors import UserError
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.actors import Actor, NoisyTanh, SquashedNormal
from mmrl.train.update.aliasing import NoiseAliased
from mmrl.train.update.replay import Drawn, Episode, Layout, Replay

STAGE = {"kind": "off-policy", "steps": 2, "batch_size": 64, "updates": 2, "critics": 2, "hidden": [32, 32]}
STAGE |= {"learning_rate": 3e-3, "start_temperature": 0.1}
ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "dsrl_na.jsonl").read_text().splitlines()]


class Ramp:
    """A base on a line that does tanh of its noise, with the sign of where it is."""

    def of(self, drawn: Drawn, after: bool, noise_nA: torch.Tensor) -> torch.Tensor:
        features = drawn.after_nF if after else drawn.seen_nF
        return features.sign() * noise_nA.tanh()


def learner(actor: Actor | None = None, how: Any = None, **keys: Any) -> NoiseAliased:
    torch.manual_seed(3)
    stage = OffPolicyStage(**(STAGE | {"noise_aliasing": how or {"updates": 3}} | keys))
    return NoiseAliased(actor or SquashedNormal(1, 1, hidden=(32, 32)), Ramp(), 1, 1, stage, 3, 1.5)


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_losses_and_gradients_are_those_of_published_code(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = {name: torch.tensor(value) for name, value in row.items()}
    actor = SquashedNormal(3, 4)
    actor.body, actor.head = nn.Sequential(), nn.Linear(3, 8, bias=False)
    with torch.no_grad():
        actor.head.weight.copy_(x["policy"].T)

    class Base:
        def of(self, drawn: Drawn, after: bool, noise_nA: torch.Tensor) -> torch.Tensor:
            features = drawn.after_nF if after else drawn.seen_nF
            return (torch.cat([features, row["reach"] * noise_nA], 1) @ x["base"]).tanh()

    keys = {"start_temperature": row["temperature"], "target_entropy": row["aim"], "backup_entropy": True, "target_rate": 0.005}
    stage = OffPolicyStage(**(STAGE | keys | {"noise_aliasing": {}}))
    agent = NoiseAliased(actor, Base(), 3, 4, stage, 3, row["reach"])
    agent.critic, agent.target, agent.noise_critic = (Linear(x[name]) for name in ("qs", "target_qs", "noise_qs"))  # type: ignore[assignment]
    own: dict[str, nn.Parameter] = {"critic": agent.critic.weights, "noise_critic": agent.noise_critic.weights}  # type: ignore[dict-item]
    own |= {"actor": actor.head.weight, "temperature": agent.log_temperature}
    losses, gradients = {}, {}

    def stepped(name: str, loss: torch.Tensor, step: int) -> dict[str, float]:
        """As an optimiser with the learning rate 1, so that what is computed with weights after their update shows."""
        losses[name], (gradients[name],) = loss.item(), torch.autograd.grad(loss, own[name])
        with torch.no_grad():
            own[name] -= gradients[name] / (2 if name == "critic" else 1)
        return {"grad_norm": 0.0}

    noises: Iterator[torch.Tensor] = iter([x["noise_there"], x["noise_here"], x["noise_any"]])
    monkeypatch.setattr(agent, "stepped", stepped)
    monkeypatch.setattr(agent, "noise", lambda shape, generator: next(noises))

    def drawn(batch: str) -> Drawn:
        return Drawn(
            seen_nF=x[f"{batch}features"],
            actions_nA=x[f"{batch}actions"],
            rewards_n=x[f"{batch}rewards"],
            discounts_n=row["discount"] * (1 - x["terminated"]),
            after_nF=x[f"{batch}after"],
            paid_n=torch.full((5,), torch.nan),
            weights_n=torch.ones(5),
            places_n=torch.arange(5),
            last_n=torch.arange(5),
        )

    agent._update_critic(drawn(""), torch.Generator(), 0)
    agent.distil(drawn("later_"), torch.Generator(), 0)
    # the published code takes half of the squared errors
    expected = {"critic": 2 * row["qs_loss"], "noise_critic": 2 * row["noise_qs_loss"], "actor": row["loss"]}
    assert {name: losses[name] for name in expected} == pytest.approx(expected, rel=2e-5, abs=5e-6)
    assert torch.allclose(gradients["critic"], 2 * x["qs_gradient"], rtol=1e-5, atol=1e-5)
    assert torch.allclose(gradients["noise_critic"], 2 * x["noise_qs_gradient"], rtol=1e-5, atol=1e-5)
    assert torch.allclose(gradients["actor"].T, x["policy_gradient"], rtol=1e-5, atol=1e-5)
    # there the logarithm of the temperature is multiplied by the error, and here the temperature
    assert gradients["temperature"].item() == pytest.approx(row["temperature"] * row["temperature_gradient"], abs=1e-5)
    assert torch.allclose(agent.target.weights, x["target_qs_after"], atol=2e-6)  # type: ignore[arg-type]


def memory(count: int = 300) -> Replay:
    """Steps on a line by actions of a base that nobody steers: one is paid what it does to the right."""
    replay = Replay(Layout(simulator="line", action=1, features=1), 1000, gamma=0.5)
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        at = torch.rand(1, 1, generator=generator) * 2 - 1
        action = torch.randn(1, 1, generator=generator).tanh()
        replay.add(Episode(seen_TF=at, after_TF=at, actions_TA=action, rewards_T=action[:, 0], terminated=True))
    return replay


def test_it_learns_noise_from_actions_whose_noise_nobody_knows() -> None:
    """The base turns noise round on the left: there the policy chooses the lowest, and on the right the highest."""
    agent, offline = learner(updates=4), memory()
    nothing = Replay(offline.layout, 10, gamma=0.5)
    for _ in range(150):
        metrics = agent.update(nothing, offline)
    places = torch.tensor([[-0.8], [-0.3], [0.3], [0.8]])
    chosen = agent.act(places, torch.zeros(4, 1))[:, 0]
    assert (chosen * places[:, 0].sign()).min() > 0.6, chosen
    said = agent.noise_critic(places, torch.tensor([[2.0], [2.0], [2.0], [2.0]]) / 3).mean(0)
    worth = places[:, 0].sign() * torch.tensor(1.0).tanh()  # of noise 1, in units of reach = 1.5
    assert torch.allclose(said, worth, atol=0.25), (said, worth)
    assert metrics["off_policy/noise_value_loss"] < 0.02


def test_critics_of_noise_learn_so_many_times_and_the_policy_as_often_as_the_critics(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, made = learner(updates=2, how={"updates": 5}), list[str]()
    stepped = agent.stepped

    def counted(name: str, loss: torch.Tensor, step: int) -> dict[str, float]:
        made.append(name)
        return stepped(name, loss, step)

    monkeypatch.setattr(agent, "stepped", counted)
    agent.update(memory(20))
    assert made == ["critic", "actor", "temperature"] * 2 + ["noise_critic"] * 5


def test_what_explored_begins_anew() -> None:
    agent, online = learner(), memory(50)
    agent.update(online)
    before = {name: x.clone() for name, x in agent.noise_critic.state_dict().items()}
    agent.begin_anew()
    assert all(not torch.equal(x, before[name]) for name, x in agent.noise_critic.state_dict().items())
    assert not any(x.any() for name, x in agent.optimizers["noise_critic"].state().items() if "exp_avg" in name)


def test_it_resumes_bit_for_bit() -> None:
    online, offline = memory(40), memory(20)
    whole, stopped, resumed = learner(), learner(), learner()
    for _ in range(4):
        whole.update(online, offline)
    for _ in range(2):
        stopped.update(online, offline)
    resumed.load_state(stopped.state())
    for _ in range(2):
        resumed.update(online, offline)
    assert all(torch.equal(x, resumed.state()[name]) for name, x in whole.state().items())


def test_a_policy_whose_noise_is_fixed_is_refused() -> None:
    with pytest.raises(UserError, match=r"policy\.options\.noise is fixed, and a soft actor-critic learns it: set it to 0"):
        learner(NoisyTanh(1, 1, noise=0.1))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"td3": {}, "start_temperature": 1.0}, "td3 and noise_aliasing are two ways in which a policy learns: drop one of them"),
        ({"conservative": 1.0}, "conservative has no effect without a density of actions, and noise_aliasing has none"),
        ({"noise_aliasing": {"updates": 0}}, "greater than or equal to 1"),
        ({"noise_aliasing": {"base_steps": 2}}, r"noise_aliasing\.base_steps = 2 of steps = 2 leaves none for the policy"),
    ],
)
def test_settings_that_go_together_badly_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        OffPolicyStage(**(STAGE | {"noise_aliasing": {}} | keys))
