"""Rules of off-policy learning against slow references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.algorithms import off_policy

E, N, M, A = 3, 6, 5, 2
GOLDEN = Path(__file__).parents[1] / "golden"
PUBLISHED, NOVEL = (
    [json.loads(line) for line in (GOLDEN / name).read_text().splitlines()] for name in ("pa-rl.jsonl", "rl-vlm-f-novelty.jsonl")
)


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(4)


def t(x: np.ndarray, grad: bool = False) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=grad)


def test_targets_bootstrap_what_was_cut_off_and_not_what_terminated(draw: np.random.Generator) -> None:
    next_EN, rewards = draw.normal(size=(E, N)), draw.normal(size=N)
    discounts = np.array([0.9, 0.0, 0.81, 0.0, 0.9, 0.729])
    low = off_policy.lowest(t(next_EN), torch.tensor([2, 0]))
    found = off_policy.td_targets(t(rewards), t(discounts), low)
    for n in range(N):
        expected = rewards[n] + (discounts[n] * min(next_EN[2, n], next_EN[0, n]) if discounts[n] else 0.0)
        assert found[n].item() == pytest.approx(expected)
    assert np.allclose(off_policy.lowest(t(next_EN)).numpy(), next_EN.min(0))
    wild = torch.where(t(discounts) == 0, torch.inf, 1.0)  # 0 times infinity must not reach the target
    assert off_policy.td_targets(t(rewards), t(discounts), wild).isfinite().all()


def test_no_gradient_reaches_the_target_and_weights_count(draw: np.random.Generator) -> None:
    q, following, weights = t(draw.normal(size=(E, N)), True), t(draw.normal(size=N), True), draw.uniform(size=N)
    targets = off_policy.td_targets(t(np.ones(N)), t(np.full(N, 0.9)), following)
    loss = off_policy.td_loss(q, targets, t(weights))
    loss.backward()
    assert following.grad is None
    error = q.detach().numpy() - targets.numpy()
    assert loss.item() == pytest.approx(sum(weights[n] * error[e, n] ** 2 / N for e in range(E) for n in range(N)))
    assert q.grad is not None and np.allclose(q.grad.numpy(), 2 * error * weights / N)


@pytest.mark.parametrize("expectile", [0.5, 0.9])
def test_the_expectile_is_the_one_of_the_sample(draw: np.random.Generator, expectile: float) -> None:
    q, values = draw.normal(size=N), draw.normal(size=N)
    slow = sum((expectile if q[n] > values[n] else 1 - expectile) * (q[n] - values[n]) ** 2 for n in range(N)) / N
    loss = off_policy.expectile_loss(t(q, True), value := t(values, True), t(np.ones(N)), expectile=expectile)
    assert loss.item() == pytest.approx(slow)
    loss.backward()
    # where the loss of one value for all is least, the weighted errors above and below it are equal
    level = np.mean(q)
    for _ in range(200):
        side = np.where(q > level, expectile, 1 - expectile)
        level = (side * q).sum() / side.sum()
    value = torch.full((N,), level, dtype=torch.float64, requires_grad=True)
    off_policy.expectile_loss(t(q), value, t(np.ones(N)), expectile=expectile).backward()
    assert value.grad is not None and value.grad.sum().abs() < 1e-6


def test_the_conservative_penalty_is_calibrated_by_returns(draw: np.random.Generator) -> None:
    sampled, logprobs, data, paid = (draw.normal(size=s) for s in ((E, N, M), (N, M), (E, N), N))
    policys = np.array([True, True, False, False, True])

    def slow(floor: np.ndarray | None, which: np.ndarray) -> float:
        total = 0.0
        for e in range(E):
            for n in range(N):
                mass = 0.0
                for m in range(M):
                    q = sampled[e, n, m]
                    if floor is not None and which[m]:
                        q = max(q, floor[n])
                    mass += np.exp(q) / np.exp(logprobs[n, m]) / M
                total += (np.log(mass) - data[e, n]) / N
        return total

    arguments = (t(sampled), t(logprobs), t(data))
    assert off_policy.conservative_loss(*arguments).item() == pytest.approx(slow(None, policys))
    found = off_policy.conservative_loss(*arguments, t(paid), torch.tensor(policys))
    assert found.item() == pytest.approx(slow(paid, policys))
    assert off_policy.conservative_loss(*arguments, t(paid)).item() == pytest.approx(slow(paid, np.ones(M, bool)))


def test_weights_of_advantages() -> None:
    advantages = np.array([-2.0, 0.0, 0.5, 30.0])
    weights = off_policy.advantage_weights(t(advantages, True), temperature=0.5, largest=20.0)
    assert not weights.requires_grad
    assert weights.tolist() == pytest.approx([min(np.exp(a / 0.5), 20.0) for a in advantages])


def test_improved_actions_climb_and_are_ranked(draw: np.random.Generator) -> None:
    peak, weight = torch.tensor([0.3, 1.5], dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)

    def q_of(actions: torch.Tensor) -> torch.Tensor:
        return -weight * (actions - peak).square().sum(-1)

    actions = draw.uniform(-1, 1, size=(N, M, A))
    found, found_q = off_policy.improve(t(actions), q_of, keep=3, steps=4, step_size=0.05)
    slow = np.empty((N, 3, A))
    for n in range(N):
        score = lambda a: -2.0 * ((a - peak.numpy()) ** 2).sum(-1)  # noqa: E731
        kept = [actions[n, m] for m in np.argsort(-score(actions[n]), kind="stable")[:3]]
        for _ in range(4):
            kept = [np.clip(a + 0.05 * -4.0 * (a - peak.numpy()), -1, 1) for a in kept]
        slow[n] = np.stack(sorted(kept, key=lambda a: -score(a)))
    assert np.allclose(found.numpy(), slow)
    assert torch.allclose(found_q, q_of(found).detach())
    assert weight.grad is None
    # steps that are far too large are not taken: no candidate is worse than it was
    wild, _ = off_policy.improve(t(actions), q_of, keep=M, steps=3, step_size=50.0)
    assert (q_of(wild).sort(1).values >= q_of(t(actions)).sort(1).values).all()


@pytest.mark.parametrize("row", PUBLISHED)
def test_candidates_and_losses_are_those_of_pa_rl_s_code(row: dict[str, Any]) -> None:
    slopes, peaks, seen, data = (t(np.array(row[name])) for name in ("slopes", "peaks", "seen", "data"))

    def q_all(actions: torch.Tensor) -> torch.Tensor:
        """[E, n, M]: of actions [n, M, A]."""
        slope = torch.einsum("nf,efa->ena", seen, slopes)[:, :, None]
        return (slope * actions).sum(-1) - (actions - peaks[:, None, None]).square().sum(-1)

    sizes = {"keep": row["keep"], "steps": row["steps"], "step_size": row["step_size"]}
    instead = data if row["with_data"] else None
    candidates = t(np.array(row["candidates"]))
    actions, q = off_policy.improve(candidates, lambda a: q_all(a).mean(0), **sizes, instead_nA=instead)
    for n, (theirs, chances) in enumerate(zip(row["actions"], row["chances"], strict=True)):
        order = np.argsort(chances)[::-1]  # theirs are in the order of the candidates, and ours the best first
        assert np.allclose(actions[n].numpy(), np.array(theirs)[order], atol=1e-5)
        assert np.allclose(q[n].softmax(0).numpy(), np.array(chances)[order], atol=1e-5)

    values = t(np.array(row["v"]), True)
    loss = off_policy.expectile_loss(t(np.array(row["q"])), values, t(np.ones(len(values))), expectile=row["expectile"])
    loss.backward()
    assert loss.item() == pytest.approx(row["expectile_loss"], abs=1e-5)
    assert values.grad is not None and np.allclose(values.grad.numpy(), row["expectile_slope"], atol=1e-5)

    chosen = [t(np.array(row[name]))[:, None].expand(-1, 2, -1) for name in ("here", "there")]
    asked, q_En = torch.cat([t(np.array(row["anywhere"])), *chosen, data[:, None]], 1), q_all(data[:, None])[..., 0]
    calibrated = torch.tensor([False, False, True, True, True, True, False])
    penalty = off_policy.conservative_loss(q_all(asked), torch.zeros(4, 7), q_En, t(np.array(row["paid"])), calibrated)
    assert penalty.item() == pytest.approx(row["penalty"], abs=1e-4)


def test_novelty_is_the_distance_to_the_fifth_neighbour_as_in_rl_vlm_f_s_code() -> None:
    for row in NOVEL:
        states, others = torch.tensor(row["states"]), torch.tensor(row["others"])
        found = off_policy.novelty(states, others, neighbour=row["neighbour"])
        assert np.allclose(found.numpy(), row["novelty"], atol=1e-5)
        slow = [sorted(np.linalg.norm(s - o) for o in others.numpy())[row["neighbour"]] for s in states.numpy()]
        assert np.allclose(found.numpy(), slow, atol=1e-5)
    few = torch.tensor([[0.0], [3.0]])
    assert off_policy.novelty(few, few).tolist() == [3.0, 3.0], "with fewer neighbours the farthest"
    many = torch.rand(9000, 1, generator=torch.Generator().manual_seed(0))  # more than are looked at in one piece
    assert torch.allclose(off_policy.novelty(many[:3], many), (many[:3] - many.T).abs().sort(1).values[:, 5])


def test_targets_follow_their_sources() -> None:
    target, source = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])
    off_policy.follow([target], [source], 0.25)
    assert target.tolist() == [1.5, 2.0] and source.tolist() == [3.0, 2.0]
