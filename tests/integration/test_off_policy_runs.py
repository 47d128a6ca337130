"""Whole runs of `off-policy` stages: they learn, resume bit for bit, are used like other policies, and say what is wrong."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import runs
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.config.load import parse_config
from mmrl.config.sections import OffPolicyStage, PolicyConfig
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.load import make_policy, saved_policy
from mmrl.policies.squashed import Squashed
from mmrl.run_folder.reader import read_jsonl, read_run
from mmrl.train.resolve import resolve
from mmrl.train.smoke import smoke
from mmrl.train.smoke_shows import told, unproved
from mmrl.train.stages.off_policy import OffPolicySteps
from mmrl.train.start import evaluate_only
from mmrl.train.trackers.tables import rollout_rows
from mmrl.ui.cli import main
from mmrl.ui.report.report import write_report

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
POLICY = {"kind": "squashed", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [32, 32]}}
STAGE = {"kind": "off-policy", "steps": 4, "prompts_per_step": 4, "updates": 1, "batch_size": 32, "critics": 3}
STAGE |= {"hidden": [32, 32], "learning_rate": 2e-3, "start_temperature": 0.1}

TD3 = {
    "td3": {"warmup_updates": 3},
    "start_temperature": 1.0,
    "policy": {**POLICY, "options": {**POLICY["options"], "noise": 0.3}},
}  # type: ignore[dict-item]

IQL = {"iql": {}, "start_temperature": 1.0, "offline_steps": 3, "offline_updates": 5}


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL]))


def data_of(folder: Path, name: str = "dial", policy: Any = POLICY, sections: Any = None, **stage: Any) -> dict[str, Any]:
    paid = {"reward": "stages", "stages": {"near": 0.2, "success": 1.0}}
    return {
        "name": name,
        "runs_dir": str(folder),
        "policy": policy,
        "tasks": [{"id": "dial/turn", "options": {"n": 500, **paid}, "verifiers": {"dial/success": 0.0}}],
        "stages": [STAGE | stage],
        "simulate": {"num_envs": 4},
        "evaluate": {"num_prompts": 16},
        "record": {"trackers": [], "rollouts": 4},
        "train": {"threads": 1},
        **(sections or {}),
    }


def config(folder: Path, name: str = "dial", policy: Any = POLICY, sections: Any = None, **stage: Any) -> Any:
    return parse_config(data_of(folder, name, policy, sections, **stage))


def trajectory(folder: Path) -> list[Any]:
    """Metrics but for times and speeds, and evaluations."""
    timed = ("time/", "memory/", "simulator/", "policy/")
    return [row.get("eval") or {k: v for k, v in row["metrics"].items() if not k.startswith(timed)} for row in runs.rows(folder)]


def last(folder: Path) -> Path:
    return sorted((folder / "checkpoints").glob("step-*"))[-1]


CROSSQ = {"crossq": {"warmup_updates": 8}}
DROQ = {"dropout": 0.01, "conservative": 0.5, "conservative_calibrated": False}


@pytest.mark.parametrize("way", [{}, TD3, IQL, CROSSQ, DROQ], ids=["soft actor-critic", "td3", "iql", "crossq", "dropout"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, way: dict[str, Any]) -> None:
    """With priorities, which the memory holds, returns of several steps, the expert's episodes, and mean weights."""
    stage = {"priority": 0.6, "n_step": 2, "offline": "expert", "offline_episodes": 6, "ema_decay": 0.5, **way}
    whole = runs.run(config(tmp_path, "whole", **stage)).path
    broken = config(tmp_path, "broken", **stage)
    with pytest.raises(KeyboardInterrupt):
        runs.run(broken, progress=runs.Silent(stop_after=2))
    resumed = runs.run(broken, resume=True).path
    assert last(whole).name == last(resumed).name == "step-000004"
    for file in ("learner.safetensors", "memory.safetensors", "policy/acting.safetensors"):
        one, two = load_file(last(whole) / file), load_file(last(resumed) / file)
        assert one.keys() == two.keys() and len(one) > 4, file
        assert all(torch.equal(one[name], two[name]) for name in one), file
    assert trajectory(whole) == trajectory(resumed)


