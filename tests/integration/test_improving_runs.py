"""Whole runs of PA-RL and RECAP: they learn, resume bit for bit, and say what is wrong."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mmrl_robotics.small import Small
from safetensors.torch import load_file

import runs
from mmrl.api.errors import UserError
from mmrl.api.types import Status
from mmrl.config.load import parse_config
from mmrl.policies.acting.base import ActingPolicy
from mmrl.policies.load import make_policy
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.train.resolve import resolve
from mmrl.train.smoke import smoke
from mmrl.train.smoke_shows import told, unproved

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
SQUASHED = {"kind": "squashed", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [32, 32]}}
SMALL = {"kind": "robotics/small", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [32, 32]}}
FLOW = {**SMALL, "options": {**SMALL["options"], "head": "flow"}}  # type: ignore[dict-item]
HOW = {"candidates": 8, "keep": 4, "steps": 2, "step_size": 0.05, "batch_size": 32}
PARL = {"kind": "off-policy", "steps": 4, "prompts_per_step": 4, "updates": 1, "batch_size": 32, "critics": 3}
PARL |= {"hidden": [32, 32], "learning_rate": 2e-3, "improve": HOW}
RECAP = {"kind": "recap", "steps": 4, "prompts_per_step": 4, "updates": 3, "batch_size": 16, "learning_rate": 2e-3}
RECAP |= {"bins": 21, "hidden": [16], "value_updates": 5, "value_batch_size": 16, "lookahead": 2}


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL]))
    monkeypatch.setattr(Small, "reads_text", True)  # as those that recap is for


def config(folder: Path, stage: dict[str, Any], name: str = "dial", policy: Any = FLOW, sections: Any = None, **keys: Any) -> Any:
    paid = {"reward": "stages", "stages": {"near": 0.2, "success": 1.0}}
    return parse_config(
        {
            "name": name,
            "runs_dir": str(folder),
            "policy": policy,
            "tasks": [{"id": "dial/turn", "options": {"n": 500, **paid}, "verifiers": {"dial/success": 0.0}}],
            "stages": [stage | keys],
            "simulate": {"num_envs": 4},
            "evaluate": {"num_prompts": 16},
            "record": {"trackers": [], "rollouts": 4},
            "train": {"threads": 1},
            **(sections or {}),
        }
    )


def metrics(folder: Path) -> list[dict[str, float]]:
    return [row["metrics"] for row in runs.rows(folder) if "metrics" in row]


def trajectory(folder: Path) -> list[Any]:
    """Metrics but for times and speeds, and evaluations."""
    timed = ("time/", "memory/", "simulator/", "policy/")
    return [row.get("eval") or {k: v for k, v in row["metrics"].items() if not k.startswith(timed)} for row in runs.rows(folder)]


def last(folder: Path) -> Path:
    return sorted((folder / "checkpoints").glob("step-*"))[-1]


RESUMED = {
    "flow": (FLOW, PARL | {"offline": "expert", "offline_episodes": 4, "n_step": 2, "improve": HOW | {"state": 2}}),
    "squashed": (SQUASHED, PARL | {"offline": "expert", "offline_episodes": 4, "conservative": 0.1, "priority": 0.6}),
    "iql": (FLOW, PARL | {"improve": HOW | {"expectile": 0.8, "acting_temperature": 0.5, "imitation_temperature": 0.5}}),
    "recap": (FLOW, RECAP | {"expert_episodes": 4, "interventions": 0.5, "state": 2, "ema_decay": 0.5}),
}


@pytest.mark.parametrize("kind", RESUMED)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, kind: str) -> None:
    policy, stage = RESUMED[kind]
    whole = runs.run(config(tmp_path, stage, "whole", policy)).path
    broken = config(tmp_path, stage, "broken", policy)
    with pytest.raises(KeyboardInterrupt):
        runs.run(broken, progress=runs.Silent(stop_after=2))
    resumed = runs.run(broken, resume=True).path
    names = {path.name for path in last(whole).glob("*.safetensors")}
    assert names == {path.name for path in last(resumed).glob("*.safetensors")} and len(names) >= 2
    for file in (*sorted(names), "policy/acting.safetensors"):
        one, two = load_file(last(whole) / file), load_file(last(resumed) / file)
        assert one.keys() == two.keys() and one, file
        assert all(torch.equal(one[name], two[name]) for name in one), file
    assert trajectory(whole) == trajectory(resumed)


def test_the_policy_plays_alone_until_the_critics_are_warm_and_then_by_their_choice(tmp_path: Path) -> None:
    stage = PARL | {"improve": HOW | {"warmup_steps": 2, "updates": 0.25}}
    folder = runs.run(config(tmp_path, stage)).path
    rows = metrics(folder)
    assert ["loss" in row for row in rows] == [False, False, True, True]
    steps = [row["length/mean"] * 4 for row in rows]
    assert [row["off_policy/updates"] for row in rows] == pytest.approx(steps)
    assert [row["off_policy/imitations"] for row in rows[2:]] == [max(1, round(count / 4)) for count in steps[2:]]
    policies = [row["time/step"] > 0 for row in rows]
    assert all(policies) and rows[-1]["off_policy/transitions"] == pytest.approx(sum(steps))


def test_what_was_played_is_the_best_of_the_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training; evaluations are of the policy alone."""
    from mmrl.train.stages.improving import ImprovingSteps

    asked: list[int] = []
    real = ImprovingSteps.choose

    def watched(self: ImprovingSteps, seen: Any, seeds_n: Any, calls_n: Any, temperature: float) -> Any:
        found = real(self, seen, seeds_n, calls_n, temperature)
        features = self.sees.remembered(seen)
        candidates = self.policy.candidates(seen, seeds_n, calls_n, 8, temperature).flatten(2)
        best = self.learner.critic(features, found.actions_nKA.flatten(1)).mean(0)
        assert (best >= self.learner.critic(features, candidates).mean(0).amax(1) - 1e-5).all()
        asked.append(len(seen))
        return found

    monkeypatch.setattr(ImprovingSteps, "choose", watched)
    folder = runs.run(config(tmp_path, PARL, steps=3, sections={"evaluate": {"num_prompts": 8, "every": 1}})).path
    rows = metrics(folder)
    assert sum(asked) == sum(row["length/mean"] * 4 for row in rows[1:]), "not before the critics have learned"
    kept = load_file(last(folder) / "memory.safetensors")
    assert kept["actions"].abs().max() <= 1 and kept["actions"].shape[1] == 2


