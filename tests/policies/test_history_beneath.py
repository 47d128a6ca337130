"""Policies on a frozen one that sees earlier steps: it is shown them, and they read the present state alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmrl.api.simulators.history import follow
from mmrl.api.simulators.types import Observation, TrajectoryData
from mmrl.config.sections import PolicyConfig, SimulateConfig
from mmrl.policies.load import make_policy
from mmrl.registry import plugins
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators.lockstep import SimulatorCollector

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
N, DIMS, STATE = 4, 2, 2
SEEDS, CALLS = torch.arange(N), torch.zeros(N, dtype=torch.int64)
KINDS = {"squashed": ({"dims": DIMS, "residual": 0.5}, 1), "steered": ({}, 2), "robotics/residual": ({}, 2)}
"""Kind -> (its options, actions of a call of the base)."""


def base_of(kind: str) -> dict[str, Any]:
    return {
        "kind": "diffusion",
        "model": "tiny:diffusion:width=8,horizon=4,moments=2,times=2,pictures=0",
        "options": {"dims": DIMS, "state": STATE, "chunk": KINDS[kind][1], "scheduler": "DDIM"},
    }


def made(kind: str) -> Any:
    own, _ = KINDS[kind]
    options = {"base": base_of(kind), "state": STATE, "hidden": [8], **own}
    return make_policy(PolicyConfig(kind=kind, model="mlp", options=options), device="cpu", seed=1)


def moment(seed: int) -> Observation:
    state = torch.randn(N, STATE, generator=torch.Generator().manual_seed(seed))
    return Observation(images={}, state=state, instructions=["go"] * N)


def after(before: Observation, now: Observation, policy: Any) -> Observation:
    fresh_N = torch.zeros(N, dtype=torch.bool)
    return follow(now, follow(before, None, ~fresh_N, policy.history, True), fresh_N, policy.history, True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_does_depends_on_what_its_base_saw_before(kind: str) -> None:
    policy = made(kind)
    assert (policy.history, policy.history_of_steps, policy.state_moments) == (1, True, 2)
    now = moment(0)
    one, other = (policy.act(after(moment(seed), now, policy), SEEDS, CALLS, 0.0) for seed in (1, 2))
    assert (one.actions_nKA - other.actions_nKA).abs().amax((1, 2)).min() > 1e-5
    if kind != "steered":  # which begins its denoising elsewhere
        base = policy.base.act(after(moment(2), now, policy), SEEDS, CALLS, 0.0).actions_nKA
        torch.testing.assert_close(other.actions_nKA, base[:, :1])


@pytest.mark.parametrize("kind", ["squashed", "steered"])
def test_of_the_state_it_reads_the_present_one(kind: str) -> None:
    policy, now = made(kind), moment(0)
    features = policy.remembered(after(moment(1), now, policy))
    wide = policy.base.width
    assert torch.equal(features[:, wide : wide + STATE], now.state)


def test_a_correction_s_own_features_are_of_the_present_state_alone() -> None:
    policy, now = made("robotics/residual"), moment(0)
    planned = torch.zeros(N, 1, DIMS)
    one, other = (policy._features(after(moment(seed), now, policy), planned)[1] for seed in (1, 2))
    assert torch.equal(one, other)
    assert (policy._features(after(now, moment(1), policy), planned)[1] - one).abs().max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_counts_all_moments(kind: str) -> None:
    """A call of the base, and where it chose a chunk, a correction of each of its actions."""
    policy = made(kind)
    shown, flops = after(moment(1), moment(0), policy), []
    for call in range(policy.base.chunk if kind == "robotics/residual" else 1):
        with FlopCounterMode(display=False) as counter:
            policy.act(shown, SEEDS, CALLS + call, 0.0)
        flops.append(counter.get_total_flops())
    own, _ = KINDS[kind]
    options = {"base": base_of(kind), "state": STATE, "hidden": [8], **own}
    planned = type(policy).planned(PolicyConfig(kind=kind, model="mlp", options=options))
    with FlopCounterMode(display=False) as counter:
        planned.call(N, 0)
    assert counter.get_total_flops() == sum(flops) and planned.dims == DIMS


@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_has_what_was_seen_at_each_call_and_at_its_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of earlier steps, not calls, also where a chunk has two of them."""
    monkeypatch.setenv("MMRL_PLUGIN_FILES", DIAL)
    policy, task = made(kind), plugins.registry().make_task("dial/turn", {"n": 4, "never": True})
    prompts = [replace(p, task="dial/turn") for p in task.prompts("train", 0)]
    collector = SimulatorCollector(policy, {"dial/turn": task}, SimulateConfig(num_envs=2))
    found = collector.collect(prompts, collector.encode(prompts), 1, SamplingParams(max_tokens=1, temperature=1.0, seed=5))
    collector.close()
    assert max(len(one.data.choices) for one in found) > 1
    within = 0
    for one in found:
        track: TrajectoryData = one.data
        assert track.state.shape[1] == 2 * STATE
        assert torch.equal(track.state[0, :STATE], track.state[0, STATE:]), "nothing was before the first step"
        before, called = track.state[1:, :STATE], track.state[:-1, STATE:]
        assert policy.chunk > 1 or torch.equal(before, called)
        within += int((before != called).any())
        if kind != "robotics/residual":
            features, _ = policy.transitions(track)
            wide = policy.base.width
            again = policy.remembered_of(track)[:, : wide + STATE]  # a base's action that is corrected begins with other noise
            torch.testing.assert_close(features[:, : wide + STATE], again, atol=1e-5, rtol=1e-5)
            assert torch.equal(features[:, wide : wide + STATE], track.state[:, STATE:])
    assert bool(within) == (policy.chunk > 1), "the last step is the last call, or within it"


@pytest.mark.parametrize("residual", [0.0, 0.5])
def test_features_begin_with_the_base_s_hidden_states(residual: float) -> None:
    options = {"base": base_of("squashed"), "state": STATE, "hidden": [8], "dims": DIMS, "residual": residual}
    policy: Any = make_policy(PolicyConfig(kind="squashed", model="mlp", options=options), device="cpu", seed=1)
    state = torch.randn(N, STATE * policy.state_moments)
    seen = Observation(images={}, state=state, instructions=[""] * N)
    features, wide = policy.remembered(seen), policy.base.width
    assert torch.allclose(features[:, :wide], policy.base.states_of(seen)) and features[:, :wide].abs().max() > 0
    assert torch.equal(features[:, wide : wide + STATE], state[:, -STATE:]) and features.shape[1] == policy.width