LEARNING = """
import torch
from mmrl import SamplingRule, SamplingRuleSpec, hookimpl

@hookimpl
def mmrl_sampling_rules():
    return [SamplingRuleSpec(id=f"taste/{name.lower()}", target=f"taste:{name}") for name in ("Red", "Plain", "Choosy")]

class Red(SamplingRule):
    '''Pays the mean of the picture after each call, ever more: it has learned in every second step.'''
    rewards = True
    def __init__(self):
        self.steps = self.revision = 0
    def __call__(self, groups, sample):
        self.revision = self.steps // 2 + 1
        self.steps += 1
        for group in groups:
            for n, rollout in enumerate(group.rollouts):
                paid = self._of(rollout.data.images["front"][1:]).tolist()
                group.pay("red", [sum(paid) if n == m else 0.0 for m in range(len(group.rollouts))])
                object.__setattr__(group.scores[n], "steps", tuple(paid))
        return groups
    def _of(self, pictures):
        return self.revision * pictures.float().mean((1, 2, 3)) / 255
    def pay_for(self, after):
        return self._of(after.images["front"])
    def state(self): return {"steps": torch.tensor([self.steps, self.revision])}
    def load_state(self, tensors): self.steps, self.revision = tensors["steps"].tolist()

class Plain(SamplingRule):
    rewards = True
    def __call__(self, groups, sample): return groups

class Choosy(SamplingRule):
    phase = "select"
    def __call__(self, groups, sample): return groups
"""


@pytest.fixture(scope="module")
def taste_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "taste.py"
    path.write_text(LEARNING)
    return path


@pytest.fixture
def taste(taste_file: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL, str(taste_file)]))
    return {"rules": [{"id": "taste/red"}], "offline": "expert", "offline_episodes": 4}


@pytest.mark.parametrize("kind", ["soft actor-critic", "pa-rl"])
def test_what_a_learned_reward_pays_is_corrected_in_the_whole_memory_and_resumes(
    tmp_path: Path, taste: dict[str, Any], kind: str
) -> None:
    how = {"candidates": 2, "keep": 1, "steps": 1, "batch_size": 8}
    improve = {"improve": how, "start_temperature": 1.0} if kind == "pa-rl" else {}
    policy = {"kind": "robotics/small", "model": "mlp", "options": POLICY["options"]} if improve else POLICY
    stage = taste | {"capacity": 40} | improve
    whole = runs.run(config(tmp_path, "whole", policy, **stage)).path
    broken = config(tmp_path, "broken", policy, **stage)
    with pytest.raises(KeyboardInterrupt):
        runs.run(broken, progress=runs.Silent(stop_after=2))
    resumed = runs.run(broken, resume=True).path
    for file in ("learner.safetensors", "memory.safetensors", "scenes.safetensors", "rule-0.safetensors"):
        one, two = load_file(last(whole) / file), load_file(last(resumed) / file)
        assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one), file
    assert trajectory(whole) == trajectory(resumed)
    kept, scenes = (load_file(last(whole) / file) for file in ("memory.safetensors", "scenes.safetensors"))
    numbers = range(max(int(name.partition("/")[0]) for name in scenes) + 1)
    pictures = torch.cat([scenes[f"{n}/image/front"][1:] for n in numbers]).float().mean((1, 2, 3))[-40:] / 255
    added = sum(row["metrics"]["off_policy/updates"] for row in runs.rows(whole) if "metrics" in row)
    kept = {name: x if name == "highest" else x.roll(-int(added) % 40, 0) for name, x in kept.items()}  # the oldest first
    paid = kept["rewards"] - kept["fixed"]
    assert len(kept["rewards"]) == 40 < added and torch.allclose(paid, 2 * pictures, atol=1e-5), "by what it learned last"
    later, expected = 0.0, []
    for reward, end in zip(kept["rewards"].flip(0).tolist(), kept["ends"].flip(0).tolist(), strict=True):
        later = reward + 0.99 * (0.0 if end else later)
        expected.append(later)
    assert torch.allclose(kept["paid"], torch.tensor(expected[::-1]), atol=1e-4)


