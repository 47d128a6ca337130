"""Calls by CUDA graphs on the pretended device: within what is captured, the host waits for nothing and copies nothing."""

from __future__ import annotations

import pytest
import torch

import acting_cases
from mmrl.policies.acting.call_graphs import CallGraphs
from mmrl.rollout.collector import start_by_graphs
from mmrl.testing.cases import some_of


@pytest.mark.parametrize("kind", some_of(tuple(acting_cases.REPLAYED), ("vla, one by one", "pi0", "smolvla", "diffusion")))
def test_what_is_captured_waits_for_nothing(device, kind, monkeypatch):
    policy = acting_cases.policy(kind, "cuda")
    calls = (torch.arange(3), torch.arange(3))
    runs_of: list[str] = []

    def watched(run, *given):
        runs_of.append(run.__name__)
        with device.no_waits(), device.counting() as seen:
            found = run(*given)
        assert not seen.copies, "a capture allows no copy from the host's memory"
        return found

    policy.act(acting_cases.seen(policy, 1, 3).on(policy.device), *calls, 1.0)  # fills the caches of constants
    monkeypatch.setattr(policy, "replayed", watched)
    policy.act(acting_cases.seen(policy, 2, 3).on(policy.device), *calls, 1.0)
    assert len(runs_of) == 1


def test_a_device_that_captures_nothing_acts_the_same(device):
    policy, plain = acting_cases.policy("pi0", "cuda"), acting_cases.policy("pi0", "cuda")
    start_by_graphs(policy)
    assert isinstance(policy.graphs, CallGraphs)
    with pytest.warns(match=r"generate\.cuda_graphs: a call can't be captured: it is as exact without, but slower"):
        for n in range(4):
            found, wanted = (
                p.act(acting_cases.seen(p, n, 2).on(p.device), torch.arange(2), torch.arange(2), 1.0).actions_nKA
                for p in (policy, plain)
            )
            assert torch.allclose(found.cpu(), wanted.cpu(), atol=1e-5)
    assert policy.graphs.failure


def test_a_policy_beneath_another_has_graphs_too(device):
    steered = {"kind": "steered", "model": "mlp", "options": {"state": 8, "base": acting_cases.REPLAYED["pi0"]}}
    policy = acting_cases.made(steered, "cuda")
    start_by_graphs(policy)
    assert policy.graphs is None and policy.base.graphs.model is policy.base.model
    squashed = {"kind": "squashed", "model": "mlp", "options": {"dims": 4, "state": 8}}
    with pytest.warns(match="acts in one pass: nothing changes"):
        start_by_graphs(acting_cases.made(squashed, "cuda"))
