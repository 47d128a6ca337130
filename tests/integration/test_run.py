"""Whole runs: what they leave behind, and what they answer to bad input."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

import forked
import runs
import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.policies.vlm import vlm as vlm_module
from mmrl.policies.vlm.capabilities import UNKNOWN
from mmrl.run_folder.reader import is_run
from mmrl.testing.cases import mostly_slow
from mmrl.train.alarms import AlarmMonitor
from mmrl.train.start import evaluate_only

RUN_FILE = """
name = "toy"
[policy]
model = "tiny:qwen2_5_vl:hidden=32,layers=1"
[[tasks]]
id = "toy/colour"
[[stages]]
kind = "rl"
steps = 3
prompts_per_step = 2
group_size = 4
[generate]
max_tokens = 4
[evaluate]
num_prompts = 4
[train]
threads = 1
"""


@pytest.mark.everyday
def test_a_run_leaves_everything_that_the_run_folder_promises(tmp_path):
    folder = runs.run(runs.toy_config(tmp_path, overrides=("evaluate.every=2",)))
    rows = runs.rows(folder)
    assert [r["step"] for r in rows if "metrics" in r] == [1, 2, 3, 4, 5, 6]
    assert [r["step"] for r in rows if "eval" in r] == [2, 4, 6], "before the first RL stage, then every two of its steps"
    first = next(r for r in rows if r["stage"] == "rl" and "metrics" in r)["metrics"]
    assert {
        "reward/mean",
        "reward/std",
        "reward/toy/letters",
        "task/toy/colour/reward",
        "task/toy/colour/reward/toy/letters",
        "task/toy/colour/length",
        "task/toy/colour/zero_std_share",
        "answers/most_common_share",
        "length/mean",
        "length/max",
        "length/truncated_share",
        "entropy",
        "kl",
        "clip_share",
        "zero_std_share",
        "uncredited_share",
        "loss",
        "grad_norm",
        "learning_rate",
        "logprob_gap",
        "judge/failed_share",
        "time/process",
        "time/generate",
        "time/judge",
        "time/update",
        "time/other",
        "time/step",
        "memory/process",
    } == set(first)
    assert first["logprob_gap"] < 1e-5 and first["zero_std_share"] == 0.0 and 0 < first["entropy"] < 6.3
    parts = sum(v for k, v in first.items() if k.startswith("time/") and k != "time/step")
    assert parts == pytest.approx(first["time/step"], rel=1e-6)
    summary = json.loads((folder.path / "summary.json").read_text())
    assert {"before", "best", "last", "seconds", "peak_memory_mb"} <= set(summary)
    assert 50 < first["memory/process"] < 1.05 * summary["peak_memory_mb"]
    assert (
        set(summary["before"]["toy/colour"]) >= {"metric", "value", "low", "high", "n"}
        and summary["before"]["toy/colour"]["n"] == 4
    )
    assert {"total", "generate", "judge", "update", "other"} <= set(summary["seconds"])
    kept = [json.loads(line) for line in (folder.path / "rollouts" / "step-000004.jsonl").read_text().splitlines()]
    assert len(kept) == 8 and [k["group"] for k in kept] == [0] * 4 + [1] * 4
    assert all(
        (folder.path / "rollouts" / part["path"]).exists()
        for k in kept
        for m in k["messages"]
        for part in m["content"]
        if part["type"] == "image"
    )
    assert [p.name for p in folder.checkpoints()][-1] == "step-000006"


def test_one_seed_fixes_everything(tmp_path):
    a, b = (runs.run(runs.toy_config(tmp_path / n)) for n in "ab")
    assert runs.trajectory(a) == runs.trajectory(b)
    c = runs.run(runs.toy_config(tmp_path / "c", overrides=("seed=1",)))
    assert runs.trajectory(c) != runs.trajectory(a)


def test_micro_batches_change_no_figure_beyond_rounding(tmp_path):
    a, b = (runs.run(runs.toy_config(tmp_path / str(n), overrides=(f"train.micro_batch_tokens={n}",))) for n in (1, 100_000))
    losses = [[r["metrics"]["loss"] for r in runs.rows(f) if "metrics" in r] for f in (a, b)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.everyday
def test_training_moves_the_reward_up(tmp_path):
    """The reward that SFT never saw: more of the letters that count."""
    stage = {"kind": "rl", "steps": 40, "prompts_per_step": 4, "group_size": 16, "learning_rate": 3e-3}
    folder = runs.run(runs.toy_config(tmp_path, stages=[stage], evaluate={"num_prompts": 0}))
    rewards = [r["metrics"]["reward/mean"] for r in runs.rows(folder)]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1


def test_an_evaluation_of_the_run_folder_repeats_its_figures(tmp_path):
    folder = runs.run(runs.toy_config(tmp_path))
    from mmrl.config.load import load_config

    figure = evaluate_only(load_config(folder.path / "config.toml"), folder.path, "last")[0]
    last = json.loads((folder.path / "summary.json").read_text())["last"]["toy/colour"]
    assert (figure.value, figure.n, figure.low) == (last["value"], last["n"], last["low"])
    with pytest.raises(UserError, match="no checkpoint '5'"):
        evaluate_only(load_config(folder.path / "config.toml"), folder.path, "5")


def test_a_model_that_no_adapter_names_shares_its_prompt(tmp_path):
    watch = runs.Silent()
    policy = {"model": cases.llava(tmp_path / "llava")}
    folder = runs.run(runs.toy_config(tmp_path, policy=policy), progress=watch)
    assert not any("slower" in note for note in watch.notes)
    assert all(r["metrics"]["logprob_gap"] < 1e-5 for r in runs.rows(folder) if "metrics" in r and r["stage"] == "rl")


def test_a_model_that_cannot_share_its_prompt_trains_and_says_that_it_is_slower(tmp_path, monkeypatch):
    monkeypatch.setattr(vlm_module, "probe", lambda *_: UNKNOWN)
    monkeypatch.setattr(vlm_module, "_PROBED", {})
    watch = runs.Silent()
    policy = {"model": cases.llava(tmp_path / "llava")}
    folder = runs.run(runs.toy_config(tmp_path, policy=policy), progress=watch)
    assert len(watch.notes) == 1 and watch.notes[0].startswith("llava: every completion") and "slower" in watch.notes[0]
    assert all(r["metrics"]["logprob_gap"] < 1e-5 for r in runs.rows(folder) if "metrics" in r and r["stage"] == "rl")
    with pytest.raises(UserError, match=r"a llava model can't share a prompt \(it was not tried\)"):
        runs.run(runs.toy_config(tmp_path, "other", policy=policy, train={"packing": "shared-prefix"}))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("family", mostly_slow(cases.FAMILIES, everyday=2))
def test_packing_changes_no_figure_beyond_rounding(tmp_path, family):
    found = []
    for packing in ("shared-prefix", "per-completion"):
        policy = {"model": f"tiny:{family}:hidden=32,layers=2"}
        folder = runs.run(runs.toy_config(tmp_path, packing, policy=policy, train={"packing": packing, "threads": 1}))
        found.append([r["metrics"]["loss"] for r in runs.rows(folder) if "metrics" in r])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


# -- verifiers that misbehave -------------------------------------------------------------------------------------------


def with_verifier(tmp_path, name, **sections):
    return runs.toy_config(tmp_path, tasks=[{"id": "toy/colour", "verifiers": {f"toy/{name}": 1.0}}], **sections)


@pytest.mark.parametrize(
    ("name", "reason"), mostly_slow([("raises", "the grader is out"), ("nan", "nan"), ("hangs", "0.3")], everyday=2)
)
def test_a_verifier_that_fails_stops_the_run_and_loses_nothing(tmp_path, name, reason):
    with pytest.raises(UserError, match=r"12 of 12 scores of step 3 failed.*judge\.failure_limit") as caught:
        runs.run(with_verifier(tmp_path, name))
    assert reason in str(caught.value)
    errors = [json.loads(line) for line in (tmp_path / "toy" / "errors.jsonl").read_text().splitlines()]
    assert errors.pop()["where"] == "the end of the run"
    assert len(errors) == 8 and reason in errors[0]["what"] and errors[0]["step"] == 3
    rows = runs.rows(tmp_path / "toy")
    assert [r["step"] for r in rows if "metrics" in r] == [1, 2], "the SFT steps stand, the failed step left no figures"
    assert (tmp_path / "toy" / "checkpoints" / "step-000002").exists()


def test_failed_scores_below_the_limit_leave_their_group_and_are_counted(tmp_path):
    folder = runs.run(with_verifier(tmp_path, "sometimes", judge={"failure_limit": 0.6}))
    metrics = [r["metrics"] for r in runs.rows(folder) if r["stage"] == "rl" and "metrics" in r]
    assert 0 < sum(m["judge/failed_share"] for m in metrics) < len(metrics)
    kept = [json.loads(line) for f in sorted((folder.path / "rollouts").glob("*.jsonl")) for line in f.read_text().splitlines()]
    failed = [k for k in kept if k["score"]["status"] == "failed"]
    assert all(k["score"]["value"] is None and k["advantage"] is None for k in failed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prints", "forks"])
def test_a_verifier_that_prints_or_forks_is_harmless(tmp_path, name, capfd):
    a = runs.run(with_verifier(tmp_path / "a", name))
    b = runs.run(runs.toy_config(tmp_path / "b"))
    rewards = [[r["metrics"]["reward/mean"] for r in runs.rows(f) if "metrics" in r and r["stage"] == "rl"] for f in (a, b)]
    assert rewards[0] == rewards[1]
    assert "look at me" not in capfd.readouterr().out


# -- refused before anything is made ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tasks.0.id='toy/color'", "Did you mean 'toy/colour'"),
        ("tasks.0.id='nowhere/task'", "nowhere"),
        ("tasks.0.options={shades = 3}", "copies"),
        ("tasks.0.verifiers={'toy/exakt' = 1.0}", "toy/exact"),
        ("stages.1.algorithm='gpro'", "grpo"),
        ("stages.1.settings={scales = 'group'}", "scale"),
        ("stages.1.split='validation'", "train, test"),
        ("evaluate.split='held-out'", "train, test"),
        ("policy.model='/no/such/model'", "/no/such/model"),
        ("policy.model='tiny:gpt'", "qwen2_5_vl"),
        ("policy.kind='vml'", "vlm"),
        ("policy.device='cuda:7'", "no GPU"),
    ],
)
def test_a_fault_in_the_run_file_is_one_line_and_leaves_no_folder(tmp_path, change, message):
    if change.startswith("policy.device") and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(UserError) as caught:
        runs.run(runs.toy_config(tmp_path, overrides=(change,)))
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "toy").exists()


def test_a_folder_that_holds_a_run_is_not_touched(tmp_path):
    folder = runs.run(runs.toy_config(tmp_path))
    before = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match="already has a run"):
        runs.run(runs.toy_config(tmp_path, overrides=("seed=3",)))
    assert {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()} == before
    runs.run(runs.toy_config(tmp_path, overrides=("seed=3",)), overwrite=True)
    assert json.loads((folder.path / "manifest.json").read_text())["seed"] == 3


def test_a_run_that_ended_before_its_first_figure_is_replaced(tmp_path):
    """A reward that raises is mended, and the same command is given again. After a figure it takes --overwrite."""
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 2, "group_size": 2}
    failing = {"tasks": [{"id": "toy/colour", "verifiers": {"toy/raises": 1.0}}], "stages": [stage]}
    with pytest.raises(UserError, match=r"scores of step 1 failed"):
        runs.run(runs.toy_config(tmp_path, overrides=("evaluate.num_prompts=0",), **failing))
    assert is_run(tmp_path / "toy") and not (tmp_path / "toy" / "summary.json").exists()
    runs.run(runs.toy_config(tmp_path))
    assert (tmp_path / "toy" / "summary.json").exists()
    (tmp_path / "toy" / "summary.json").unlink()
    with pytest.raises(UserError, match="already has a run"):
        runs.run(runs.toy_config(tmp_path))


def test_overwrite_removes_runs_only(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match=r"thesis\.txt"):
        runs.run(runs.toy_config(tmp_path), overwrite=True)
    assert (tmp_path / "toy" / "thesis.txt").read_text() == "years of work"


def test_a_verifier_that_does_not_import_leaves_no_folder(tmp_path, monkeypatch, site):
    site(
        "mmrl-lame",
        {
            "mmrl_lame/__init__.py": """
        from mmrl import VerifierSpec, hookimpl
        @hookimpl
        def mmrl_verifiers():
            return [VerifierSpec(id="lame/one", target="mmrl_lame.code:one")]
        """,
            "mmrl_lame/code.py": "import a_package_that_is_not_there",
        },
        entry={"lame": "mmrl_lame"},
    )
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
    with pytest.raises(UserError, match="a_package_that_is_not_there"):
        runs.run(runs.toy_config(tmp_path, tasks=[{"id": "toy/colour", "verifiers": {"lame/one": 1.0}}]))
    assert not (tmp_path / "toy").exists()


# -- while it runs ------------------------------------------------------------------------------------------------------


def test_a_broken_picture_is_named_replaced_and_counted(tmp_path):
    folder = runs.run(
        runs.toy_config(
            tmp_path,
            tasks=[{"id": "toy/broken-images", "options": {"folder": str(tmp_path), "each": 8}}],
            stages=[{"kind": "rl", "steps": 4, "prompts_per_step": 4, "group_size": 2}],
        )
    )
    errors = [json.loads(line) for line in (folder.path / "errors.jsonl").read_text().splitlines()]
    assert len(errors) == 2 and {Path(e["what"].split(".png")[0].split()[-1]).name for e in errors} == {
        "train-red-0",
        "train-blue-0",
    }
    assert len(runs.rows(folder)) == 6


def test_a_broken_picture_in_an_evaluation_is_named_once_and_counted(tmp_path):
    """The toy's broken ones are of the training split, which may be evaluated."""
    folder = runs.run(
        runs.toy_config(
            tmp_path,
            tasks=[{"id": "toy/broken-images", "options": {"folder": str(tmp_path), "each": 8}}],
            stages=[{"kind": "sft", "steps": 1, "batch_size": 4}],
            evaluate={"split": "train", "num_prompts": 100},
        )
    )
    figures = [row["eval"] for row in runs.rows(folder) if "eval" in row]
    assert len(figures) == 2 and all(f["extra"]["left_out"] == 2 for f in figures)
    errors = [json.loads(line) for line in (folder.path / "errors.jsonl").read_text().splitlines()]
    assert sum(e["where"] == "evaluation of toy/broken-images" for e in errors) == 2