def test_steps_that_a_verifier_pays_are_paid_with_their_calls(tmp_path: Path, taste: dict[str, Any]) -> None:
    """And the rest with the last: here the rule pays its steps, and the verifier 10 for success."""
    data = data_of(tmp_path, steps=1, prompts_per_step=8, rules=taste["rules"])
    data["tasks"][0]["options"]["reward"], data["tasks"][0]["verifiers"] = "none", {"dial/success": 10.0}
    del data["tasks"][0]["options"]["stages"]
    kept = load_file(last(runs.run(parse_config(data)).path) / "memory.safetensors")
    assert torch.allclose(kept["fixed"][~kept["ends"]], torch.zeros(1), atol=1e-5)
    assert {round(x, 3) for x in kept["fixed"][kept["ends"]].tolist()} <= {0.0, 10.0}


def test_rules_that_cannot_pay_for_a_memory_are_refused(tmp_path: Path, taste: dict[str, Any]) -> None:
    for stage, said in (
        ({"rules": [{"id": "taste/choosy"}]}, "stages.0.rules.0: 'taste/choosy' chooses among groups"),
        ({"rules": [{"id": "taste/red", "options": {"much": 1}}]}, "much"),
        ({"rules": taste["rules"], "offline": __file__}, "a memory has no pictures for rules to pay for"),
        (taste | {"rules": [{"id": "taste/plain"}], "reward": "none"}, "nothing pays the expert's episodes of task 'dial/turn'"),
        ({"explore_steps": 4}, "explore_steps = 4 of steps = 4 leaves none"),
        ({"explore_steps": 1, "n_step": 2}, "set n_step = 1"),
    ):
        with pytest.raises(UserError) as caught:
            data = data_of(tmp_path, **{key: value for key, value in stage.items() if key != "reward"})
            if "reward" in stage:
                data["tasks"][0]["options"] = {"n": 500, "reward": stage["reward"]}
            resolve(parse_config(data))
        assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.everyday
def test_what_it_remembers_and_reports(tmp_path: Path) -> None:
    folder = runs.run(config(tmp_path, starts_after=5, group_size=2)).path
    rows = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    lengths = [row["length/mean"] * 8 for row in rows]
    assert rows[-1]["off_policy/transitions"] == pytest.approx(sum(lengths))
    assert [row["off_policy/updates"] for row in rows] == pytest.approx(lengths)
    assert {"loss", "entropy", "value", "value_loss", "grad_norm", "grad_norm/critic", "learning_rate"} <= rows[0].keys()
    kept = load_file(last(folder) / "memory.safetensors")
    assert len(kept["rewards"]) == sum(lengths)
    paid = sum(row["reward/mean"] * 8 for row in rows)
    assert kept["rewards"].sum().item() == pytest.approx(paid, abs=1e-4), "the memory holds what the episodes earned"
    inside = ~kept["ends"][:-1]
    assert torch.equal(kept["after"][:-1][inside], kept["seen"][1:][inside]), "what follows a step begins the next"


@pytest.mark.parametrize("kind", ["off-policy", "recap"])
def test_its_rollouts_have_a_return_and_no_advantage(tmp_path: Path, kind: str) -> None:
    """Nothing is weighed: an episode is in the memory, or it isn't."""
    given = config(tmp_path)
    if kind == "recap":
        vla = {"kind": "vla", "model": "tiny:qwen2_5_vl:hidden=32,layers=1", "options": {"dims": 2}}
        recap = {"kind": "recap", "steps": 1, "prompts_per_step": 4, "updates": 1, "batch_size": 4}
        given = parse_config(data_of(tmp_path, policy=vla) | {"stages": [recap]})
    run = runs.run(given)
    rows = [row for path in read_run(run.path).rollout_files for row in read_jsonl(path)]
    assert len(rows) >= 4 and all("advantage" not in row and row["return"] == row["reward"] for row in rows)
    assert any(row["return"] for row in rows)
    html = write_report(run.path).read_text()
    assert 'title="advantage"' not in html and "Advantages to the right" not in html
    assert f'<div class="advantage"><small>return</small><b>{rows[-1]["return"]:.2f}</b></div>' in html
    assert [row["advantage"] for row in rollout_rows(run.path, 1)] == [None] * 4