@pytest.mark.slow
@pytest.mark.parametrize("policy", [SQUASHED, FLOW], ids=["squashed", "flow"])
def test_it_learns(tmp_path: Path, policy: Any) -> None:
    stage = PARL | {"offline": "expert", "offline_episodes": 16, "steps": 8, "prompts_per_step": 16}
    summary = json.loads((runs.run(config(tmp_path, stage, policy=policy)).path / "summary.json").read_text())
    before, after = (summary[name]["dial/turn"]["value"] for name in ("before", "last"))
    assert before < 0.8 and after > 0.9


@pytest.mark.parametrize("stage", [PARL | {"offline": "expert", "offline_episodes": 50}, RECAP | {"expert_episodes": 9}])
def test_a_smoke_run_proves_its_update(tmp_path: Path, stage: dict[str, Any]) -> None:
    folder = runs.run(smoke(config(tmp_path, stage, steps=50))).path
    proof = json.loads((folder / "summary.json").read_text())["smoke"]
    assert not unproved(proof), told(proof)


def test_recap_plays_as_if_all_went_well_and_remembers_who_did_what(tmp_path: Path) -> None:
    folder = runs.run(config(tmp_path, RECAP, steps=2, prompts_per_step=16, interventions=0.5, expert_episodes=3)).path
    rows = metrics(folder)
    assert {"value_loss", "recap/value_error", "recap/calls", "condition/positive_share", "loss"} <= rows[0].keys()
    kept = load_file(last(folder) / "experience.safetensors")
    done = torch.cat([kept[f"{n}/corrected"] for n in range(32)])
    taken = [bool(kept[f"{n}/corrected"].any()) for n in range(32)]
    assert 0 < sum(taken) < 32 and not done.all()
    for n in range(32):
        corrected = kept[f"{n}/corrected"].tolist()
        assert corrected == sorted(corrected), "who took over goes on to the end"
    listed = [json.loads(line) for line in (folder / "rollouts" / "step-000001.jsonl").read_text().splitlines()]
    assert {row["messages"][0]["content"][-1]["text"] for row in listed} == {"turn to the mark Advantage: positive"}
    assert {row["source"] for row in listed} <= {"policy", "gold"}


def test_guidance_is_by_the_text_in_training_and_in_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, list[str], list[float]]] = []
    real = ActingPolicy.act

    def watched(self: ActingPolicy, seen: Any, *given: Any, guidance: Any = None) -> Any:
        guidance = given[4] if len(given) > 4 else guidance
        if guidance is not None:
            assert seen.instructions == [f"{text} Advantage: positive" for text in guidance.plain.instructions]
            asked.append((len(seen), guidance.plain.instructions, guidance.weights_n.tolist()))
        return real(self, seen, *given[:4], guidance=guidance)

    monkeypatch.setattr(ActingPolicy, "act", watched)
    folder = runs.run(config(tmp_path, RECAP, steps=1, guidance=2.0, sections={"evaluate": {"num_prompts": 8}})).path
    assert {text for _, texts, _ in asked for text in texts} == {"turn to the mark"}
    assert {weight for *_, weights in asked for weight in weights} == {2.0}
    before, after = (row["eval"] for row in runs.rows(folder) if "eval" in row)
    assert before and after and sum(count for count, *_ in asked) > metrics(folder)[0]["length/mean"] * 4, "evaluations too"


