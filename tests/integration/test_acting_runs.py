"""Whole runs of policies that act: they learn, repeat themselves, resume bit for bit, evaluate, and say what is wrong."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from click.testing import CliRunner

import runs
from mmrl.api.errors import UserError
from mmrl.api.statistics import mean_interval, wilson
from mmrl.api.types import Status
from mmrl.config.load import parse_config
from mmrl.config.sections import PolicyConfig
from mmrl.policies.load import make_policy
from mmrl.run_folder.reader import read_items, read_jsonl, read_run
from mmrl.run_folder.webp import decode_webp
from mmrl.testing.cases import mostly_slow
from mmrl.train.checks.run_file import check_model
from mmrl.train.remarks import remarks
from mmrl.train.resolve import resolve
from mmrl.train.smoke import smoke
from mmrl.train.start import evaluate_only
from mmrl.train.update import pack_trajectories
from mmrl.ui.cli import main
from pages import assert_self_contained, page_of

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
SMALL = {"kind": "robotics/small", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [64, 64]}}
PPO = {
    "kind": "rl",
    "algorithm": "ppo",
    "steps": 20,
    "prompts_per_step": 128,
    "group_size": 1,
    "ratio": "action",
    "credit": "action",
}
PPO |= {"minibatches": 4, "epochs": 2, "learning_rate": 1e-3, "critic": {"learning_rate": 3e-3, "hidden_sizes": [64]}}
PPO |= {"settings": {"gamma": 0.9}}
GRPO = {"kind": "rl", "algorithm": "trajectory-grpo", "steps": 20, "prompts_per_step": 16, "group_size": 8, "ratio": "action"}
GRPO |= {"minibatches": 4, "learning_rate": 1e-3}


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL]))


def config(folder, stages, policy=SMALL, options=None, **sections):
    data = {
        "name": "dial",
        "runs_dir": str(folder),
        "policy": policy,
        "tasks": [{"id": "dial/turn", "options": {"n": 2000, **(options or {})}}],
        "stages": stages,
        "simulate": {"num_envs": 64},
        "evaluate": {"num_prompts": 200},
        "record": {"trackers": [], "rollouts": 8},
        "train": {"threads": 1},
    }
    return parse_config({**data, **sections})


def episodes(folder):
    """Name -> content of what evaluations kept of episodes."""
    kept = folder.path / "episodes"
    return {path.relative_to(kept).as_posix(): path.read_bytes() for path in sorted(kept.rglob("*")) if path.is_file()}


def figures(folder):
    summary = json.loads((folder.path / "summary.json").read_text())
    return {name: summary[name]["dial/turn"]["value"] for name in ("before", "best", "last")}


@pytest.mark.always
@pytest.mark.parametrize(
    ("stage", "policy", "options"),
    mostly_slow(
        [
            (PPO, SMALL, {"reward": "stages"}),
            (GRPO, SMALL, {}),
            (PPO, {**SMALL, "options": {**SMALL["options"], "head": "flow"}}, {"reward": "stages"}),
            (
                PPO,
                {"kind": "robotics/small", "model": "cnn", "options": {"dims": 2, "size": 36, "hidden": [64]}},
                {"reward": "stages"},
            ),
            (
                {**PPO, "credit": "chunk", "ratio": "chunk"},
                {**SMALL, "options": {**SMALL["options"], "chunk": 2}},
                {"reward": "stages"},
            ),
        ],
        everyday=1,
    ),
    ids=["ppo", "grpo", "flow", "cnn", "chunks"],
)
def test_it_learns_to_turn_to_the_mark(tmp_path, stage, policy, options):
    if options:
        stage = {**stage}
    sections = {
        "tasks": [{"id": "dial/turn", "options": {"n": 2000, **options}, "verifiers": {"dial/success": float(not options)}}]
    }
    folder = runs.run(config(tmp_path, [stage], policy, **sections))
    found = figures(folder)
    assert found["before"] < 0.45 and found["last"] > 0.8, found
    rows = [r["metrics"] for r in runs.rows(folder) if "metrics" in r]
    assert all(m["logprob_gap"] < 1e-4 and m["simulator/lost"] == 0 for m in rows)
    assert rows[-1]["episode/success"] > rows[0]["episode/success"] + 0.2


def test_there_may_be_more_minibatches_than_prompts(tmp_path, monkeypatch):
    """Calls are dealt out singly: two episodes give six optimiser steps, each on calls of its own."""
    packed, pack = [], pack_trajectories.pack_trajectories

    def kept(*args, **options):
        packed.append(pack(*args, **options))
        return packed[-1]

    monkeypatch.setattr(pack_trajectories, "pack_trajectories", kept)
    stage = {**PPO, "steps": 1, "prompts_per_step": 2, "minibatches": 6, "stop_kl": 1e9, "epochs": 1}
    folder = runs.run(config(tmp_path, [stage]))
    (metrics,) = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    assert metrics["optimizer_steps"] == 6 and len(packed[-1]) == 6
    assert min(batch.num_tokens for batch in packed[-1]) > 0
    assert sum(batch.num_tokens for batch in packed[-1]) == int(packed[-1][0].lengths_N.sum())


@pytest.mark.everyday
def test_imitation_of_the_expert(tmp_path):
    stage = {"kind": "sft", "split": "warm", "steps": 60, "batch_size": 16, "learning_rate": 3e-3}
    assert figures(runs.run(config(tmp_path, [stage])))["last"] > 0.9


@pytest.mark.parametrize("stage", mostly_slow([PPO, GRPO], everyday=1), ids=["ppo", "grpo"])
@pytest.mark.parametrize("lanes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, stage, lanes):
    stage = {**stage, "steps": 4, "prompts_per_step": 12, "minibatches": 2}
    if stage["algorithm"] != "ppo":
        stage["group_size"] = 4
    how = {"simulate": {"num_envs": 8, "lanes": lanes}, "checkpoint": {"every": 2, "keep": 9}, "options": {"reward": "own"}}
    how["evaluate"] = {"num_prompts": 24, "every": 1}
    whole = runs.run(config(tmp_path / "whole", [stage], **how))
    again = config(tmp_path / "again", [stage], **how)
    with pytest.raises(KeyboardInterrupt):
        runs.run(again, progress=runs.Silent(3))
    folder = runs.run(again, resume=True)

    assert runs.trajectory(folder) == runs.trajectory(whole)
    assert episodes(folder) == episodes(whole) and len(episodes(whole)) >= 2


def test_episodes_are_recorded_with_what_came_of_them(tmp_path):
    folder = runs.run(
        config(
            tmp_path, [{**GRPO, "steps": 1, "prompts_per_step": 2, "group_size": 4, "minibatches": 1}], options={"reward": "own"}
        )
    )
    rows = [json.loads(line) for line in (folder.path / "rollouts" / "step-000001.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    for row in rows:
        (message,) = row["messages"]
        picture, text = message["content"]
        assert text["text"] == "turn to the mark" and (folder.path / "rollouts" / picture["path"]).is_file()
        word, steps = row["completion"].split(" after ")
        assert word == ("succeeded" if row["score"]["parts"]["dial/success"] else "failed") and " steps, return -" in steps
        assert row["reward"] != row["score"]["value"] and row["source"] == "policy"


def test_the_first_successes_and_failures_of_an_evaluation_are_kept_as_videos(tmp_path):
    folder = runs.run(config(tmp_path, [{**GRPO, "steps": 2}], evaluate={"num_prompts": 60}, simulate={"num_envs": 16}))
    run = read_run(folder.path)
    assert [path.name for path in run.episode_folders] == ["step-000000", "step-000002"]
    for items, kept in zip(run.item_files, run.episode_folders, strict=True):
        rows, scored = read_jsonl(kept / "episodes.jsonl"), {item["id"]: item["value"] for item in read_items(items)}
        for success in (0.0, 1.0):
            ids = [id for id, value in scored.items() if value == success][:4]
            assert [row["prompt_id"] for row in rows if row["outcome"]["success"] == success] == ids
        assert {1.0, 0.0} == {row["outcome"]["success"] for row in rows} and {row["instruction"] for row in rows} == {
            "turn to the mark"
        }
        assert len(list(kept.glob("*.webp"))) == len(rows) <= 8
        for row in rows:
            shown = decode_webp((kept / row["video"]).read_bytes())
            lasts = 100 * row["outcome"]["steps"] + 1000 if len(shown) > 1 else 0  # where nothing moves it is a picture
            assert sum(ms for _, ms in shown) == lasts and shown[0][0].size == (36, 36)
    page = page_of(folder)
    assert_self_contained(page)
    rollouts = sum(len(read_jsonl(path)) for path in run.rollout_files)
    assert 0 < page.count("img", "moving") <= 16 + rollouts


def test_all_that_came_of_episodes_has_an_interval(tmp_path):
    folder = runs.run(config(tmp_path, [{**GRPO, "steps": 1}], evaluate={"num_prompts": 8}))
    options = {"terminate_on_success": False}
    asked = {"num_prompts": 90, "temperature": 1.0}
    (single,) = evaluate_only(config(tmp_path, [GRPO], options=options, evaluate=asked), folder.path, "last")
    once, end = (single.extra[f"episode/{name}"] for name in ("success", "success_at_end"))
    assert end < once == single.value and (single.samples, single.temperature) == (1, 1.0)
    assert single.intervals["episode/success"] == (single.low, single.high)
    assert single.intervals["episode/success_at_end"] == wilson(round(90 * end), 90)
    assert single.intervals.keys() == {key for key in single.extra if key.startswith("episode/")} > {"episode/near"}
    found = [row["outcome"]["near"] for row in single.rows()]
    assert len(set(found)) > 2 and single.extra["episode/near"] == pytest.approx(sum(found) / 90)
    assert single.intervals["episode/near"] == pytest.approx(mean_interval(found, None, 0, 1))
    assert single.as_json()["intervals"]["episode/return"] == [None, None], "all are the same"
    asked = {"num_prompts": 40, "num_samples": 3, "temperature": 1.0}
    (sampled,) = evaluate_only(config(tmp_path, [GRPO], options=options, evaluate=asked), folder.path, "last")
    assert sampled.intervals["episode/success"] == pytest.approx((sampled.low, sampled.high))
    low, high = sampled.intervals["episode/success_at_end"]
    assert low < sampled.extra["episode/success_at_end"] < high and sampled.temperature == 1.0
    assert {row["temperature"] for row in sampled.episodes} == {1.0} and len(sampled.episodes) == 8
    assert len({row["prompt_id"] for row in sampled.episodes}) == 8, "one of each start"


def test_eval_prints_a_table_and_keeps_videos(tmp_path):
    variants = {"plain": {}, "paid": {"reward": "own"}, "hopeless": {"never": True}}
    tasks = [{"id": "dial/turn", "name": name, "options": {"n": 2000, **options}} for name, options in variants.items()]
    data = config(tmp_path, [{**GRPO, "steps": 1}]).model_dump(mode="json", exclude_none=True) | {"tasks": tasks}
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(data))
    done = CliRunner().invoke(main, ["eval", str(path), "-n", "30", "--save-videos", str(tmp_path / "videos")])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines() if line.split() and line.split()[0] in variants]
    assert [line[0] for line in lines] == list(variants) and all(line[-1] == "30" for line in lines)
    assert "success, at any time" in done.stdout and "at the end" in done.stdout and "greedy" in done.stdout
    low, high = (f"{bound:.3f}" for bound in wilson(0, 30))
    assert " ".join(lines[2]).count(f"0.000 ({low} to {high})") == 2
    rows = read_jsonl(tmp_path / "videos" / "episodes.jsonl")
    assert f"{len(rows)} videos are in" in done.stderr and {row["task"] for row in rows} == set(variants)
    assert {row["step"] for row in rows} == {None} and {row["variant"] for row in rows} == {None}
    assert all((tmp_path / "videos" / row["video"]).is_file() for row in rows)
    again = CliRunner().invoke(main, ["eval", str(path), "-n", "30", "--save-videos", str(tmp_path / "videos")])
    assert again.exit_code == 2 and "already exists and is not an empty folder" in again.stderr
    as_json = CliRunner().invoke(main, ["eval", str(path), "-n", "30", "--json"])
    found = json.loads(as_json.stdout)
    assert found["hopeless"]["intervals"]["episode/success_at_end"] == pytest.approx(wilson(0, 30))
    assert found["plain"]["extra"]["episode/near"] > 0 and "episodes" not in found["plain"]


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_again_and_under_a_variant(tmp_path):
    folder = runs.run(config(tmp_path, [GRPO]))
    plain, far = (config(tmp_path, [GRPO], options=options, evaluate={"num_prompts": 300}) for options in ({}, {"never": True}))
    (figure,) = evaluate_only(plain, folder.path, "last")
    assert figure.value == pytest.approx(figures(folder)["last"], abs=0.06) and figure.n == 300
    (figure,) = evaluate_only(far, folder.path, "last")
    assert figure.value == 0.0


def test_smoke_keeps_the_policy_and_plays_few(tmp_path):
    found = smoke(config(tmp_path, [PPO]))
    assert found.policy.model == "mlp" and found.simulate.num_envs == 2 and found.stages[0].steps == 2
    runs.run(found)


def test_a_simulator_that_breaks_costs_its_episode_and_no_more(tmp_path):
    """The prompt whose environment always breaks is left out and counted; the run goes on."""
    breaks = 10_000 + 3
    stage = {**GRPO, "steps": 2, "prompts_per_step": 8, "group_size": 4}
    made = config(
        tmp_path,
        [stage],
        options={"breaks": breaks, "n": 8, "never": True},
        judge={"failure_limit": 0.5},
        evaluate={"num_prompts": 0},
    )
    folder = runs.run(made)
    rows = [r["metrics"] for r in runs.rows(folder) if "metrics" in r]
    assert all(m["simulator/lost"] > 0 and 0 < m["judge/failed_share"] <= 1 / 8 for m in rows)
    errors = (folder.path / "errors.jsonl").read_text()
    assert "its environment or simulator failed" in errors and "train-3" in errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"policy": {"model": "tiny:qwen2_5_vl"}},
            "task 'dial/turn' acts, and policy.kind = 'vlm' writes|acts in a simulator, but policy.kind = 'vlm' writes",
        ),
        ({"tasks": [{"id": "toy/colour"}]}, "policy.kind = 'robotics/small' acts"),
        ({"tasks": [{"id": "toy/colour"}, {"id": "dial/turn"}]}, "answered in words: train them in two runs"),
        ({"stages": [{**GRPO, "hints": "ghpo"}]}, "stages.0.hints is for answers in words|hints is for answers in words"),
        ({"stages": [{**GRPO, "perception": {"coef": 0.1}}]}, "perception changes images in prompts, and robotics/small acts"),
        ({"stages": [{**GRPO, "noisy": {}}]}, "noisy changes images in prompts, and robotics/small acts: leave it out"),
        ({"stages": [{**GRPO, "entropy_penalty": 0.1}]}, "entropy_penalty is for policies that write, and robotics/small acts"),
        ({"stages": [{**GRPO, "overlong": "mask"}]}, "overlong is for answers in words"),
        ({"stages": [{**GRPO, "length": {}}]}, "length is for answers in words"),
        (
            {"stages": [{**GRPO, "algorithm": "gspo"}]},
            "stages.0: gspo learns on words of an answer, and .* 'robotics/small' are actions",
        ),
        ({"stages": [{"kind": "distill", "steps": 1, "teacher": "x"}]}, 'divergence = "reverse": with this teacher'),
        ({"stages": [{"kind": "sft", "steps": 1, "split": "demo"}]}, "has no split 'demo': choose one of warm, train, test"),
        ({"simulate": {"device": "cuda:77"}}, "simulate.device = 'cuda:77'"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_loaded(tmp_path, change, message):
    made = (
        config(tmp_path, [GRPO])
        if not change
        else config(tmp_path, change.get("stages", [GRPO]), **{k: v for k, v in change.items() if k != "stages"})
    )
    with pytest.raises(UserError, match=message):
        resolve(made)


@pytest.mark.parametrize("where", ["train", "test"])
def test_a_variant_that_is_misspelt_is_told_before_anything_is_loaded(tmp_path, monkeypatch, where):
    import dial

    prompts, told = dial.Turn.prompts, "fax"

    def changed(self, split, seed):
        return [replace(p, meta={"variant": told}) if split == where else p for p in prompts(self, split, seed)]

    monkeypatch.setattr(dial.Turn, "prompts", changed)
    made = config(tmp_path, [GRPO])
    with pytest.raises(UserError, match="task 'dial/turn': simulator 'dial/dial' has no variant 'fax': it has far"):
        runs.run(made)
    assert not (Path(made.runs_dir) / made.name).exists(), "nothing was written"
    told = "far"
    resolve(made)


def test_fewer_held_out_starts_than_are_asked_for_are_told(tmp_path):
    def told(there, **evaluate):
        return [
            r
            for r in remarks(resolve(config(tmp_path, [GRPO], options={"n": there}, evaluate=evaluate)))
            if "evaluate.num_prompts" in r
        ]

    assert told(7, num_prompts=8) == [
        "evaluate.num_prompts = 8, but task 'dial/turn' has 7 prompts in split 'test': all of them are used"
    ]
    assert told(8, num_prompts=8) == told(7, num_prompts=0) == told(7) == [], "nor where nobody said how many"
    small = config(tmp_path, [GRPO], options={"n": 3}).smaller()
    assert not [r for r in remarks(resolve(small)) if "num_prompts" in r], "a smoke run chooses the number itself"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": 3, "state": 2}, "takes actions of 2 numbers, and policy.options.dims = 3"),
        ({"dims": 2, "state": 9}, "policy.options.state = 9, and the simulator shows a state of 2"),
        ({"dims": 2, "state": 2, "chunk": 0}, "policy.options.chunk = 0 must be a whole number"),
        ({"dims": 2, "state": 2, "colour": 1}, "policy 'robotics/small' has no option 'colour'"),
        (
            {"dims": 2, "state": 2, "seed": 1},
            "policy.options: .*seed have keys of their own|device and seed have keys of their own",
        ),
    ],
)
def test_a_policy_that_does_not_fit_is_told_in_one_line(tmp_path, options, message):
    made = config(tmp_path, [GRPO], {**SMALL, "options": options})
    with pytest.raises(UserError, match=message) as error:
        runs.run(made)
    assert "\n" not in str(error.value)
    assert not (Path(made.runs_dir) / made.name).exists(), "nothing was written"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": {**SMALL, "lora": {}}}, "policy.lora: a policy of kind 'robotics/small' always trains all its weights"),
        ({"stages": [{**GRPO, "parts": [{"match": "head", "freeze": True}]}]}, "stages.parts: a policy of kind 'robotics/small'"),
    ],
)
def test_a_small_policy_has_neither_adapters_nor_parts(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        runs.run(config(tmp_path, change.get("stages", [GRPO]), change.get("policy", SMALL)))


def test_a_checkpoint_of_another_shape_is_refused(tmp_path):
    folder = runs.run(config(tmp_path, [{**GRPO, "steps": 1, "prompts_per_step": 2, "minibatches": 1}]))
    (checkpoint,) = (folder.path / "checkpoints").glob("step-*/policy")
    kept = tmp_path / "kept"
    shutil.copytree(checkpoint, kept)
    with pytest.raises(UserError, match=r"hidden = \[64, 64\], and the run file says \[8\]"):
        runs.run(config(tmp_path / "other", [GRPO], {"kind": "robotics/small", "model": str(kept), "options": {"hidden": [8]}}))
    going_on = config(
        tmp_path / "on",
        [{**GRPO, "steps": 1, "prompts_per_step": 2, "minibatches": 1}],
        {"kind": "robotics/small", "model": str(kept)},
    )
    assert runs.run(going_on).path.exists(), "what a folder was saved with need not be said again"


def test_an_expert_teaches_at_the_states_that_the_policy_gets_into(tmp_path):
    stage = {
        "kind": "distill",
        "teacher": "expert",
        "divergence": "hard",
        "steps": 40,
        "prompts_per_step": 16,
        "learning_rate": 3e-3,
    }
    folder = runs.run(config(tmp_path, [stage], options={"reward": "own"}))
    assert figures(folder)["last"] > 0.9
    rows = [r["metrics"] for r in runs.rows(folder) if "metrics" in r]
    assert rows[-1]["loss"] < rows[0]["loss"] and rows[0]["simulator/steps"] > 16


@pytest.mark.parametrize("divergence", ["hard", "sampled"])
def test_a_step_whose_episodes_are_lost_teaches_nothing_and_the_run_goes_on(divergence, tmp_path, monkeypatch):
    from mmrl.rollout.simulators.lockstep import SimulatorCollector

    teacher, collect, calls = "expert", SimulatorCollector.collect, []
    if divergence == "sampled":
        warm = {"kind": "sft", "split": "warm", "steps": 1, "batch_size": 2, "learning_rate": 3e-3}
        made = runs.run(config(tmp_path / "teacher", [warm], evaluate={"num_prompts": 0}))
        (teacher,) = map(str, (made.path / "checkpoints").glob("step-*/policy"))

    def losing(self, *arguments, **options):
        calls.append(self)
        played = enumerate(collect(self, *arguments, **options))
        return [replace(r, data=None, status=Status.ENVIRONMENT_ERROR) if len(calls) == 1 or n % 2 else r for n, r in played]

    monkeypatch.setattr(SimulatorCollector, "collect", losing)
    stage = {"kind": "distill", "teacher": teacher, "divergence": divergence, "steps": 2, "prompts_per_step": 4}
    folder = runs.run(config(tmp_path, [stage], evaluate={"num_prompts": 0}))
    nothing, half = [r["metrics"] for r in runs.rows(folder) if "metrics" in r]
    assert nothing["length/mean"] == 0 < half["length/mean"] and nothing["grad_norm"] == 0 < half["grad_norm"]


@pytest.mark.parametrize("algorithm", ["ppo", "digirl"])
def test_a_critic_learns_nothing_in_a_step_whose_episodes_are_lost(algorithm, tmp_path, monkeypatch):
    from mmrl.rollout.simulators.lockstep import SimulatorCollector

    collect, calls = SimulatorCollector.collect, []

    def losing(self, *arguments, **options):
        calls.append(self)
        played = collect(self, *arguments, **options)
        return [replace(r, data=None, status=Status.ENVIRONMENT_ERROR) for r in played] if len(calls) == 1 else played

    monkeypatch.setattr(SimulatorCollector, "collect", losing)
    stage = {"kind": "rl", "algorithm": algorithm, "steps": 2, "prompts_per_step": 4, "group_size": 1, "learning_rate": 1e-3}
    folder = runs.run(config(tmp_path, [stage], options={"reward": "own"}, evaluate={"num_prompts": 0}))
    nothing, some = [r["metrics"] for r in runs.rows(folder) if "metrics" in r]
    assert nothing["judge/failed_share"] == 1 and nothing["grad_norm"] == 0 and some["length/mean"] > 0


def test_a_stage_asks_neither_the_expert_nor_the_critic_of_the_one_before(tmp_path, monkeypatch):
    asked = []
    from mmrl.rollout.simulators.lockstep import SimulatorCollector

    collect = SimulatorCollector.collect

    def watched(self, *arguments, **options):
        asked.append((self.with_expert, self.critic is not None))
        return collect(self, *arguments, **options)

    monkeypatch.setattr(SimulatorCollector, "collect", watched)
    expert = {"kind": "distill", "teacher": "expert", "divergence": "hard", "steps": 1, "prompts_per_step": 4}
    ppo, grpo = ({**s, "steps": 1, "prompts_per_step": 4, "minibatches": 1} for s in (PPO, GRPO))
    runs.run(config(tmp_path, [ppo, expert, grpo, ppo], evaluate={"num_prompts": 0}))
    assert asked == [(False, True), (True, False), (False, False), (False, True)]


@pytest.mark.slow
def test_a_teacher_is_followed_at_the_actions_that_were_sampled(tmp_path):
    made = runs.run(
        config(tmp_path / "teacher", [{"kind": "sft", "split": "warm", "steps": 60, "batch_size": 16, "learning_rate": 3e-3}])
    )
    (teacher,) = (made.path / "checkpoints").glob("step-*/policy")
    stage = {"kind": "distill", "teacher": str(teacher), "divergence": "sampled", "steps": 40, "prompts_per_step": 32}
    stage |= {"learning_rate": 3e-3}
    folder = runs.run(config(tmp_path, [stage], options={"reward": "own"}))
    rows = [r["metrics"] for r in runs.rows(folder) if "metrics" in r]
    assert rows[-1]["divergence"] < 0.3 * rows[0]["divergence"]
    assert figures(folder)["last"] > figures(folder)["before"] + 0.3


def test_conditioned_training_says_after_the_instruction_whether_it_was_good(tmp_path):
    """RECAP: sampled and evaluated as positive; what the update reads says how good each episode was."""
    import mmrl.train.update.pack_trajectories

    seen = []
    real = mmrl.train.update.pack_trajectories.pack_trajectories

    def packed(rollouts, *args, **options):
        seen.append([r.data.instruction for r in rollouts])
        return real(rollouts, *args, **options)

    stage = {**GRPO, "steps": 2, "condition": {"positive": "good", "negative": "bad", "top": 0.5, "drop": 0.2}}
    with pytest.MonkeyPatch.context() as m:
        m.setattr(mmrl.train.update.pack_trajectories, "pack_trajectories", packed)
        folder = runs.run(config(tmp_path, [stage]))
    told = {text for texts in seen for text in texts}
    assert told == {"turn to the mark good", "turn to the mark bad", "turn to the mark"}
    rows = [json.loads(line) for line in (folder.path / "rollouts" / "step-000001.jsonl").read_text().splitlines()]
    assert {row["messages"][0]["content"][-1]["text"] for row in rows} == {"turn to the mark good"}


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"teacher": "expert"}, 'divergence = "reverse": with this teacher a policy that acts needs "hard"'),
        ({"teacher": "x", "divergence": "hard"}, 'divergence = "hard": with this teacher a policy that acts needs "sampled"'),
    ],
)
def test_teachers_that_cannot_teach_are_refused(tmp_path, stage, message):
    with pytest.raises(UserError, match=message):
        resolve(config(tmp_path, [{"kind": "distill", "steps": 1, **stage}]))
    with pytest.raises(UserError, match=r"an expert gives one action at a time: set policy.options.chunk = 1"):
        policy = {**SMALL, "options": {**SMALL["options"], "chunk": 2}}
        resolve(config(tmp_path, [{"kind": "distill", "steps": 1, "teacher": "expert", "divergence": "hard"}], policy))


@pytest.mark.parametrize("stage", [{"kind": "distill", "teacher": "expert", "divergence": "hard"}, {"kind": "hg-dagger"}])
def test_a_policy_may_be_saved_with_several_actions_a_call_or_have_them_as_its_kind_does(tmp_path, stage):
    """In whose place no expert acts. The run file doesn't say how many they are."""
    several = {**SMALL, "options": {**SMALL["options"], "chunk": 2}}
    make_policy(PolicyConfig(**several), device="cpu", seed=0).save(tmp_path / "saved")
    stage = {**stage, "steps": 1, **({"interventions": 0.5} if stage["kind"] == "hg-dagger" else {})}
    flow = {"kind": "pi0", "model": "tiny:pi0", "options": {"dims": 2, "state": 2}}
    for policy in ({"kind": SMALL["kind"], "model": str(tmp_path / "saved")}, flow):
        with pytest.raises(UserError, match=r"^stages\.0\.(teacher|interventions): an expert gives one action at a time: set "):
            resolve(config(tmp_path, [stage], policy))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 2])