def test_its_policy_also_imitates_and_learns_by_ppo(tmp_path: Path) -> None:
    data = data_of(tmp_path, steps=1)
    warm = {"kind": "sft", "split": "warm", "steps": 1, "batch_size": 8, "learning_rate": 1e-3}
    ppo = {
        "kind": "rl",
        "algorithm": "ppo",
        "steps": 1,
        "prompts_per_step": 4,
        "group_size": 1,
        "ratio": "action",
        "credit": "action",
    }
    ppo |= {"credit": "action", "learning_rate": 1e-3, "critic": {"learning_rate": 1e-3}}
    data["stages"] = [warm, *data["stages"], ppo]
    folder = runs.run(parse_config(data)).path
    rows = [(row["stage"], row["metrics"]) for row in runs.rows(folder) if "metrics" in row]
    assert [kind for kind, _ in rows] == ["sft", "off-policy", "rl"] and all(m["grad_norm"] > 0 for _, m in rows)
    assert rows[-1][1]["logprob_gap"] < 1e-5, "the sampler's probabilities are the learner's"


@pytest.mark.parametrize("how", [{}, {"improve": {"candidates": 4, "keep": 2, "steps": 2, "batch_size": 8}}], ids=["", "pa-rl"])
def test_offline_steps_play_nothing_and_learn_from_the_expert_s_episodes(tmp_path: Path, how: dict[str, Any]) -> None:
    stage = {"offline": "expert", "offline_episodes": 6, "offline_steps": 2, "offline_updates": 7, "start_temperature": 1.0}
    folder = runs.run(config(tmp_path, **stage, **how, updates=3, steps=3)).path
    *offline, played = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    for row in offline:
        assert row["off_policy/updates"] == 21 and row["off_policy/transitions"] == 0 and math.isfinite(row["loss"])
        assert "length/mean" not in row and row["off_policy/offline"] > 6
        assert row.get("off_policy/imitations") == (7 if how else None)
    assert played["off_policy/transitions"] == pytest.approx(played["length/mean"] * 4)


WAYS = {"crossq": {"crossq": {"momentum": 0.9}, "updates": 2, "learning_rate": 1e-3, "beta1": 0.5}, "dropout and CQL": DROQ}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_it_learns_from_its_own_episodes_alone(tmp_path: Path, way: str) -> None:
    """With two critics, and the best of three evaluations: the temperature goes on to raise the entropy."""
    stage = {"steps": 12, "prompts_per_step": 32, "batch_size": 64, "critics": 2, "subset": 2, "start_temperature": 0.05}
    evaluated = {"evaluate": {"num_prompts": 100, "every": 4}}
    folder = runs.run(config(tmp_path, sections=evaluated, **(stage | WAYS[way]))).path
    before, *later = (row["eval"]["value"] for row in runs.rows(folder) if "eval" in row)
    assert before < 0.6 and max(later) > 0.85, (before, later)


def test_a_stage_may_learn_offline_alone(tmp_path: Path) -> None:
    """IQL learns the expert's way of turning, and its checkpoint can be evaluated and resumed."""
    stage = IQL | {"offline": "expert", "offline_episodes": 40, "offline_steps": 4, "offline_updates": 150}
    folder = runs.run(config(tmp_path, sections={"evaluate": {"num_prompts": 100}}, **stage)).path
    summary = json.loads((folder / "summary.json").read_text())
    before, after = (summary[name]["dial/turn"]["value"] for name in ("before", "last"))
    assert before < 0.6 and after > 0.9, (before, after)


BY_CALL = """
from mmrl import Case, Score, VerifierSpec, hookimpl

@hookimpl
def mmrl_verifiers():
    names = ("paid", "some", "none")
    return [VerifierSpec(id=f"calls/{name}", target=f"calls:{name}", rollout=True, high=99.0) for name in names]

def paid(case: Case) -> Score:
    steps = [2.0] + [1.0] * (case.rollout.num_calls - 1)
    return Score(sum(steps) + 5 * case.outcome["success"], steps=tuple(steps))

def some(case: Case) -> Score:
    if case.rollout.prompt.seed % 2:
        raise ValueError("odd")
    return paid(case)

def none(case: Case) -> Score:
    raise ValueError("never")
"""


