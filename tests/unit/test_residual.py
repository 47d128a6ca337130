"""A correction of a frozen policy: what the base plans, when it looks, and what is learned from."""

import pytest
import torch

from mmrl.policies.acting import Calls
from mmrl.policies.critic import Critic
from mmrl.policies.heads import Draw
from mmrl.policies.residual import Residual
from mmrl.policies.small import Small
from mmrl.schema import CriticConfig, PolicyConfig
from mmrl.simulation import Observation

STATE, DIMS = 3, 2


def seen(rows: torch.Tensor) -> Observation:
    return Observation(images={}, state=rows, instructions=["go"] * len(rows))


def draw(seeds: list[int], calls: list[int]) -> Draw:
    return Draw(seeds_n=torch.tensor(seeds), calls_n=torch.tensor(calls))


@pytest.fixture(params=[1, 3])
def residual(request, tmp_path) -> Residual:
    """Over a base with chunks of 1 or 3."""
    base = Small(PolicyConfig(model="mlp"), dims=DIMS, state=STATE, chunk=request.param, hidden=[16], seed=5)
    with torch.no_grad():
        for parameter in base.model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    base.save(tmp_path)
    return Residual(PolicyConfig(model="mlp"), base=str(tmp_path), state=STATE, hidden=[16], seed=7, scale=0.5)


def test_the_base_carries_out_its_chunks_whatever_stands_beside_it(residual):
    """Three episodes that began at different calls, in any order of rows: each follows the plan of its last look."""
    chunk, states = residual.base.chunk, torch.randn(8, 3, STATE, generator=torch.Generator().manual_seed(2))
    plans: dict[int, torch.Tensor] = {}
    for t in range(8):
        envs = [e for e in ([0, 1, 2], [2, 0, 1])[t % 2] if t >= e]  # environment e begins at call e
        seeds, calls = [100 + e for e in envs], [t - e for e in envs]
        actions, choices, _, _ = residual.choose(seen(states[t, envs]), draw(seeds, calls), 1.0)
        for row, (e, call) in enumerate(zip(envs, calls, strict=True)):
            if call % chunk == 0:
                alone = residual.base.choose(seen(states[t, [e]]), draw([100 + e], [call]), 0.0)[0].clamp(-1, 1)
                plans[e] = alone[0]
            expected = plans[e][call % chunk]
            torch.testing.assert_close(choices[row, 0, DIMS:], expected)
            moved = choices[row, 0, :DIMS].clamp(-1, 1)
            torch.testing.assert_close(actions[row, 0], (expected + 0.5 * moved).clamp(-1, 1))


def test_at_first_nothing_is_corrected(residual):
    rows = torch.randn(4, STATE)
    actions = residual.choose(seen(rows), draw([1, 2, 3, 4], [0] * 4), 0.0)[0]
    torch.testing.assert_close(actions, residual.base.choose(seen(rows), draw([1, 2, 3, 4], [0] * 4), 0.0)[0][:, :1].clamp(-1, 1))


def test_what_is_learned_from_is_what_was_drawn(residual):
    """Log-probabilities and the states that a critic reads, without asking the base again."""
    with torch.no_grad():
        residual.head.mean[-1].weight.normal_(generator=torch.Generator().manual_seed(3))
    rows = torch.randn(5, STATE, generator=torch.Generator().manual_seed(4))
    start = draw([1, 2, 3, 4, 5], [0] * 5)
    residual.choose(seen(rows.flip(0)), start, 1.0)
    later = draw([1, 2, 3, 4, 5], [1] * 5)  # in mid-chunk, where the base has chunks
    _, choices, logprobs, states = residual.choose(seen(rows), later, 0.7)
    calls = Calls(
        observation=seen(rows),
        choices=choices,
        slots=1,
        valid_SK=torch.ones(5, 1, dtype=torch.bool),
        ratio="action",
        sampler_logprobs_L=logprobs.flatten(),
        advantages_L=torch.zeros(5),
        rollout_L=torch.arange(5),
        place_L=torch.zeros(5, dtype=torch.int64),
        off_policy_L=torch.zeros(5, dtype=torch.bool),
    )
    asked = residual.base.choose
    residual.base.choose = None  # type: ignore[method-assign]
    try:
        torch.testing.assert_close(residual.scored(calls, 0.7)[0], logprobs)
        torch.testing.assert_close(residual.states(calls), states)
    finally:
        residual.base.choose = asked  # type: ignore[method-assign]


def test_the_value_of_a_state_is_that_of_the_state_with_the_planned_action(residual):
    """As when the next call comes, so that a cut-off is bootstrapped with what `act` would have said there."""
    critic = Critic(residual, CriticConfig(hidden=[8]), seed=0)
    with torch.no_grad():
        for parameter in critic.head.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(6))
    before, rows = torch.randn(2, 4, STATE, generator=torch.Generator().manual_seed(5))
    seeds_n, calls_n = torch.arange(4), torch.ones(4, dtype=torch.int64)
    residual.act(seen(before), seeds_n, calls_n - 1, 1.0)
    said = residual.values(seen(rows), seeds_n, calls_n, critic)
    torch.testing.assert_close(said, residual.act(seen(rows), seeds_n, calls_n, 1.0, critic).values_nU)
    if residual.base.chunk > 1:  # a new look would plan something else
        other = residual.values(seen(rows), seeds_n + 50, calls_n * 0, critic)
        assert (said - other).abs().max() > 1e-3
