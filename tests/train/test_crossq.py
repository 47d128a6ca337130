"""CrossQ: its loss, gradients and running moments equal those of its public code, it learns without target critics, and it
resumes bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.api.errors import UserError
from mmrl.config.sections import OffPolicyStage, PolicyConfig
from mmrl.policies.action_values import ActionValues
from mmrl.policies.actors import NoisyTanh, SquashedNormal
from mmrl.policies.batch_renorm import BatchRenorm
from mmrl.policies.squashed import Squashed
from mmrl.train.plan.critics import critics_of
from mmrl.train.update.crossq import CrossQ
from mmrl.train.update.replay import Drawn, Episode, Layout, Replay

STAGE = {"kind": "off-policy", "steps": 1, "batch_size": 64, "updates": 2, "critics": 2, "hidden": [32, 32]}
STAGE |= {"learning_rate": 3e-3, "start_temperature": 0.1}
ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "crossq.jsonl").read_text().splitlines()]


def learner(features: int = 1, dims: int = 1, *, how: dict[str, Any] | None = None, **keys: Any) -> CrossQ:
    torch.manual_seed(3)
    stage = OffPolicyStage(**(STAGE | {"crossq": how or {}} | keys))
    return CrossQ(SquashedNormal(features, dims, hidden=(32, 32)), features, stage, 3)


def named(critic: ActionValues, found: dict[str, Any], norm: dict[str, str]) -> dict[str, torch.Tensor]:
    """The published code's weights or moments under our names."""
    kinds = {"kernel": "weight", "bias": "bias"}
    named_ = {}
    for layer, values in found.items():
        kind, _, number = layer.partition("_")
        for key, value in values.items():
            if kind == "Dense" or key in norm:
                name = f"layers.{number}.{kinds[key]}" if kind == "Dense" else f"norms.{number}.{norm[key]}"
                shape = dict(critic.state_dict())[name].shape
                named_[name] = torch.tensor(value).view(shape)
    return named_


OF_NORMS = {"scale": "scale", "bias": "shift"}
OF_MOMENTS = {"mean": "mean", "var": "variance"}