@pytest.fixture(scope="module")
def by_call(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verifiers") / "calls.py"
    path.write_text(BY_CALL)
    return path


def paid_by_verifiers(
    plugin: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, verifier: str
) -> tuple[dict[str, torch.Tensor], Any]:
    """What the memory of the expert's episodes has when the stage begins."""
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL, str(plugin)]))
    data = data_of(folder, steps=1, offline="expert", offline_episodes=9)
    data["tasks"] = [{"id": "dial/turn", "name": "own", "options": {"n": 500, "reward": "none"}, "verifiers": {verifier: 0.5}}]
    begin = OffPolicySteps.begin

    def saved(steps: OffPolicySteps) -> None:
        assert steps.offline is not None
        steps.offline.save(folder / "offline.safetensors")
        begin(steps)

    monkeypatch.setattr(OffPolicySteps, "begin", saved)
    run = runs.run(parse_config(data | {"judge": {"failure_limit": 1.0}}))
    return load_file(folder / "offline.safetensors"), run


def test_verifiers_alone_pay_the_expert_s_episodes_as_they_pay_others(
    by_call: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, _ = paid_by_verifiers(by_call, tmp_path, monkeypatch, "calls/paid")
    ends = kept["ends"]
    first = torch.cat([torch.tensor([True]), ends[:-1]])
    assert int(ends.sum()) == 9 < len(ends), "the expert's episodes"
    assert torch.equal(kept["rewards"], 0.5 * (1 + first.float()) + 2.5 * ends), "half of each call's, and success at the end"


def test_an_expert_s_episode_without_a_score_is_left_out_and_told(
    by_call: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, run = paid_by_verifiers(by_call, tmp_path, monkeypatch, "calls/some")
    count = int(kept["ends"].sum())
    assert 0 < count < 9
    assert f"{9 - count} of 9 of the expert's episodes have no score" in (run.path / "errors.jsonl").read_text()
    with pytest.raises(UserError, match=r"verifiers scored none of 9 of the expert's episodes: .*never"):
        paid_by_verifiers(by_call, tmp_path / "none", monkeypatch, "calls/none")


def test_nothing_is_learned_before_there_are_enough_steps(tmp_path: Path) -> None:
    folder = runs.run(config(tmp_path, starts_after=10_000, steps=1)).path
    (row,) = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    assert row["off_policy/updates"] == 0 and "loss" not in row


def test_its_policy_is_evaluated_and_exported_like_others(tmp_path: Path) -> None:
    folder = runs.run(config(tmp_path, steps=2)).path
    measured = json.loads((folder / "summary.json").read_text())["last"]["dial/turn"]["value"]
    (found,) = evaluate_only(config(tmp_path, steps=2), folder, "last")
    assert found.value == measured
    exported = CliRunner().invoke(main, ["export", str(folder), str(tmp_path / "out"), "--checkpoint", "last"])
    assert exported.exit_code == 0, exported.output
    loaded = saved_policy(tmp_path / "out", PolicyConfig(model=str(tmp_path / "out"), kind="squashed"), "cpu")
    there = load_file(last(folder) / "policy" / "acting.safetensors")
    assert all(torch.equal(p, there[name]) for name, p in loaded.parameters())


def test_a_memory_is_another_run_s_offline_data_and_a_torn_one_is_refused_in_one_line(tmp_path: Path) -> None:
    memory = last(runs.run(config(tmp_path, "first", steps=1)).path) / "memory.safetensors"
    folder = runs.run(config(tmp_path, "second", steps=1, offline=str(memory), offline_share=0.25)).path
    assert json.loads((folder / "summary.json").read_text())["steps"] == 1
    with pytest.raises(UserError, match="which this run would replace"):
        runs.run(config(tmp_path, "first", steps=1, offline=str(memory)), overwrite=True)
    torn, path = tmp_path / "torn.safetensors", tmp_path / "run.toml"
    torn.write_bytes(memory.read_bytes()[:-100])
    path.write_text(tomli_w.dumps(data_of(tmp_path, "torn", offline=str(torn))))
    found = CliRunner().invoke(main, ["train", str(path)])
    (line,) = [line for line in found.output.splitlines() if "replay file" in line]
    assert found.exit_code == 2 and "it is torn; restore it, or begin anew" in line
    with pytest.raises(UserError, match=r"has gamma = 0\.99, and this run 0\.9: make them equal"):
        runs.run(config(tmp_path, "other", offline=str(memory), gamma=0.9))


@pytest.mark.slow
@pytest.mark.parametrize(
    "offline", [{}, {"offline": "expert", "offline_episodes": 16}, TD3], ids=["alone", "with the expert", "td3"]
)
def test_it_learns(tmp_path: Path, offline: dict[str, Any]) -> None:
    folder = runs.run(
        config(tmp_path, steps=12, prompts_per_step=16, sections={"evaluate": {"num_prompts": 100}}, **offline)
    ).path
    summary = json.loads((folder / "summary.json").read_text())
    before, after = (summary[name]["dial/turn"]["value"] for name in ("before", "last"))
    assert before < 0.6 and after > 0.9


def test_in_a_smoke_run_another_takes_over_in_each_episode(tmp_path: Path) -> None:
    for share, there in ((0.3, 1.0), (0.0, 0.0)):
        stage = smoke(config(tmp_path, interventions=share)).stages[0]
        assert isinstance(stage, OffPolicyStage) and stage.interventions == there


def test_a_smoke_run_proves_its_update(tmp_path: Path) -> None:
    folder = runs.run(smoke(config(tmp_path, steps=50, updates=9, offline="expert", offline_episodes=50, n_step=3))).path
    proof = json.loads((folder / "summary.json").read_text())["smoke"]
    assert not unproved(proof), told(proof)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "another policy",
        {"policy": {"kind": "robotics/small", "model": "mlp", "options": {"dims": 2, "state": 2}}},
        'use "squashed"',
    ),
    ("no such file", {"offline": "nowhere.safetensors"}, "is no file: name a memory"),
    ("no reward", {"offline": "expert", "reward": "none"}, "nothing pays the expert's episodes of task 'dial/turn'"),
    ("several learners", {"sections": {"compute": {"learners": 2}}}, "set compute.learners = 1"),
    ("stale", {"sections": {"compute": {"staleness": 1}}}, "leave out compute.staleness"),
    ("subset", {"subset": 4}, "subset = 4 of critics = 3"),
    ("no effect", {"offline_episodes": 7}, "offline_episodes has no effect without offline"),
    ("bins", {"bins": 1}, "bins = 1 can't tell returns apart"),
    ("range", {"bins": 9, "low": 2.0}, "low = 2 is not below high = 1"),
    ("empty share", {"offline": "expert", "offline_share": 0.0}, "offline_share = 0 reads nothing"),
    ("two ways", {"td3": {}, "improve": {}}, "improve and td3 are two ways in which a policy learns"),
    ("td3 without noise", {"td3": {}, "start_temperature": 1.0}, "set policy.options.noise, such as 0.1, or drop td3"),
    ("noise without td3", {"policy": TD3["policy"]}, "set td3, or drop policy.options.noise"),
    ("entropy of td3", TD3 | {"start_temperature": 0.2}, "start_temperature has no effect without a soft actor-critic, and td3"),
    ("penalty of td3", TD3 | {"conservative": 1.0}, "conservative has no effect without a density of actions"),
    ("no target noise", TD3 | {"td3": {"target_noise": 0.0, "noise_clip": 0.1}}, "noise_clip has no effect without target_noise"),
    ("late", {"starts_after": 500, "capacity": 500}, "starts_after = 500"),
]


