"""CQL and Cal-QL: the loss of the critics and its gradient equal those of public code; and critics with dropout (DroQ)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from linear_qs import Linear
from mmrl.config.sections import OffPolicyStage
from mmrl.policies.action_values import ActionValues
from mmrl.policies.actors import SquashedNormal
from mmrl.train.update.replay import Drawn, Episode, Layout, Replay
from mmrl.train.update.rlpd import Rlpd

STAGE = {"kind": "off-policy", "steps": 1, "batch_size": 32, "updates": 2, "critics": 2, "hidden": [16, 16]}
ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "cql.jsonl").read_text().splitlines()]


class LinearOfMany(Linear):
    """Of one action, or of several: [E, n] or [E, n, M]."""

    def forward(self, features: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        if actions.ndim == 2:
            return self.outputs(features, actions)
        return torch.stack([self.outputs(features, actions[:, m]) for m in range(actions.shape[1])], -1)


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_loss_and_gradient_are_those_of_public_code(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = {name: torch.tensor(value) for name, value in row.items()}
    stage = OffPolicyStage(
        **STAGE,
        conservative=row["conservative"],
        conservative_samples=3,
        conservative_calibrated=row["calibrated"],
        backup_entropy=True,
        start_temperature=row["temperature"],
    )
    agent = Rlpd(SquashedNormal(3, 2), 3, stage, 0)
    agent.critic, agent.target = LinearOfMany(x["qs"]), LinearOfMany(x["target_qs"])  # type: ignore[assignment]
    given = iter(["following", "here", "there"])
    monkeypatch.setattr(agent.actor, "sample", lambda *_: (x[name := next(given)], x[f"{name}_logprobs"]))
    monkeypatch.setattr(agent, "anywhere", lambda *_: x["anywhere"])
    losses: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(agent, "stepped", lambda name, loss, step: losses.setdefault(name, loss) is None or {"grad_norm": 0.0})
    drawn = Drawn(
        seen_nF=x["seen"],
        actions_nA=x["actions"],
        rewards_n=x["rewards"],
        discounts_n=row["gamma"] * (1 - x["terminated"]),
        after_nF=x["after"],
        paid_n=x["returns"],
        weights_n=torch.ones(5),
        places_n=torch.arange(5),
        last_n=torch.arange(5),
    )
    agent._update_critic(drawn, torch.Generator(), 0)
    (gradient,) = torch.autograd.grad(losses["critic"], agent.critic.weights)  # type: ignore[arg-type]
    # the public code sums the sampled actions, of which ours takes the mean
    of_number = row["conservative"] * 2 * math.log(9)
    assert losses["critic"].item() + of_number == pytest.approx(row["loss"], rel=2e-5, abs=2e-5)
    assert torch.allclose(gradient, x["gradient"], rtol=1e-4, atol=2e-5)


def test_calibration_is_told_apart() -> None:
    """The rows must show it: what both ways make of the same batch differs."""
    assert {row["calibrated"] for row in ROWS} == {True, False}


def test_an_ensemble_with_dropout_is_so_many_networks_that_drop() -> None:
    """Linear, dropout, layer normalisation, ReLU, as published, by the same draws; and without training none is dropped."""
    torch.manual_seed(0)
    many = ActionValues(3, 2, critics=2, hidden=(6, 5), dropout=0.3).train()
    seen, actions = torch.randn(4, 3), torch.randn(4, 2)
    torch.manual_seed(7)
    found = many(seen, actions)
    torch.manual_seed(7)
    masks = [functional.dropout(torch.ones(2, 4, wide), 0.3, True) for wide in (6, 5)]
    for e in range(2):
        x = torch.cat([seen, actions], 1)
        for n, layer in enumerate(many.layers):
            x = x @ layer.weight[e] + layer.bias[e]  # type: ignore[index,operator]
            if n < 2:
                x = functional.relu(functional.layer_norm(x * masks[n][e], x.shape[-1:]))
        assert torch.allclose(found[e], x[:, 0], atol=1e-6)
    many.eval()
    assert torch.equal(many(seen, actions), many(seen, actions)) and not torch.equal(many(seen, actions), found)


def memory() -> Replay:
    """Steps on a line, from anywhere: an action is paid by how near it is to 0.5."""
    replay = Replay(Layout(simulator="line", action=1, features=1), 1000, gamma=0.5)
    for n in range(200):
        at, action = (torch.rand(1, 1, generator=torch.Generator().manual_seed(2 * n + m)) * 2 - 1 for m in range(2))
        paid = -(action[:, 0] - 0.5).square()
        replay.add(Episode(seen_TF=at, after_TF=at, actions_TA=action, rewards_T=paid, terminated=True))
    return replay


def dropping(**keys: Any) -> Rlpd:
    torch.manual_seed(3)
    stage = OffPolicyStage(**(STAGE | {"dropout": 0.1, "learning_rate": 3e-3, "start_temperature": 0.02} | keys))
    return Rlpd(SquashedNormal(1, 1, hidden=(16, 16)), 1, stage, 3)


def test_critics_drop_where_they_learn_and_are_learned_from_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, online = dropping(), memory()
    modes: list[tuple[str, bool]] = []
    for name in ("critic", "target"):
        module = getattr(agent, name)
        real = module.outputs
        monkeypatch.setattr(
            module, "outputs", lambda *given, n=name, m=module, r=real: (modes.append((n, m.training)), r(*given))[1]
        )
    before = torch.random.get_rng_state()
    agent.update(online)
    assert modes == [("target", True), ("critic", True)] * 2 + [("critic", True)]
    assert not agent.critic.training and not agent.target.training
    assert torch.equal(torch.random.get_rng_state(), before), "draws of others are as before"


def test_with_dropout_it_resumes_bit_for_bit() -> None:
    online, whole, stopped, other = memory(), dropping(updates=4), dropping(updates=4), dropping(updates=4, dropout=0.0)
    for _ in range(6):
        whole.update(online), other.update(online)
    for _ in range(3):
        stopped.update(online)
    resumed = dropping(updates=4)
    resumed.load_state(stopped.state())
    for _ in range(3):
        resumed.update(online)
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name
    assert not torch.equal(whole.state()["critic/layers.0.weight"], other.state()["critic/layers.0.weight"])


def test_it_learns_with_dropout() -> None:
    agent, online = dropping(updates=4, dropout=0.01, hidden=[32, 32], batch_size=64), memory()
    for _ in range(80):
        agent.update(online)
    likeliest = agent.act(torch.linspace(-1, 1, 21)[:, None], torch.zeros(21, 1))
    assert (likeliest - 0.5).abs().mean() < 0.3, "it began at 0"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"conservative_calibrated": False}, "conservative_calibrated has no effect without conservative"),
        ({"dropout": 0.1, "iql": {}}, "dropout has no effect without a soft actor-critic with layer normalisation, and iql"),
        ({"dropout": 0.1, "crossq": {}}, "dropout has no effect without .* with layer normalisation, and crossq is another way"),
        ({"dropout": 1.0}, "less than 1"),
    ],
)
def test_settings_that_go_together_badly_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        OffPolicyStage(**(STAGE | keys))
