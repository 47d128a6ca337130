"""Whole runs of policies that act by captured graphs, and what `generate.cuda_graphs` refuses."""

from __future__ import annotations

import pytest

import acting_cases
import runs
from mmrl.api.errors import UserError
from mmrl.policies.acting.call_graphs import CallGraphs
from mmrl.train.checks.compute import check_graphs
from recorded_graph import RecordedCapture

REACH = {"id": "robotics/reach", "options": {"dims": 4, "size": 56, "max_steps": 4, "reward": "own"}}
PPO = {"kind": "rl", "algorithm": "ppo", "steps": 3, "prompts_per_step": 8, "group_size": 1, "learning_rate": 1e-2}
PPO |= {"critic": {"hidden_sizes": [8], "warmup_steps": 0}, "ratio": "action", "credit": "action"}


def config(folder, policy, **sections):
    policy = {**policy, "options": {**policy["options"], "dims": 4, "chunk": 1}}
    whole = {"policy": policy, "tasks": [REACH], "simulate": {"num_envs": 4}, "stages": [PPO], "evaluate": {"num_prompts": 4}}
    return runs.toy_config(folder, **(whole | sections))


@pytest.mark.parametrize("kind", ["vla, one by one", "diffusion"])
def test_a_run_by_graphs_is_the_run_without(kind, tmp_path, monkeypatch):
    made = []

    def start(policy):
        policy.graphs = CallGraphs(policy.model, policy.device, RecordedCapture)
        made.append(policy.graphs)

    monkeypatch.setattr("mmrl.rollout.collector.start_by_graphs", start)
    ratio = {"stages": [{**PPO, "ratio": "chunk", "credit": "chunk"}]} if kind == "diffusion" else {}
    plain, by_graphs = (
        runs.run(config(tmp_path / name, acting_cases.REPLAYED[kind], **ratio, generate={"cuda_graphs": name == "graphs"}))
        for name in ("plain", "graphs")
    )
    (graphs,) = made
    assert graphs.captured and not graphs.failure
    assert runs.trajectory(plain.path) == runs.trajectory(by_graphs.path)


REFUSED = {
    "one pass": (
        {"kind": "act", "model": "tiny:act", "options": {"state": 8}},
        {},
        r"generate\.cuda_graphs: policy\.kind = 'act' acts in one pass, of which nothing is captured: leave it out",
    ),
    "sharded weights": (
        acting_cases.REPLAYED["pi0"],
        {"learners": 2},
        r"sharded weights lie elsewhere whenever a policy acts, .*: set compute\.weights = \"replicated\", or leave it out",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_graphs_that_could_not_be_are_refused(why, tmp_path):
    policy, compute, told = REFUSED[why]
    with pytest.raises(UserError, match=told):
        check_graphs(config(tmp_path, policy, generate={"cuda_graphs": True}, compute=compute), True)


@pytest.mark.parametrize("compute", [{"learners": 2, "weights": "replicated"}, {"learners": 2, "staleness": 1}])
def test_whole_weights_are_captured(compute, tmp_path):
    check_graphs(config(tmp_path, acting_cases.REPLAYED["pi0"], generate={"cuda_graphs": True}, compute=compute), True)


def test_on_a_cpu_it_warns_and_nothing_changes(tmp_path):
    with pytest.warns(match=r"generate\.cuda_graphs needs a GPU, and the policy acts on cpu: nothing changes"):
        found = runs.run(config(tmp_path, acting_cases.REPLAYED["vla, one by one"], generate={"cuda_graphs": True}))
    assert [step for step, _ in runs.trajectory(found.path)[0]][-1] == 3