@pytest.mark.parametrize(("keys", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_it_cannot_do_is_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    keys = dict(keys)
    reward = keys.pop("reward", None)
    with pytest.raises(UserError) as caught:
        data = data_of(tmp_path, **keys)
        if reward:
            data["tasks"][0]["options"] = {"reward": reward}
        resolve(parse_config(data))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"state": 0}, "it would see nothing"),
        ({"residual": 0.1}, "corrects a base"),
        ({"base": "nowhere"}, "is no folder here"),
        ({"hidden": []}, "must be a list of widths"),
        ({"noise": 0.1}, "set td3, or drop policy.options.noise"),
        ({"residual": 2.1}, "policy.options.residual = 2.1 must be a number from 0 to 2"),
        ({"state": 9}, "the simulator shows a state of 2"),
    ],
)
def test_options_of_the_policy_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    policy = {**POLICY, "options": {**POLICY["options"], **options}}  # type: ignore[dict-item]
    with pytest.raises(UserError) as caught:
        runs.run(config(tmp_path, policy=policy))
    assert said in str(caught.value)


def made(**options: Any) -> Squashed:
    found = make_policy(PolicyConfig(**{**POLICY, "options": {**POLICY["options"], **options}}), device="cpu", seed=3)  # type: ignore[arg-type, dict-item]
    assert isinstance(found, Squashed)
    return found