def of_row(row: dict[str, Any]) -> tuple[CrossQ, Drawn]:
    """A learner with the row's weights and moments, and its batch; what the policy draws is given."""
    agent = learner(3, 2, how={"momentum": 0.9}, hidden=[4, 3], backup_entropy=True, start_temperature=row["temperature"])
    weights = named(agent.critic, row["weights"], OF_NORMS) | named(agent.critic, row["moments"], OF_MOMENTS)
    steps = {f"norms.{n}.batches": torch.tensor(row["steps"]) for n in range(3)}
    agent.critic.load_state_dict(weights | steps)
    x = {name: torch.tensor(row[name]) for name in ("seen", "after", "actions", "rewards", "terminated")}
    drawn = Drawn(
        seen_nF=x["seen"],
        actions_nA=x["actions"],
        rewards_n=x["rewards"],
        discounts_n=row["gamma"] * (1 - x["terminated"]),
        after_nF=x["after"],
        paid_n=torch.full((5,), torch.nan),
        weights_n=torch.ones(5),
        places_n=torch.arange(5),
        last_n=torch.arange(5),
    )
    return agent, drawn


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_loss_gradients_and_moments_are_those_of_public_code(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    agent, drawn = of_row(row)
    monkeypatch.setattr(agent, "sampled", lambda *_: (torch.tensor(row["following"]), torch.tensor(row["logprobs"])))
    losses: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(agent, "stepped", lambda name, loss, step: losses.setdefault(name, loss) is None or {"grad_norm": 0.0})
    errors_n, figures = agent._update_critic(drawn, torch.Generator(), 0)
    losses["critic"].backward()
    # the public code has half the squared error
    assert losses["critic"].item() == pytest.approx(2 * row["loss"], rel=2e-5)
    assert float(figures["value"]) == pytest.approx(row["q"], abs=1e-5) and errors_n.shape == (5,)
    own = {name: p.grad for name, p in agent.critic.named_parameters()}
    expected = named(agent.critic, row["gradients"], OF_NORMS)
    assert own.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(own[name], 2 * gradient, rtol=1e-4, atol=2e-5), name
    for name, moment in named(agent.critic, row["moved"], OF_MOMENTS).items():
        assert torch.allclose(agent.critic.state_dict()[name], moment, atol=2e-6), name
    assert all(int(norm.batches) == row["steps"] + 1 for norm in agent.critic.norms)  # type: ignore[arg-type]
    assert not agent.critic.training and "target" not in agent.modules


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_the_policy_climbs_as_in_public_code(row: dict[str, Any]) -> None:
    """The lowest critic, by the running moments, which don't move."""
    agent, drawn = of_row(row)
    before = {name: x.clone() for name, x in agent.critic.state_dict().items()}
    chosen = torch.tensor(row["chosen"], requires_grad=True)
    (-agent.worth(drawn.seen_nF, chosen)).mean().backward()
    assert torch.allclose(chosen.grad, torch.tensor(row["climbs"]), atol=2e-6)
    assert all(torch.equal(x, before[name]) for name, x in agent.critic.state_dict().items())


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), warmup=st.sampled_from([0, 2]), spread=st.sampled_from([0.01, 1.0, 100.0]))
def test_renormalisation_is_the_paper_s_batch_by_batch(seed: int, warmup: int, spread: float) -> None:
    """Against algorithm 1 in numpy, of each network and number: x * r + d by the batch's moments, where r and d are clipped."""
    draw = np.random.default_rng(seed)
    norm = BatchRenorm(2, 3, momentum=0.75, warmup=warmup)
    mean, variance = np.zeros((2, 3)), np.ones((2, 3))
    for batch in range(4):
        x = draw.normal(draw.normal(0, 3), spread, (2, 50, 3)).astype("float32")
        found = norm(torch.tensor(x)).detach().numpy()
        for e, w in np.ndindex(2, 3):
            own = x[e, :, w].astype(float)
            deviation, running = np.sqrt(own.var() + 1e-3), np.sqrt(variance[e, w] + 1e-3)
            r = np.clip(deviation / running, 1 / 3, 3) if batch >= warmup else 1.0
            d = np.clip((own.mean() - mean[e, w]) / running, -5, 5) if batch >= warmup else 0.0
            # as in the published code, what is added to a variance isn't scaled
            expected = (own - own.mean() + d * own.std() / r) / np.sqrt(own.var() / r**2 + 1e-3)
            assert np.allclose(found[e, :, w], expected, rtol=1e-3, atol=1e-3)
            mean[e, w] += 0.25 * (own.mean() - mean[e, w])
            variance[e, w] += 0.25 * (own.var() - variance[e, w])
    assert np.allclose(norm.mean[:, 0].numpy(), mean, rtol=1e-4, atol=1e-4)
    assert np.allclose(norm.variance[:, 0].numpy(), variance, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("warmup", [0, 100])
def test_units_that_are_0_for_a_whole_batch_have_finite_gradients(warmup: int) -> None:
    norm = BatchRenorm(1, 2, warmup=warmup)
    x = torch.zeros(1, 8, 2, requires_grad=True)
    norm(x * torch.tensor([1.0, 0.0])).square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def line(seed: int) -> Episode:
    """A step on a line, from anywhere: an action is paid by how near it is to 0.5."""
    generator = torch.Generator().manual_seed(seed)
    at, action = (torch.rand(1, 1, generator=generator) * 2 - 1 for _ in range(2))
    return Episode(seen_TF=at, after_TF=at, actions_TA=action, rewards_T=-(action[:, 0] - 0.5).square(), terminated=False)


def memory(count: int = 300) -> Replay:
    replay = Replay(Layout(simulator="line", action=1, features=1), 1000, gamma=0.5)
    for n in range(count):
        replay.add(line(n))
    return replay


@pytest.mark.parametrize("keys", [{}, {"bins": 21, "low": -5.0, "high": 1.0}], ids=["numbers", "bins"])
def test_it_learns_without_target_critics(keys: dict[str, Any]) -> None:
    agent, online = learner(how={"warmup_updates": 50}, gamma=0.5, start_temperature=0.02, beta1=0.5, **keys), memory()
    for _ in range(80):
        figures = agent.update(online)
    places = torch.linspace(-1, 1, 21)[:, None]
    likeliest = agent.act(places, torch.zeros(21, 1))
    assert (likeliest - 0.5).abs().mean() < 0.15
    assert figures["value"] == pytest.approx(-(0.25 + 1 / 3), abs=0.2), "of the memory's actions, and the best ones behind them"


def test_it_resumes_bit_for_bit() -> None:
    online, whole, stopped = memory(), learner(how={"warmup_updates": 4}), learner(how={"warmup_updates": 4})
    for _ in range(6):
        whole.update(online)
    for _ in range(3):
        stopped.update(online)
    resumed = learner(how={"warmup_updates": 4})
    resumed.load_state(stopped.state())
    for _ in range(3):
        resumed.update(online)
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name
    assert not any(name.startswith("target/") for name in whole.state())


def test_critics_that_begin_anew_have_forgotten_their_moments() -> None:
    agent = learner()
    agent.update(memory())
    agent.begin_anew()
    norm = agent.critic.norms[1]
    assert int(norm.batches) == 0 and not norm.mean.any() and (norm.variance == 1).all()  # type: ignore[operator,union-attr]


def test_a_plan_counts_one_pass_over_both_ends_and_no_target() -> None:
    planned = Squashed.planned(PolicyConfig(kind="squashed", model="mlp", options={"dims": 2, "state": 4}))
    plain, crossed = (critics_of(OffPolicyStage(**STAGE, **way), planned, 10) for way in ({}, {"crossq": {}}))
    assert plain and crossed and crossed.forward.flops == 2 * plain.forward.flops == 2 * plain.target.flops
    assert not crossed.target.flops and crossed.weights == plain.weights + 2 * 2 * (6 + 32 + 32), "scales and shifts"
    assert crossed.bytes - crossed.backward.peak == 4 * 4 * crossed.weights
    assert plain.bytes - plain.backward.peak == 4 * 5 * plain.weights


def test_a_policy_of_fixed_noise_is_refused() -> None:
    with pytest.raises(UserError, match="a soft actor-critic learns it"):
        CrossQ(NoisyTanh(1, 1, noise=0.1), 1, OffPolicyStage(**STAGE, crossq={}), 0)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"crossq": {}, "td3": {}}, "td3 and crossq are two ways in which a policy learns: drop one of them"),
        ({"crossq": {}, "target_rate": 0.1}, "target_rate has no effect without target critics, and crossq has none"),
        ({"crossq": {}, "conservative": 1.0}, "conservative asks critics for actions that no batch has"),
        ({"crossq": {"momentum": 1.0}}, "less than 1"),
    ],
)
def test_settings_that_go_together_badly_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        OffPolicyStage(**(STAGE | keys))
