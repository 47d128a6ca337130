"""RECAP's learner: what its values learn, which calls it calls positive, and what the policy is told."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from mmrl.algorithms import recap
from mmrl.api.errors import UserError
from mmrl.api.seeds import derive
from mmrl.api.simulators.types import Observation
from mmrl.config.parts import part_of
from mmrl.config.sections import PolicyConfig, RecapStage
from mmrl.policies.eyes import Eyes, TrainedEyes
from mmrl.policies.load import make_policy
from mmrl.policies.return_bins import Bins, distributional_loss
from mmrl.train.update.conditioned import Conditioned
from mmrl.train.update.experience import Experience, Lived, shown
from mmrl.train.update.learner import Learner

SMALL = PolicyConfig(kind="robotics/small", model="mlp", options={"dims": 1, "state": 2, "hidden": [8]})
STAGE = {"kind": "recap", "steps": 1, "bins": 41, "hidden": [32], "value_learning_rate": 3e-3, "value_batch_size": 64}


def conditioned(dtype: torch.dtype = torch.float32, **keys: Any) -> Conditioned:
    policy, stage = make_policy(SMALL, device="cpu", seed=2), RecapStage(**(STAGE | keys))
    policy.model.to(dtype)
    return Conditioned(Learner(policy, stage), Eyes(policy), stage, 5)  # type: ignore[arg-type]


def episode(kind: float, count: int, success: bool, task: str = "t", corrected: bool = False) -> Lived:
    """Features: the kind of the episode in one number and the step in another, the rest 0."""
    features = torch.zeros(count, 8)
    features[:, 0], features[:, 1] = kind, torch.arange(count) / 10
    tensors = {"features": features, "steps": torch.ones(count, dtype=torch.int64), "actions": torch.zeros(count, 1)}
    tensors["corrected"] = torch.full((count,), corrected)
    return Lived(task=task, longest=10, success=success, instruction="go", images={}, tensors=tensors)


def filled(*episodes: Lived) -> Experience:
    experience = Experience(1000)
    for one in episodes:
        experience.add(one)
    return experience


def test_values_learn_the_steps_that_are_left_and_failures() -> None:
    """Kind 1 succeeds at once in 6 steps, kind -1 fails, kind 0 does either."""
    mixed = [episode(0.0, 6, success) for success in (True, False)]
    experience = filled(episode(1.0, 6, True), episode(-1.0, 10, False), *mixed)
    learner = conditioned(value_updates=150, value_learning_rate=1e-2)
    first = learner.learn_values(experience, 0)["value_loss"]
    learner.calls += 1
    assert learner.learn_values(experience, 1)["value_loss"] < 0.8 * first
    for one in experience:
        found, expected = learner.value_of(one.tensors["features"]), one.returns(1.0)
        if float(one.tensors["features"][0, 0]):
            assert (found - expected).abs().max() < 0.12
        else:
            assert (found - (episode(0.0, 6, True).returns(1.0) - 1) / 2).abs().max() < 0.15, "the mean of both ends"
    figures = learner.judged(list(experience))
    errors = [float((learner.value_of(e.tensors["features"]) - e.returns(1.0)).abs().sum()) for e in experience]
    assert figures["recap/value_error"] == pytest.approx(sum(errors) / 28, abs=1e-5)
    assert figures["recap/value_order"] > 0.8
    assert "recap/value_order" not in learner.judged([episode(1.0, 6, True)]), "there is nothing to compare with"


def test_a_return_s_bin_has_all_of_it() -> None:
    bins = Bins(low=-1.0, high=0.0, number=4, smoothing=0.0)
    found = bins.targets(torch.tensor([-1.0, -0.76, -0.74, -0.26, 0.0, -3.0, 2.0]))
    assert found.argmax(1).tolist() == [0, 0, 1, 2, 3, 0, 3] and found.sum(1).tolist() == [1.0] * 7


def test_each_task_has_a_threshold_of_its_own_and_an_expert_s_actions_are_positive() -> None:
    learner = conditioned(condition={"top": 0.4, "drop": 0.0}, lookahead=0)
    hard = [episode(-1.0, 10, False, "hard"), episode(0.3, 10, True, "hard")]
    easy = [episode(1.0, 5, True, "easy"), episode(0.5, 10, True, "easy")]
    experience = filled(*hard, *easy, episode(0.2, 5, False, "hard", corrected=True))
    labels, metrics = learner.labels(experience)
    at, kept = 0, {"hard": [], "easy": []}  # type: dict[str, list[tuple[float, bool]]]
    for one in experience:
        advantages = one.returns(1.0) - learner.value_of(one.tensors["features"])
        if one.tensors["corrected"][0]:
            assert all(labels[at : at + len(one)]), "though the episode failed"
        else:
            kept[one.task] += zip(advantages.tolist(), labels[at : at + len(one)], strict=True)
        at += len(one)
    for rows in kept.values():
        bound = recap.threshold(torch.tensor([a for a, _ in rows]), 0.4)
        assert [label for _, label in rows] == [a > bound for a, _ in rows]
        assert abs(sum(label for _, label in rows) - 0.4 * len(rows)) <= 1
    assert metrics["recap/corrected_share"] == pytest.approx(5 / 40)
    assert metrics["condition/positive_share"] == pytest.approx(sum(labels) / 40)
    assert metrics["recap/above_share"] == pytest.approx((sum(labels) - 5) / 35)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restart_goes_back_to_the_beginning(dtype: torch.dtype) -> None:
    """With weights of 16 bits their float32 masters too, and the mean weights."""
    learner, experience = conditioned(dtype, value_updates=3, learning_rate=0.1, ema_decay=0.9), filled(episode(1.0, 6, True))
    first = [p.detach().clone() for _, p in learner.imitator.policy.parameters()]
    values = [p.detach().clone() for p in learner.values.parameters()]
    learner.learn_values(experience, 0)

    def step() -> list[torch.Tensor]:
        for _, parameter in learner.imitator.policy.parameters():
            parameter.grad = torch.ones_like(parameter)
        learner.optimizer.gather()
        learner.optimizer.step(0)
        found = [x.detach().clone() for x in learner.optimizer.state().values()]
        return found + [p.detach().clone() for _, p in learner.imitator.policy.parameters()]

    once = step()
    step()
    learner.restart()
    assert all(torch.equal(a, b) for a, (_, b) in zip(first, learner.imitator.policy.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(values, learner.values.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(once, step(), strict=True))


def test_a_resumed_learner_is_the_learner_bit_for_bit() -> None:
    experience, whole, other = filled(episode(1.0, 6, True), episode(0.0, 9, False)), conditioned(value_updates=5), None
    whole.learn_values(experience, 0)
    whole.calls += 1
    with torch.no_grad():
        for _, parameter in whole.eyes.copy.parameters():
            parameter.add_(0.5)
    other = conditioned(value_updates=5)
    other.load_state(whole.state())
    assert whole.learn_values(experience, 1) == other.learn_values(experience, 1)
    one, two = whole.state(), other.state()
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def told(count: int, success: bool, left: float = 1.0) -> Lived:
    """An episode of which the state says how it will end."""
    one = episode(0.0, count, success)
    one.tensors["features"] = torch.zeros(count, 0)
    one.tensors["state"] = torch.stack([torch.full((count,), 1.0 if success else -1.0), left * torch.arange(count) / count], 1)
    return one


def test_a_copy_of_the_policy_learns_with_the_values() -> None:
    """What the values see with moves; the policy and the frozen copy stay. A step is that of one pass over all that was drawn."""
    experience = filled(told(9, True), told(10, False), told(7, True))
    learner, other = (conditioned(value_trains="model", value_updates=1, value_batch_size=80) for _ in range(2))
    assert learner.own is not None and other.own is not None
    first = {name: p.detach().clone() for name, p in learner.own.trained.items()}
    learner.learn_values(experience, 0)
    drawn = torch.randint(26, (80,), generator=torch.Generator().manual_seed(derive(5, "values", 0, 0)))
    seen = shown([experience.calls()[n] for n in drawn.tolist()], ["go"] * 80)
    returns = torch.cat([one.returns(1.0) for one in experience])[drawn]
    distributional_loss(other.logprobs(other.own.features(seen)), returns, other.bins).mean().backward()
    other.value_optimizer.step(0)
    for mine, theirs in (
        (learner.own.trained, other.own.trained),
        (dict(learner.values.named_parameters()), dict(other.values.named_parameters())),
    ):
        assert all(torch.allclose(mine[name], theirs[name], atol=1e-6) for name in mine)
    moved = [name for name, p in learner.own.trained.items() if not torch.equal(p, first[name])]
    assert moved
    assert all(torch.equal(p, first[name]) for name, p in learner.eyes.copy.parameters() if name in first)
    assert all(torch.equal(p, first[name]) for name, p in learner.imitator.policy.parameters() if name in first)
    learner.restart()
    assert all(torch.equal(p, first[name]) for name, p in learner.own.trained.items())


def test_what_a_trained_copy_sees_is_not_remembered() -> None:
    experience = filled(told(9, True), told(10, False))
    learner = conditioned(value_trains="model", value_updates=60, value_learning_rate=1e-2)
    before = learner.judged(list(experience))["recap/value_error"]
    learner.learn_values(experience, 0)
    assert learner.judged(list(experience))["recap/value_error"] < 0.5 * before
    labels, _ = learner.labels(experience)
    assert len(labels) == 19
    other = conditioned(value_trains="model", value_updates=60, value_learning_rate=1e-2)
    other.load_state(learner.state())
    learner.calls = other.calls = 3
    assert learner.learn_values(experience, 1) == other.learn_values(experience, 1)
    one, two = learner.state(), other.state()
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_trained_copy_has_the_parts_that_are_named() -> None:
    with pytest.raises(
        UserError, match=r'stages.value_trains = "vision": the policy has no weights of the vision, .*: set it to "head"'
    ):
        conditioned(value_trains="vision")
    seeing = PolicyConfig(kind="vla", model="tiny:qwen2_5_vl", options={"dims": 1, "chunk": 1, "bins": 8})
    policy = make_policy(seeing, device="cpu", seed=2)
    eyes = TrainedEyes(policy, ("vision",))  # type: ignore[arg-type]
    assert {part_of(name) for name in eyes.trained} == {"vision"}
    picture = torch.randint(0, 256, (2, 56, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    eyes.features(Observation(images={"front": picture}, state=None, instructions=["go"] * 2)).square().sum().backward()
    learns = [name for name, p in eyes.copy.parameters() if p.grad is not None]
    assert learns and set(learns) <= set(eyes.trained)
    assert not any(p.grad is not None for _, p in policy.parameters())


def test_what_the_policy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive, negative, or neither by chance; and what it imitates is what was done."""
    from types import SimpleNamespace

    from mmrl.train.stages.recap import RecapSteps

    policy = make_policy(SMALL, device="cpu", seed=2)
    stage = RecapStage(**(STAGE | {"condition": {"positive": "good", "negative": "bad", "drop": 0.25}}))
    steps = RecapSteps.__new__(RecapSteps)
    seen: list[Any] = []
    steps.stage, steps.policy = stage, policy  # type: ignore[assignment]
    steps.run = SimpleNamespace(packer=SimpleNamespace(pack=lambda rollouts, *_: seen.extend(rollouts)))  # type: ignore[assignment]
    one = episode(1.0, 3, True)
    one.tensors["actions"] = torch.tensor([[0.1], [0.2], [0.3]])
    one.tensors["state"] = torch.zeros(3, 2)
    calls = [(one, n % 3) for n in range(3000)]
    chance = random.Random(1)
    steps.batch(calls, [steps.told(one.told(n % 3), n % 3 == 2, chance) for n in range(3000)])
    told = [(rollout.data.instruction, round(float(rollout.data.choices.flatten()[0]), 3)) for rollout in seen]
    assert {text for text, _ in told} == {"go", "go good", "go bad"}
    assert abs(sum(text == "go" for text, _ in told) / 3000 - 0.25) < 0.03
    assert {done for text, done in told if text == "go good"} == {0.3}
    assert {done for text, done in told if text == "go bad"} == {0.1, 0.2}