@pytest.mark.parametrize("noise", [-1e-10, -1, 2.1, math.inf])
def test_noise_out_of_range_is_refused_by_its_range(noise: float) -> None:
    with pytest.raises(UserError, match=r"policy\.options\.noise = .* must be a number from 0 to 2"):
        made(noise=noise)


def test_a_residual_policy_s_features_are_its_base_s(tmp_path: Path) -> None:
    small = PolicyConfig(kind="robotics/small", model="mlp", options={"dims": 2, "state": 2, "hidden": [8]})
    base, where = make_policy(small, device="cpu", seed=1), str(tmp_path / "base")
    base.save(Path(where))
    policy = made(base=where, residual=0.5)
    assert policy.base is not None and not any(p.requires_grad for p in policy.base.model.parameters())
    seen = Observation(images={}, state=torch.tensor([[0.1, -0.4], [0.7, 0.2], [0.0, 1.0]]), instructions=["turn"] * 3)
    seeds, calls = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    likeliest = base.act(seen, seeds, calls, 0.0).actions_nKA[:, 0]  # type: ignore[attr-defined]
    features = policy.remembered(seen, CallRandomness(seeds_n=seeds, calls_n=calls))
    assert features.shape == (3, 8 + 2 + 2) == (3, policy.width)
    assert torch.equal(features[:, 8:10], seen.state) and torch.allclose(features[:, 10:], likeliest, atol=1e-6)
    assert torch.equal(policy.act(seen, seeds, calls, 0.0).actions_nKA[:, 0], features[:, 10:]), "it begins at its base"
    residual = {**POLICY, "options": {"dims": 2, "state": 2, "base": where, "residual": 0.5}}
    folder = runs.run(config(tmp_path, policy=residual, steps=1)).path
    kept = load_file(last(folder) / "memory.safetensors")
    assert kept["seen"].shape[1] == 12 and (kept["actions"] - kept["seen"][:, 10:]).abs().max() <= 0.5 + 1e-6


def test_its_density_is_that_of_its_actions() -> None:
    """A call's log-probability is what the update computes again from its choice, and its sum over all actions is 1."""
    policy = made()
    seen = Observation(images={}, state=torch.tensor([[0.3, -0.2]]).repeat(4000, 1), instructions=[""] * 4000)
    sample = policy.act(seen, torch.arange(4000), torch.zeros(4000, dtype=torch.int64), 0.7)
    features, before = sample.choices[:, 0].split([2, 2], -1)
    assert torch.equal(policy.actor.action(features, before), sample.actions_nKA[:, 0])
    # the mean of 1 / density over samples is the size of the set that they come from: here [-1, 1] x [-1, 1]
    inside = sample.actions_nKA[:, 0].abs().amax(1) < 0.5
    assert ((-sample.logprobs_nKC[:, 0, 0]).exp() * inside).mean().item() == pytest.approx(1.0, rel=0.15)