def test_mostly_broken_pictures_stop_the_run(tmp_path):
    with pytest.raises(UserError, match=r"broken.*errors\.jsonl"):
        runs.run(
            runs.toy_config(
                tmp_path,
                tasks=[{"id": "toy/broken-images", "options": {"folder": str(tmp_path), "each": 1}}],
                evaluate={"num_prompts": 0},
            )
        )


def test_a_data_set_of_nothing_but_broken_pictures_ends(tmp_path):
    task = {"id": "toy/broken-images", "options": {"folder": str(tmp_path), "each": 1, "copies": 1, "colours": 2}}
    with pytest.raises(UserError, match="2 prompts are broken"):
        runs.run(runs.toy_config(tmp_path, tasks=[task], evaluate={"num_prompts": 0}))


def test_a_supervised_run_is_evaluated_before_and_after(tmp_path):
    folder = runs.run(runs.toy_config(tmp_path, stages=[{"kind": "sft", "steps": 2, "batch_size": 4}]))
    assert [r["step"] for r in runs.rows(folder) if "eval" in r] == [0, 2]
    summary = json.loads((folder.path / "summary.json").read_text())
    assert all("toy/colour" in summary[name] for name in ("before", "best", "last"))


def test_too_large_a_gap_between_sampler_and_learner_stops_before_the_update(tmp_path, monkeypatch):
    from mmrl.policies.vlm.vlm import VLM

    score = VLM._score
    monkeypatch.setattr(VLM, "_score", lambda *a: (score(*a)[0] - 0.5, score(*a)[1]))
    with pytest.raises(UserError, match=r"disagree by 0\.500 nats.*limits\.logprob_gap"):
        runs.run(runs.toy_config(tmp_path))
    checkpoint = tmp_path / "toy" / "checkpoints" / "step-000002"
    monkeypatch.undo()
    from safetensors.torch import load_file

    os.environ["MMRL_PLUGIN_FILES"] = runs.TOY
    sft = runs.run(
        runs.toy_config(tmp_path / "sft", stages=[{"kind": "sft", "steps": 2, "batch_size": 4, "learning_rate": 1e-3}])
    )
    kept, expected = (load_file(p / "policy" / "model.safetensors") for p in (checkpoint, sft.checkpoint_dir(2)))
    assert all(torch.equal(kept[k], expected[k]) for k in expected)


