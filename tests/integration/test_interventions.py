"""Another takes over: what was carried out is remembered and kept with the offline data, and who learns only from what a policy
did refuses it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import runs
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.config.sections import EvaluateConfig
from mmrl.train.stages.off_policy import OffPolicySteps

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
POLICY = {"kind": "squashed", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [16]}}
STAGE = {"kind": "off-policy", "steps": 3, "prompts_per_step": 4, "updates": 1, "batch_size": 16, "critics": 2, "hidden": [16]}
VLA = {"kind": "vla", "model": "tiny:qwen2_5_vl:hidden=32,layers=1", "options": {"dims": 2}}
IMPROVE = {"improve": {"candidates": 3, "keep": 2, "steps": 1, "batch_size": 4, "updates": 0.2}}


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL]))


def config(folder: Path, name: str = "dial", policy: Any = POLICY, helps: float = 0.3, kind: str = "", **stage: Any) -> Any:
    options = {"n": 500, "helps": helps, "reward": "stages", "stages": {"success": 1.0}}
    data = {
        "name": name,
        "runs_dir": str(folder),
        "policy": policy,
        "tasks": [{"id": "dial/turn", "options": options, "verifiers": {"dial/success": 0.0}}],
        "stages": [{"kind": kind, "steps": 1, "prompts_per_step": 2, **stage} if kind else STAGE | stage],
        "simulate": {"num_envs": 4},
        "evaluate": {"num_prompts": 0},
        "record": {"trackers": [], "rollouts": 4},
        "train": {"threads": 1},
    }
    return parse_config(data)


def last(folder: Path) -> Path:
    return sorted((folder / "checkpoints").glob("step-*"))[-1]


@pytest.mark.slow
@pytest.mark.parametrize("offline", [{"offline": "expert", "offline_episodes": 4}, {}], ids=["demonstrations", "none"])
def test_what_was_carried_out_is_remembered_and_kept_with_the_offline_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: dict[str, Any]
) -> None:
    """Of each episode, against what a walk over its steps says; the metrics are those of the episodes."""
    tracks, keep = [], OffPolicySteps.keep
    monkeypatch.setattr(OffPolicySteps, "keep", lambda self, r, s: (tracks.append((r, self.offline)), keep(self, r, s))[1])
    folder = runs.run(config(tmp_path, n_step=3, **offline)).path
    memory, kept = (load_file(last(folder) / f"{name}.safetensors") for name in ("memory", "offline"))
    given = len(kept["rewards"]) - sum(int(r.data.corrected_T.sum()) for r, _ in tracks)
    assert (given > 0) == bool(offline), "the expert's own episodes come first"
    at, new = 0, given
    for rollout, _ in tracks:
        track = rollout.data
        whole = memory["rewards"][at : at + len(track.rewards_TK)]
        for t in range(len(track.rewards_TK)):
            pointer, mark = track.state[t].tolist()
            expert = torch.tensor([max(-1.0, min(1.0, (mark - pointer) / 0.5)), -0.5])
            assert torch.equal(memory["actions"][at], track.actions_TKA[t, 0].clamp(-1, 1))
            if track.corrected_T[t]:
                assert torch.allclose(memory["actions"][at], expert, atol=1e-6) and track.logprobs_TKC[t].isnan().all()
                same = ("seen", "after", "actions", "rewards", "paid", "terminated")
                assert all(torch.equal(memory[name][at], kept[name][new]) for name in same), "the return is the whole episode's"
                ends = t + 1 == len(whole) or not track.corrected_T[t + 1]
                assert kept["ends"][new] == ends, "returns of several steps end where the other stopped"
                new += 1
            else:
                assert (memory["actions"][at, 0] - expert[0]).abs() <= 0.3 + 1e-6 and not track.logprobs_TKC[t].isnan().any()
            at += 1
    assert at == len(memory["rewards"]) and new == len(kept["rewards"]) and 0 < new - given < at
    figures = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    assert figures[-1]["off_policy/offline"] == new
    for n, metrics in enumerate(figures):
        some = [r for r, _ in tracks[4 * n : 4 * n + 4]]
        shares = [r.data.corrected_T.float().mean().item() for r in some]
        assert metrics["episode/intervened_share"] == pytest.approx(sum(shares) / 4)
        assert metrics["episode/intervened"] == sum(s > 0 for s in shares) / 4
        alone = [r.outcome["success"] for r, s in zip(some, shares, strict=True) if not s]
        assert metrics.get("episode/success_alone") == (pytest.approx(sum(alone) / len(alone)) if alone else None)


@pytest.mark.slow
@pytest.mark.parametrize("way", [{}, {"policy": VLA, **IMPROVE}], ids=["rlpd", "pa-rl"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, way: dict[str, Any]) -> None:
    """Also of a policy that sees the scenes of the interventions again."""
    stage = {"offline": "expert", "offline_episodes": 2, **way}
    whole = runs.run(config(tmp_path, "whole", **stage)).path
    with pytest.raises(KeyboardInterrupt):
        runs.run(config(tmp_path, "broken", **stage), progress=runs.Silent(stop_after=2))
    resumed = runs.run(config(tmp_path, "broken", **stage), resume=True).path
    files = {p.name for p in last(whole).glob("*.safetensors")}
    scenes = {"scenes.safetensors", "offline-scenes.safetensors"} if way else set()
    assert files == {"learner.safetensors", "memory.safetensors", "offline.safetensors"} | scenes
    for file in files:
        one, two = load_file(last(whole) / file), load_file(last(resumed) / file)
        assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one), file


def test_a_run_whose_simulator_says_nothing_of_it_is_as_before(tmp_path: Path) -> None:
    folder = runs.run(config(tmp_path, helps=9.0, steps=1)).path
    assert not (last(folder) / "offline.safetensors").exists()
    (metrics,) = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    assert not any("intervened" in key or key in ("episode/success_alone", "off_policy/offline") for key in metrics)


def test_a_stage_that_learns_from_what_the_policy_did_refuses_it(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r'^stages\.0: kind = "rl" learns from what the policy did, and in \d+ of 4 episodes anot'
    ):
        runs.run(config(tmp_path, kind="rl", group_size=2))


@pytest.mark.slow
def test_recap_takes_what_was_carried_out_for_an_expert_s(tmp_path: Path) -> None:
    folder = runs.run(config(tmp_path, policy=VLA, kind="recap", updates=1, batch_size=4)).path
    (metrics,) = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    assert metrics["recap/corrected_share"] > 0 and metrics["episode/intervened"] > 0


@pytest.mark.slow
def test_the_simulator_s_expert_takes_over_as_a_person_would(tmp_path: Path) -> None:
    """From some step on, to the end; and what is evaluated is the policy alone."""
    stage = {"interventions": 0.7, "prompts_per_step": 12, "steps": 2}
    folder = runs.run(config(tmp_path, helps=9.0, **stage).model_copy(update={"evaluate": EvaluateConfig(num_prompts=4)})).path
    figures = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    assert all(0 < m["episode/intervened_share"] < m["episode/intervened"] < 1 for m in figures)
    assert len(load_file(last(folder) / "offline.safetensors")["rewards"]) == figures[-1]["off_policy/offline"] > 0
    evaluated = [row["eval"] for row in runs.rows(folder) if "eval" in row]
    assert evaluated and not any(e["extra"].get("intervened", 0.0) for e in evaluated)
    told = "improve.acts the critics choose in place of the policy"
    with pytest.raises(UserError, match=told):
        config(tmp_path, interventions=0.5, **IMPROVE)