def test_a_correction_of_a_frozen_policy_learns_and_leaves_it_alone(tmp_path, chunk):
    """The base imitates for a moment and turns too little; the correction makes up for it."""
    stage = {"kind": "sft", "split": "warm", "steps": 6, "batch_size": 16, "learning_rate": 3e-3}
    made = runs.run(config(tmp_path / "base", [stage], {**SMALL, "options": {**SMALL["options"], "chunk": chunk}}))
    (base,) = (made.path / "checkpoints").glob("step-*/policy")
    before = {path.name: path.read_bytes() for path in base.iterdir()}
    policy = {
        "kind": "robotics/residual",
        "model": "mlp",
        "options": {"base": str(base), "state": 2, "hidden": [64], "scale": 1.0},
    }
    folder = runs.run(config(tmp_path, [PPO], policy, options={"reward": "stages"}))
    found = figures(folder)
    assert found["before"] == pytest.approx(figures(made)["last"], abs=0.02), "at first nothing is corrected"
    assert found["last"] > found["before"] + 0.2
    assert {path.name: path.read_bytes() for path in base.iterdir()} == before
    (own,) = (folder.path / "checkpoints").glob(f"step-{20:06d}/policy")
    again = config(
        tmp_path / "again", [{**PPO, "steps": 1}], {"kind": "robotics/residual", "model": str(own)}, options={"reward": "stages"}
    )
    assert figures(runs.run(again))["before"] == pytest.approx(found["last"], abs=0.02)
    with pytest.raises(UserError, match=r"holds a policy of another kind than policy\.kind = 'robotics/small'"):
        runs.run(config(tmp_path / "other", [PPO], {"kind": "robotics/small", "model": str(own)}))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"base": "nowhere"}, r"^policy\.options\.base: 'nowhere' is no folder here: "), ({}, "needs the option 'base'")],
)
def test_a_correction_of_nothing_is_refused(tmp_path, options, message):
    policy = {"kind": "robotics/residual", "model": "mlp", "options": options}
    setup = resolve(config(tmp_path, [PPO], policy))
    with pytest.raises(UserError, match=message):
        check_model(setup.config, setup.policy)


def test_a_time_limit_that_costs_nothing_is_remarked(tmp_path):
    told = {
        name: " ".join(remarks(resolve(config(tmp_path, [stage], options=options))))
        for name, stage, options in (
            ("undiscounted", {**PPO, "settings": {}}, {"reward": "own"}),
            ("discounted", PPO, {"reward": "own"}),
            ("deadline", {**PPO, "settings": {}}, {"reward": "own", "time_limit_terminates": True}),
            ("endless", {**PPO, "settings": {}, "critic": {"bootstrap": "always"}}, {"time_limit_terminates": True}),
            ("discounted ends", {**PPO, "critic": {"bootstrap": "always"}}, {}),
            ("discounted by default", {**PPO, "algorithm": "digirl", "settings": {}}, {"reward": "own"}),
            ("whole episodes", GRPO, {}),
        )
    }
    assert "stages.0.settings.gamma is 1" in told.pop("undiscounted")
    assert 'stages.0.critic.bootstrap = "always" with settings.gamma = 1' in told.pop("endless")
    assert not any("gamma" in text for text in told.values())
