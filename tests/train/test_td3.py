"""TD3: its targets and its policy's gradient equal those of ResFiT's code, it learns, and it resumes bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mmrl.algorithms import off_policy
from mmrl.api.errors import UserError
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.actors import NoisyTanh, SquashedNormal
from mmrl.train.update.replay import Drawn, Episode, Layout, Replay
from mmrl.train.update.rlpd import Rlpd
from mmrl.train.update.td3 import Td3

STAGE = {
    "kind": "off-policy",
    "steps": 1,
    "batch_size": 64,
    "updates": 4,
    "critics": 4,
    "hidden": [32, 32],
    "learning_rate": 3e-3,
}
ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "resfit.jsonl").read_text().splitlines()]


def learner(actor: NoisyTanh | None = None, features: int = 1, *, how: dict[str, Any] | None = None, **keys: Any) -> Td3:
    torch.manual_seed(3)
    stage = OffPolicyStage(**(STAGE | {"td3": how or {}} | keys))
    return Td3(actor or NoisyTanh(features, 1, noise=0.2, hidden=(32, 32)), features, stage, 3)


class Concave(nn.Module):
    """Qs of the golden rows: [E, n]."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__()
        self.peaks, self.slopes = torch.tensor(row["peaks"]), torch.tensor(row["slopes"])

    def forward(self, features: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        count = self.slopes.shape[1]
        far = (actions - self.peaks[:, None]).square().sum(-1)
        return torch.einsum("nf,ef->en", features[:, :count], self.slopes) - far


def linear(weights: list[list[float]], actor: NoisyTanh) -> None:
    """The policy tanh(features x weights), which reads nothing of the base's action."""
    actor.body = nn.Sequential()
    actor.head = nn.Linear(len(weights) + 2, 2, bias=False)
    with torch.no_grad():
        actor.head.weight.copy_(torch.cat([torch.tensor(weights), torch.zeros(2, 2)]).T)


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_targets_and_gradients_are_those_of_the_public_code(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = {name: torch.tensor(value) for name, value in row.items()}
    seen, after = torch.cat([x["features"], x["base"]], 1), torch.cat([x["after"], x["base_after"]], 1)
    actor = NoisyTanh(5, 2, noise=row["target_noise"], residual=row["residual"])
    how = {name: row[name] for name in ("target_noise", "noise_clip")}
    agent = learner(actor, 5, how=how, critics=4, subset=4)
    linear(row["weights"], agent.actor)
    linear(row["target_weights"], agent.actor_target)
    agent.critic = agent.target = Concave(row)  # type: ignore[assignment]
    monkeypatch.setattr(agent, "noise", lambda shape, generator: x["noise"])
    unknown = torch.full((5,), torch.nan)
    drawn = Drawn(
        seen_nF=seen,
        actions_nA=x["base"],
        rewards_n=x["rewards"],
        discounts_n=x["discounts"],
        after_nF=after,
        paid_n=unknown,
        weights_n=torch.ones(5),
        places_n=torch.arange(5),
        last_n=torch.arange(5),
    )
    following = agent.following(drawn, torch.Generator())
    targets = off_policy.td_targets(drawn.rewards_n, drawn.discounts_n, following)
    assert targets.tolist() == pytest.approx(row["targets"], abs=2e-6)
    losses: list[float] = []

    def stepped(name: str, loss: torch.Tensor, step: int) -> dict[str, float]:
        losses.append(loss.item())
        loss.backward()
        return {}

    monkeypatch.setattr(agent, "stepped", stepped)
    agent._update_actor(drawn, 0)
    assert losses == pytest.approx([row["loss"]], abs=2e-6)
    assert agent.actor.head.weight.grad is not None
    assert torch.allclose(agent.actor.head.weight.grad[:, :3].T, x["gradient"], atol=2e-6)


def walk(agent: Td3 | None, seed: int, count: int = 3) -> Episode:
    """Steps on a line: an action moves a quarter of itself, and what is paid is minus the square of the distance to 0.3."""
    generator = torch.Generator().manual_seed(seed)
    at, seen, actions = torch.rand(1, generator=generator) * 2 - 1, [], []
    for _ in range(count):
        seen.append(at)
        noise = torch.randn(1, 1, generator=generator)
        actions.append(noise[0].clamp(-1, 1) if agent is None else agent.actor.sample(at[None], noise)[0][0].detach())
        at = at + actions[-1] / 4
    places = torch.stack([*seen, at])
    paid = -(places[1:, 0] - 0.3).square()
    return Episode(seen_TF=places[:-1], after_TF=places[1:], actions_TA=torch.stack(actions), rewards_T=paid, terminated=True)


def memory(count: int, first: int = 0) -> Replay:
    replay = Replay(Layout(simulator="line", action=1, features=1), 1000, gamma=0.5)
    for n in range(count):
        replay.add(walk(None, first + n))
    return replay


def test_it_learns_to_walk_to_the_place_that_pays() -> None:
    offline, online = memory(40), memory(5, 100)
    agent = learner()
    starts = torch.tensor([[-1.0], [0.3], [1.0]])

    def far() -> float:
        return (agent.actor.sample(starts, torch.zeros(3, 1))[0][:, 0] - torch.tensor([1.0, 0.0, -1.0])).abs().max().item()

    before = far()
    for n in range(50):
        agent.update(online, offline)
        online.add(walk(agent, 1000 + n))
    assert before > 0.6 and far() < 0.35


def test_a_resumed_run_is_the_run_bit_for_bit() -> None:
    how = {"warmup_updates": 6}
    whole, offline, online = learner(how=how), memory(10), memory(5, 50)
    whole.update(online, offline)
    resumed = learner(how=how)
    resumed.load_state(whole.state())
    for agent in (whole, resumed):
        for _ in range(2):
            agent.update(online, offline)
    ours, theirs = whole.state(), resumed.state()
    assert ours.keys() == theirs.keys() and "actor_target/head.weight" in ours
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())


def test_critics_learn_alone_before_the_first_update_of_the_policy_and_only_then() -> None:
    agent, online = learner(how={"warmup_updates": 10}), memory(10)
    updated: list[str] = []
    stepped = agent.stepped
    agent.stepped = lambda name, loss, step: (updated.append(name), stepped(name, loss, step))[1]  # type: ignore[method-assign]
    agent.update(online)
    figures = agent.update(online)
    assert 0 < figures["off_policy/action_size"] < 1
    # ten updates are three calls of four
    assert updated == ["critic"] * 16 + ["actor"] + ["critic"] * 4 + ["actor"]


def test_the_target_policy_follows_by_the_target_rate() -> None:
    agent, online = learner(updates=1, target_rate=0.25), memory(5)
    before = [p.clone() for p in agent.actor_target.parameters()]
    agent.update(online)
    for old, new, source in zip(before, agent.actor_target.parameters(), agent.actor.parameters(), strict=True):
        assert torch.allclose(new, old + 0.25 * (source - old), atol=1e-7) and not torch.equal(new, source)


def test_noise_is_in_units_of_an_action_and_a_residual_policy_begins_at_its_base() -> None:
    actor = NoisyTanh(5, 2, noise=0.05, hidden=(8,), residual=0.25)
    features = torch.rand(6, 5) - 0.5
    noise = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(actor.sample(features, torch.zeros(6, 2))[0], features[:, -2:])
    actions, logprobs = actor.sample(features, noise)
    assert torch.allclose(actions, features[:, -2:] + 0.05 * noise, atol=1e-6)
    slow = torch.distributions.Normal(features[:, -2:], 0.05).log_prob(actions).sum(1)
    assert torch.allclose(logprobs, slow, atol=1e-4)
    nn.init.constant_(actor.head.bias, 100.0)  # as far as it can correct
    assert torch.allclose(actor.sample(features, torch.zeros(6, 2))[0], (features[:, -2:] + 0.25).clamp(-1, 1))


def test_a_policy_that_learns_its_noise_is_refused_and_so_is_fixed_noise_without_td3() -> None:
    stage = OffPolicyStage(**STAGE, td3={})
    with pytest.raises(UserError, match=r"set policy\.options\.noise, such as 0\.1"):
        Td3(SquashedNormal(1, 1), 1, stage, 0)
    with pytest.raises(UserError, match=r"set it to 0, or set stages\.td3"):
        Rlpd(NoisyTanh(1, 1, noise=0.1), 1, OffPolicyStage(**STAGE), 0)