@pytest.mark.always
@pytest.mark.slow
def test_a_full_disk_while_a_checkpoint_is_written(tmp_path):
    """Files may grow to 40 kB: enough for everything but the weights."""
    (tmp_path / "run.toml").write_text(RUN_FILE)
    limited = tmp_path / "limited.py"
    limited.write_text(
        "import resource, sys\nfrom mmrl.ui.cli import main\n"
        "sys.dont_write_bytecode = True  # half a file of it would break later imports\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\nmain(prog_name='mmrl')"
    )
    done = forked.run(["train", "run.toml"], script=str(limited), cwd=tmp_path)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("mmrl:")]
    assert (
        len(lines) == 1
        and "could not be written" in lines[0]
        and "free some space" in lines[0]
        and "Traceback" not in done.stderr
    )
    assert list((tmp_path / "runs" / "toy" / "checkpoints").iterdir()) == []
    assert len(runs.rows(tmp_path / "runs" / "toy")) >= 4
    again = forked.run(["train", "run.toml", "--resume"], cwd=tmp_path)
    assert again.returncode == 0 and (tmp_path / "runs" / "toy" / "summary.json").exists(), again.stderr


@pytest.mark.everyday
def test_an_interrupt_stops_after_the_step_and_resume_goes_on(tmp_path):
    (tmp_path / "run.toml").write_text(RUN_FILE.replace("steps = 3", "steps = 2000"))
    process = forked.start(["train", "run.toml"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    metrics = tmp_path / "runs" / "toy" / "metrics.jsonl"
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and not (metrics.exists() and len(metrics.read_text().splitlines()) > 3):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in error
    steps = [r["step"] for r in runs.rows(tmp_path / "runs" / "toy") if "metrics" in r]
    assert [int(p.name[5:]) for p in (tmp_path / "runs" / "toy" / "checkpoints").glob("step-*")][-1:] == steps[-1:]


def test_the_command_line_says_what_is_wrong_in_one_line(tmp_path, mmrl):
    (tmp_path / "run.toml").write_text(RUN_FILE)
    (tmp_path / "broken.toml").write_text("name = ")
    (tmp_path / "secret.toml").write_text(RUN_FILE)
    for arguments, expected in [
        (["train", "missing.toml"], "missing.toml does not exist"),
        (["train", "broken.toml"], "not valid TOML"),
        (["train", "."], "is a folder"),
        (["train", "run.toml", "--set", "stages.0.step=3"], "did you mean 'steps'"),
        (["train", "run.toml", "--set", "seed=abc"], "'seed'"),
        (["train", "run.toml", "--resume", "--overwrite"], "contradict"),
        (["eval", "nowhere.toml"], "nowhere.toml does not exist"),
        (["eval", "."], "config.toml does not exist"),
    ]:
        done = mmrl(*arguments)
        assert done.returncode == 2 and expected in done.stderr, (arguments, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1 and done.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_dry_run_checks_and_writes_nothing(tmp_path, mmrl):
    (tmp_path / "run.toml").write_text(RUN_FILE)
    done = mmrl("train", "run.toml", "--dry-run", "--set", "generate.temperature=0.5")
    assert done.returncode == 0, done.stderr
    import tomllib

    assert tomllib.loads(done.stdout)["generate"]["temperature"] == 0.5 and not (tmp_path / "runs").exists()


def test_observers_hear_a_run_and_cannot_end_it(tmp_path, site, monkeypatch):
    site(
        "mmrl-ear",
        {
            "mmrl_ear.py": """
        from mmrl import hookimpl
        heard = []
        @hookimpl
        def mmrl_run_started(run, config): heard.append(("started", config["name"]))
        @hookimpl
        def mmrl_step_finished(run, step, metrics):
            heard.append(step)
            metrics.clear()
            if step == 2: raise RuntimeError("the ear fell off")
        @hookimpl
        def mmrl_run_finished(run, status): heard.append(status)
        """
        },
        entry={"ear": "mmrl_ear"},
    )
    os.environ["MMRL_PLUGIN_FILES"] = runs.TOY
    watched, watch = [], AlarmMonitor.step
    monkeypatch.setattr(AlarmMonitor, "step", lambda self, *given: watched.append(len(given[-1])) or watch(self, *given))
    folder = runs.run(runs.toy_config(tmp_path))
    assert len(watched) == 6 and min(watched) > 5, "alarms see the metrics that an observer cleared"
    import mmrl_ear

    assert mmrl_ear.heard == [("started", "toy"), 1, 2, 3, 4, 5, 6, "finished"]
    errors = [json.loads(line) for line in (folder.path / "errors.jsonl").read_text().splitlines()]
    assert [(e["step"], e["what"]) for e in errors] == [(2, "RuntimeError: the ear fell off")]


@pytest.mark.exhaustive  # two minutes
@pytest.mark.slow
def test_resident_memory_stays_flat_over_two_hundred_steps(tmp_path):
    import psutil

    class Watch(runs.Silent):
        def __init__(self):
            super().__init__()
            self.resident = []

        def step_finished(self, step, metrics):
            self.resident.append(psutil.Process().memory_info().rss)

    watch = Watch()
    stage = {"kind": "rl", "steps": 250, "prompts_per_step": 8, "group_size": 8, "learning_rate": 1e-4}
    runs.run(
        runs.toy_config(tmp_path, stages=[stage], policy={"model": "tiny:qwen2_5_vl"}, evaluate={"num_prompts": 0}),
        progress=watch,
    )
    early, late = sorted(watch.resident[45:55])[5], sorted(watch.resident[-10:])[5]
    assert late < 1.05 * early
