"""The gripper's own critic: loss, penalty and choices equal those of HIL-SERL's code, it learns where to act, and it resumes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mmrl.config.off_policy import GripperConfig, OffPolicyStage
from mmrl.policies.action_values import ChoiceValues
from mmrl.policies.actors import SquashedNormal
from mmrl.train.update.gripper import WithGripper
from mmrl.train.update.replay import Drawn, Episode, Layout, Replay

STAGE = {"kind": "off-policy", "steps": 1, "batch_size": 64, "updates": 4, "critics": 2, "hidden": [32, 32]}
STAGE |= {"learning_rate": 3e-3, "start_temperature": 0.1}
ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "hil_serl.jsonl").read_text().splitlines()]


def learner(features: int, dims: int = 2, choices: int = 3, place: int = 0, **keys: Any) -> WithGripper:
    """dims: with the gripper's."""
    torch.manual_seed(3)
    actor = SquashedNormal(features, dims - 1, hidden=(32, 32), gripper_choices=choices)
    return WithGripper(actor, features, OffPolicyStage(**(STAGE | keys)), 3, place)


class Concave(nn.Module):
    """Qs of the golden rows: [E, n]."""

    def __init__(self, peaks: torch.Tensor, slopes: torch.Tensor) -> None:
        super().__init__()
        self.peaks, self.slopes = peaks, nn.Parameter(slopes)

    def outputs(self, features: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        far = (actions - self.peaks[:, None]).square().sum(-1)
        return torch.einsum("nf,ef->en", features, self.slopes) - far

    forward = outputs


def linear(values: ChoiceValues, weights: torch.Tensor) -> nn.Linear:
    """Make Qs features x weights."""
    layer = nn.Linear(*weights.shape, bias=False)
    with torch.no_grad():
        layer.weight.copy_(weights.T)
    values.layers = nn.Sequential(layer)
    return layer


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_losses_penalties_and_choices_are_those_of_the_public_code(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its action -1 closes a gripper that is open above 0.9, which is that 1 closes one that is closed above it."""
    x = {name: torch.tensor(value) for name, value in row.items()}
    pays = {"state": 0, "penalty": row["penalty"], "threshold": 0.9, "above": "closed"}
    agent = learner(3, 3, place=2, gripper=pays, hidden=[4])
    own = linear(agent.gripper, x["weights"])
    linear(agent.gripper_target, x["target_weights"])
    agent.critic = Concave(x["peaks"], x["slopes"])  # type: ignore[assignment]
    agent.target = Concave(x["peaks"], x["target_slopes"])  # type: ignore[assignment]
    monkeypatch.setattr(agent, "following", lambda drawn, _: agent.target(drawn.after_nF, x["following"]).amin(0))
    drawn = Drawn(
        seen_nF=x["features"],
        actions_nA=x["actions"],
        rewards_n=x["rewards"],
        discounts_n=row["discount"] * x["masks"],
        after_nF=x["after"],
        paid_n=torch.full((8,), torch.nan),
        weights_n=torch.ones(8),
        places_n=torch.arange(8),
        last_n=torch.arange(8),
    )
    assert torch.equal(agent.changes(drawn), x["penalties"] < 0) and agent.actor.numbers == 3
    mirrored = learner(3, 3, place=2, gripper=pays | {"above": "open"}, hidden=[4])
    assert torch.equal(mirrored.changes(replace(drawn, actions_nA=-x["actions"])), x["penalties"] < 0)
    assert torch.equal(agent.gripper.best(x["features"])[:, 0], x["chosen"])
    _, figures = agent._update_critic(drawn, torch.Generator(), 0)
    assert figures["off_policy/gripper_loss"] == pytest.approx(row["loss"], abs=2e-5)
    assert own.weight.grad is not None and torch.allclose(own.weight.grad.T, x["gradient"], atol=2e-5)
    assert figures["value_loss"] == pytest.approx(2 * row["critic_loss"], abs=1e-4), "of two critics, which don't see the gripper"


def test_a_number_is_the_nearest_choice() -> None:
    three, two = ChoiceValues(1, 3), ChoiceValues(1, 2)
    numbers = torch.tensor([-1.0, -0.51, -0.5, 0.0, 0.5, 0.51, 1.0])
    assert three.choice_of(numbers).tolist() == [0, 0, 1, 1, 1, 2, 2] and two.choice_of(numbers).tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert three.number_of(torch.arange(3)).tolist() == [-1, 0, 1] and two.number_of(torch.arange(2)).tolist() == [-1, 1]


def test_the_entropy_that_is_aimed_at_counts_the_gripper_s_number() -> None:
    """As in the public code, whose policy draws six numbers of seven and aims at minus half of seven."""
    assert learner(3, 7).aim == -3.5


def world(count: int, seed: int = 0) -> Replay:
    """The gripper should be closed where the first feature is above 0, and open elsewhere; the second says if it is closed."""
    draw = torch.Generator().manual_seed(seed)
    replay = Replay(Layout(simulator="hand", action=2, features=2), count, gamma=0.9)
    for _ in range(count):
        place, turn = (torch.rand(2, generator=draw) * 2 - 1).tolist()
        closed, gripper = torch.randint(2, (), generator=draw).item(), torch.randint(-1, 2, (), generator=draw).item()
        after = float(gripper > 0 or (gripper == 0 and closed))
        replay.add(
            Episode(
                seen_TF=torch.tensor([[place, closed]]),
                after_TF=torch.tensor([[place, after]]),
                actions_TA=torch.tensor([[turn, gripper]]),
                rewards_T=torch.tensor([float(after == (place > 0))]),
                terminated=True,
            )
        )
    return replay


@pytest.mark.everyday
@pytest.mark.parametrize("penalty", [0.02, 1.5])
def test_it_learns_where_the_gripper_must_act_and_that_a_change_must_be_worth_its_penalty(penalty: float) -> None:
    agent, memory = learner(2, place=1, gripper={"state": 0, "penalty": penalty, "threshold": 0.5, "above": "closed"}), world(600)
    places, closed = torch.meshgrid(torch.tensor([-0.9, -0.5, 0.5, 0.9]), torch.tensor([0.0, 1.0]), indexing="ij")
    seen = torch.stack([places.flatten(), closed.flatten()], 1)

    def after() -> torch.Tensor:
        """What the gripper is after what it is told."""
        told = agent.gripper.best(seen)[:, 0]
        return (told > 0) | ((told == 0) & (seen[:, 1] > 0))

    wanted = seen[:, 0] > 0 if penalty < 1 else seen[:, 1] > 0
    with torch.no_grad():
        agent.gripper.layers[-1].bias += torch.tensor([0.0, 0.0, 3.0])
    assert after().all(), "it begins by closing everywhere"
    for _ in range(60):
        figures = agent.update(memory)
    assert torch.equal(after(), wanted)
    assert figures["off_policy/gripper_loss"] < 0.05 and 0.2 < figures["off_policy/gripper_changes"] < 0.5


def test_it_is_not_charged_without_a_penalty_and_the_other_critics_never_are() -> None:
    memory, found = world(50), {}
    for name, pays in (("free", None), ("charged", {"state": 0, "penalty": 3.0, "above": "closed"})):
        agent = learner(2, place=1, gripper=pays, updates=1)
        figures = agent.update(memory)
        found[name] = figures["off_policy/gripper_loss"], figures["value_loss"], "off_policy/gripper_changes" in figures
    assert found["charged"][0] > found["free"][0] + 1 and found["charged"][1] == found["free"][1]
    assert (found["free"][2], found["charged"][2]) == (False, True)


def test_the_policy_s_update_leaves_the_gripper_alone_and_its_target_follows() -> None:
    agent, memory = learner(2, updates=1, target_rate=0.25), world(50)
    drawn = memory.draw(32, 0)
    before = {name: x.clone() for name, x in agent.state().items()}
    agent._update_actor(drawn, torch.Generator().manual_seed(0), 0)
    between = {name: x.clone() for name, x in agent.state().items()}
    changed = {name for name, x in before.items() if not torch.equal(x, between[name])}
    assert "actor/head.weight" in changed and not any("gripper" in name for name in changed)
    agent.learn_beside(drawn, torch.Generator(), 0)
    after = agent.state()
    for name in ("layers.0.weight", "layers.6.bias"):
        old, new = between[f"gripper_target/{name}"], after[f"actor/gripper.{name}"]
        assert not torch.equal(new, between[f"actor/gripper.{name}"])
        assert torch.allclose(after[f"gripper_target/{name}"], old + 0.25 * (new - old), atol=1e-7)


def test_a_resumed_learner_is_the_learner_bit_for_bit() -> None:
    options = {"gripper": {"state": 0, "above": "closed"}, "ema_decay": 0.9, "place": 1}
    whole, memory = learner(2, **options), world(50)
    whole.update(memory)
    resumed = learner(2, **options)
    resumed.load_state(whole.state())
    for agent in (whole, resumed):
        agent.update(memory)
    theirs = resumed.state()
    assert whole.state().keys() == theirs.keys() and any(name.startswith("optimizer/gripper/") for name in theirs)
    assert all(torch.equal(x, theirs[name]) for name, x in whole.state().items())
    means = {name for name in theirs if name.startswith("optimizer/actor/gripper.") and name.endswith("/ema")}
    assert len(means) == 10, "the means that are evaluated and saved are also of the gripper"
    average, weight = theirs["optimizer/actor/gripper.layers.0.weight/ema"], theirs["actor/gripper.layers.0.weight"]
    assert not torch.equal(average, weight) and torch.allclose(average, weight, atol=0.1)


def test_after_exploration_it_begins_anew() -> None:
    agent, memory = learner(2, explore_steps=1, steps=2), world(50)
    agent.update(memory, step=0)
    learned = agent.gripper.state_dict()["layers.0.weight"].clone()
    agent.begin_anew()
    other = learner(2, explore_steps=1, steps=2)
    other.begin_anew()
    for module in (agent.gripper, agent.gripper_target):
        assert all(torch.equal(x, other.gripper.state_dict()[name]) for name, x in module.state_dict().items())
    assert not torch.equal(learned, agent.gripper.state_dict()["layers.0.weight"])


def test_bad_keys_are_refused() -> None:
    with pytest.raises(ValueError, match=r"gripper\.penalty is of single steps: set n_step = 1"):
        OffPolicyStage(**(STAGE | {"gripper": {"state": 7}, "n_step": 3}))
    for keys in ({}, {"state": -1}, {"state": 0, "penalty": 0.0}, {"state": 0, "above": "shut"}):
        with pytest.raises(ValueError, match="validation error"):
            GripperConfig(**keys)  # type: ignore[arg-type]