def test_a_policy_that_cannot_be_guided_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither of tokens nor a flow, and can't be guided: set it to 1"):
        runs.run(config(tmp_path, RECAP, policy=SMALL, guidance=2.0))


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("keep", PARL | {"improve": HOW | {"keep": 9}}, {}, "improve.keep = 9 of candidates = 8"),
    ("none kept", PARL | {"improve": HOW | {"keep": 1, "data_action": True}}, {}, "keep = 1 would leave none: raise keep"),
    ("drawn", PARL | {"improve": HOW | {"acts": False, "acting_temperature": 1.0}}, {}, "no effect without acts = true"),
    ("iql", PARL | {"conservative": 1.0, "improve": HOW | {"expectile": 0.7}}, {}, "no effect without other critics than IQL's"),
    ("subset", PARL | {"subset": 1, "improve": HOW | {"expectile": 0.7}}, {}, "subset has no effect without other critics than"),
    ("entropy", PARL | {"start_temperature": 0.5}, {}, "start_temperature has no effect without a soft actor-critic"),
    ("memory", PARL | {"offline": __file__}, {}, "a memory has no pictures"),
    ("state", PARL | {"improve": HOW | {"state": 2}}, {"policy": SQUASHED}, "set policy.options.state"),
    ("no improve", {k: v for k, v in PARL.items() if k != "improve"}, {}, "or set improve, which needs none"),
    ("words", PARL, {"policy": {"model": "tiny:qwen2_5_vl"}}, "but policy.kind = 'vlm' writes"),
    ("learners", RECAP, {"sections": {"compute": {"learners": 2}}}, 'kind = "recap" learns in one process'),
    ("failure", RECAP | {"failure": 0.0}, {}, "failure = 0 makes a failed episode as good"),
    ("no drop", RECAP | {"guidance": 2.0, "condition": {"drop": 0.0}}, {}, "set condition.drop above 0"),
    ("no text", RECAP, {"policy": SQUASHED}, "reads no instruction"),
    ("chunks", RECAP | {"interventions": 0.5}, {"policy": {**FLOW, "options": {**FLOW["options"], "chunk": 2}}}, "chunk = 1"),
    ("blank", RECAP | {"condition": {"positive": " "}}, {}, "condition.positive is blank"),
]


@pytest.mark.parametrize(("stage", "keys", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_it_cannot_do_is_refused(tmp_path: Path, stage: dict[str, Any], keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(config(tmp_path, stage, **keys))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_policy_that_learns_more_actions_than_it_carries_out_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ActingPolicy, "ahead", property(lambda self: 3))
    with pytest.raises(UserError, match="learns 3 actions at a time and carries out 1"):
        runs.run(config(tmp_path, PARL))


def test_chunks_are_chosen_as_a_whole(tmp_path: Path) -> None:
    policy = {**FLOW, "options": {**FLOW["options"], "chunk": 2}}
    stage = PARL | {"offline": "expert", "offline_episodes": 4, "steps": 2}
    folder = runs.run(config(tmp_path, stage, policy=policy)).path
    assert load_file(last(folder) / "memory.safetensors")["actions"].shape[1] == 4
    assert make_policy(config(tmp_path, stage, policy=policy).policy, device="cpu", seed=0).chunk == 2
    runs.run(config(tmp_path, RECAP | {"expert_episodes": 4, "steps": 2}, "recap", policy=policy))


def test_a_first_step_whose_episodes_are_lost_teaches_nothing_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, calls = SimulatorCollector.collect, list[Any]()

    def losing(self: Any, *arguments: Any, **options: Any) -> list[Any]:
        calls.append(self)
        played = collect(self, *arguments, **options)
        return [replace(r, data=None, status=Status.ENVIRONMENT_ERROR) for r in played] if len(calls) == 1 else played

    monkeypatch.setattr(SimulatorCollector, "collect", losing)
    folder = runs.run(config(tmp_path, RECAP | {"steps": 2}, sections={"evaluate": {"num_prompts": 0}}))
    nothing, some = metrics(folder.path)
    assert nothing["recap/calls"] == 0 < some["recap/calls"] and "loss" not in nothing and "loss" in some
