"""What a person is told: before a run that can't learn, in one that doesn't, after one that was stopped."""

import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

import forked
import runs
from mmrl.api.errors import UserError
from mmrl.api.specs import VerifierSpec
from mmrl.api.types import Prompt, Score
from mmrl.config.sections import limit_of
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.checks.gold_rewards import gold_warnings
from mmrl.train.start import evaluate_only, refuse_own_files
from mmrl.ui.cli import main

RL = {"kind": "rl", "steps": 12, "prompts_per_step": 2, "group_size": 2}
RUN_FILE = """
name = "told"
policy = {model = "tiny:qwen2_5_vl:hidden=32,layers=1"}
tasks = [{id = "toy/colour"}]
stages = [{kind = "rl", steps = 400, prompts_per_step = 2, group_size = 2}]
generate = {max_tokens = 4}
evaluate = {num_prompts = 4}
"""


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)


def told(tmp_path, **sections):
    """(the notes of a run, the rows of its errors.jsonl)."""
    watcher = runs.Silent()
    folder = runs.run(runs.toy_config(tmp_path, evaluate={"num_prompts": 0}, **sections), progress=watcher)
    path = folder.path / "errors.jsonl"
    return watcher.notes, [json.loads(row) for row in path.read_text().splitlines()] if path.exists() else []


def test_gold_completions_that_fit_and_score_are_not_mentioned(tmp_path):
    assert told(tmp_path, stages=[{**RL, "steps": 1}]) == ([], [])


def test_gold_completions_that_are_cut_off_or_score_low_are_named_before_the_first_step(tmp_path):
    tasks = [{"id": "toy/colour", "verifiers": {"toy/letters": 1.0, "toy/zero": 0.5}}]
    notes, rows = told(tmp_path, stages=[{**RL, "steps": 1}], tasks=tasks, generate={"max_tokens": 1})
    assert notes == [
        "toy/colour: generate.max_tokens = 1 cuts off even gold completions of 3 tokens: raise it",
        "toy/colour: toy/zero gives 0, not 1, to the gold completion 'red' (4 of 4 tried get less): "
        "does it read what the task asks for, see `mmrl list tasks toy/colour`?",
    ]
    assert [(row["step"], row["where"], row["what"]) for row in rows] == [(1, "gold completions", note) for note in notes]


LONG = "a long thought about the colour " * 9


@pytest.mark.parametrize(
    ("value", "high", "verifier", "told"),
    [
        (1 - 1e-9, 1.0, "toy/zero", ""),
        (0.99999, 1.0, "toy/zero", "toy: toy/zero gives 0.99999, not 1, to the gold completion"),
        (99.99995, 100.0, "toy/zero", ""),
        (2.9999, 3.0, "toy/zero", "toy: toy/zero gives 2.9999, not 3, to the gold completion"),
        (0.5, 1.0, "toy/zero@peer", "toy: as published, toy/zero@peer gives 0.5, not 1, to the gold completion"),
    ],
)
def test_a_gold_score_is_told_with_the_digits_that_matter(monkeypatch, value, high, verifier, told):
    spec = VerifierSpec(id=verifier, target="-:-", high=high)
    monkeypatch.setattr("mmrl.train.checks.gold_rewards.build_cases", list)
    rollout, detail = SimpleNamespace(length=30, completion=LONG), ""
    monkeypatch.setattr("mmrl.train.checks.gold_rewards._gold", lambda *_: [rollout] * 4)
    judge = SimpleNamespace(run=lambda name, cases: [Score(value, detail=detail)] * 4)
    entries = {"toy": SimpleNamespace(prompt_template="", max_tokens=None, id="toy")}

    def said(**more):
        tasks = {"toy": SimpleNamespace(simulation=None)}
        limits = {"toy": (16, "generate.max_tokens")}
        return list(gold_warnings(tasks, {"toy": []}, {"toy": {verifier: spec}}, None, judge, limits, entries, **more))

    first, *others = said()
    assert first == "toy: generate.max_tokens = 16 cuts off even gold completions of 30 tokens: raise it"
    assert said(smoke=True) == others and len(others) == bool(told)
    assert all(line.startswith(f"{told} {LONG[:80] + '...'!r} (4 of 4 tried get less): ") for line in others)
    detail = "outside, on a grid of 2 x 3"
    assert all("4 of 4 tried get less), saying 'outside, on a grid of 2 x 3': does it" in line for line in said(smoke=True))


def test_what_has_no_gold_completion_is_trained_without_one(tmp_path):
    """Where nobody knows what is right no gold rewards are checked; supervised fine-tuning ends with what the task says."""
    notes, rows = told(tmp_path, stages=[{**RL, "steps": 1}], tasks=[{"id": "toy/unknown"}], generate={"max_tokens": 1})
    assert (notes, rows) == ([], [])
    with pytest.raises(UserError, match="nobody knows the colour of train-"):
        told(tmp_path / "sft", stages=[{"kind": "sft", "steps": 1, "batch_size": 2}], tasks=[{"id": "toy/unknown"}])


def test_a_task_with_a_name_and_a_limit_of_its_own_is_told_by_them(tmp_path):
    tasks = [{"id": "toy/colour", "name": "short", "max_tokens": 2, "verifiers": {"toy/zero": 1.0}}, {"id": "toy/colour"}]
    notes, _ = told(tmp_path, stages=[{**RL, "steps": 1}], tasks=tasks, generate={"max_tokens": 3})
    assert [note.partition(": raise")[0] for note in notes if "max_tokens" in note] == [
        "short: tasks 'short' max_tokens = 2 cuts off even gold completions of 3 tokens"
    ]
    assert [note.rpartition(", see ")[2] for note in notes if "toy/zero" in note] == ["`mmrl list tasks toy/colour`?"]


@pytest.mark.parametrize(
    ("generate", "stage", "task", "key"),
    [
        (3, 2, None, "stages.0.max_tokens = 2"),
        (3, 2, 1, "tasks 'toy/colour' max_tokens = 1"),
        (3, 1, 2, "stages.0.max_tokens = 1"),
        (2, 2, None, "generate.max_tokens = 2"),
        (2, None, None, "generate.max_tokens = 2"),
    ],
)
def test_the_limit_that_cuts_gold_completions_off_is_told_by_its_key(tmp_path, generate, stage, task, key):
    config = runs.toy_config(
        tmp_path,
        tasks=[{"id": "toy/colour", **({"max_tokens": task} if task else {})}],
        stages=[{**RL, "steps": 1, **({"max_tokens": stage} if stage else {})}],
        generate={"max_tokens": generate},
    )
    limit, said = limit_of(config, 0, config.tasks[0])
    assert f"{said} = {limit}" == key


def test_a_run_that_learns_nothing_says_so_once(tmp_path):
    tasks = [{"id": "toy/colour", "verifiers": {"toy/exact": 1.0}}]
    notes, _ = told(tmp_path, stages=[RL, {**RL, "steps": 9}], tasks=tasks, generate={"max_tokens": 3})
    assert len(notes) == 1
    assert notes[0].startswith(
        "10 steps in a row taught nothing: every completion of a prompt scored the same (reward 0 on average), and "
    )
    assert "were cut off at their longest length (max_tokens): read the rollouts" in notes[0]


def test_a_step_with_spread_begins_the_count_again(tmp_path, monkeypatch):
    monkeypatch.setattr("mmrl.train.alarms.LONG", 3)
    monkeypatch.setattr("mmrl.train.stages.rl.rl_metrics", lambda *_: next(shares))
    shares = iter({"zero_std_share": s, "reward/mean": 1.0, "length/truncated_share": 0.0} for s in (1, 1, 0.5, 1, 1, 1, 1))
    notes, _ = told(tmp_path, stages=[{**RL, "steps": 7}])
    assert [note.partition(": read")[0] for note in notes] == [
        "3 steps in a row taught nothing: every completion of a prompt scored the same (reward 1 on average)"
    ]


def mmrl(folder, *arguments, stop=False):
    process = forked.start(["--plugin", runs.TOY, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if stop and "step 40/" in line:
            process.send_signal(signal.SIGINT)
            stop = False
    process.stdout.close()
    return process.wait(60), lines


@pytest.mark.slow
def test_a_stopped_run_says_where_it_stands_and_how_to_go_on(tmp_path):
    (tmp_path / "run.toml").write_text(RUN_FILE)
    code, lines = mmrl(tmp_path, "train", "run.toml", "--set", "seed=3", "--overwrite", stop=True)
    assert code == 130
    step = int(next(line for line in lines if line.startswith("stopped after step ")).split()[3])
    assert 40 <= step < 80
    assert f"stopped after step {step} of the run; the newest checkpoint is step-{step:06d}" in lines
    assert "report    runs/told/report.html" in lines and (tmp_path / "runs" / "told" / "report.html").exists()
    again = shlex.split(next(line for line in lines if line.startswith("resume    "))[10:])
    assert again == ["mmrl", "--plugin", runs.TOY, "train", "run.toml", "--set", "seed=3", "--resume"]
    code, lines = mmrl(tmp_path, *again[3:-1])
    assert code == 2 and len(lines) == 1, "nothing stopped that had not begun"


def test_a_finished_run_says_how_to_evaluate_it_again(tmp_path):
    (tmp_path / "run.toml").write_text(RUN_FILE)
    code, lines = mmrl(tmp_path, "train", "run.toml", "--smoke", "--set", "smoke_shows=['loss != 0', 'grad_norm < 0']")
    assert code == 0
    shown, lacking = (
        line for line in lines if line.startswith(("smoke     smoke_shows held: ", "smoke     smoke_shows held in "))
    )
    assert shown.startswith("smoke     smoke_shows held: loss != 0 (")
    assert lacking == "smoke     smoke_shows held in no step: grad_norm < 0"
    assert any(line.strip().startswith("note: smoke run: a tiny model and a few steps") for line in lines)
    assert f"evaluate  mmrl --plugin {shlex.quote(runs.TOY)} eval runs/told-smoke" in lines
    assert not any("mmrl new plugin" in line for line in lines), "who wrote the task knows"


def test_a_dry_run_says_what_would_be_rewarded_and_loads_nothing(tmp_path, monkeypatch, capsys):
    def dry(setting):
        with pytest.raises(SystemExit) as ended:
            main(["--plugin", runs.TOY, "train", "run.toml", "--dry-run", "--set", setting])
        out, err = capsys.readouterr()
        return ended.value.code, [*out.splitlines(), *err.splitlines()]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(VLM, "__init__", functools.wraps(VLM.__init__)(lambda *_: pytest.fail("a model is loaded")))
    (tmp_path / "run.toml").write_text(RUN_FILE)
    for verifiers, reward in (
        ("{'toy/letters' = 0.5, 'toy/exact' = 1}", "0.5 x toy/letters + toy/exact"),
        ("{'toy/letters' = [0.5, 0], 'toy/exact' = [1, 1]}", "(0.5 to 0) x toy/letters + toy/exact"),
    ):
        code, lines = dry(f"tasks.0.verifiers={verifiers}")
        assert code == 0
        assert f"# toy/colour: 16 train, 16 test prompts; reward {reward}; evaluated with toy/exact" in lines
    for model, message in (
        ("./none", "is not a folder"),
        (".", "is a folder without config.json"),
        ("tiny:none", "no tiny 'none': choose one of"),
        ("tiny:qwen2_5_v", "no tiny 'qwen2_5_v'. Did you mean 'qwen2_5_vl'?"),
        ("tiny:qwen2_vl:hidden=33", "hidden must be a multiple of 32"),
    ):
        code, lines = dry(f"policy.model={model}")
        assert code == 2 and len(lines) == 1 and message in lines[0]


def test_a_part_that_no_model_reads_is_refused_by_name():
    vlm = VLM(runs.toy_config(".").policy)
    with pytest.raises(UserError, match=r"a message part of type 'touch' can't be shown to a model: use text, image,? .*video"):
        vlm.encode(Prompt(messages=[{"role": "user", "content": [{"type": "touch", "touch": "a.wav"}]}]))
    with pytest.raises(UserError, match="a qwen2_5_vl model can't hear sounds here: choose one that does"):
        vlm.encode(Prompt(messages=[{"role": "user", "content": [{"type": "audio", "audio": "a.wav"}]}]))
    with pytest.raises(UserError, match=r"video a\.mp4 does not exist"):
        vlm.encode(Prompt(messages=[{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}]))
    with pytest.raises(UserError, match="5 is no video"):
        vlm.encode(Prompt(messages=[{"role": "user", "content": [{"type": "video", "video": 5}]}]))


def test_a_checkpoint_needs_no_model_of_the_run_file(tmp_path):
    VLM(runs.toy_config(tmp_path).policy).save(tmp_path / "base")
    config = runs.toy_config(tmp_path, policy={"model": str(tmp_path / "base")})
    with pytest.raises(KeyboardInterrupt):
        runs.run(config, progress=runs.Silent(3))
    shutil.rmtree(tmp_path / "base")
    assert evaluate_only(config, tmp_path / "toy", "last")[0].n == 4
    folder = runs.run(config, resume=True)
    assert (folder.path / "summary.json").exists()
    with pytest.raises(UserError, match="base' is not a folder: give a folder with a transformers checkpoint"):
        runs.run(config, overwrite=True)
    assert (folder.path / "summary.json").exists(), "nothing is lost"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "spin"), [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")]
)
def test_waiting_threads_spin_shortly_unless_the_environment_says_otherwise(given, spin):
    code = "import os; from mmrl.ui.cli import terminal; terminal.silence_libraries(); print(os.environ.get('GOMP_SPINCOUNT'))"
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env=kept | given, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == spin


def test_what_ended_a_run_is_written_down(tmp_path):
    """A limit that stops a run: one line for the person, the same in errors.jsonl."""
    limits = {"zero_std": 0.0, "answer_collapse": {"warn": 0.0}}
    config = runs.toy_config(tmp_path, stages=[{**RL, "steps": 12}], limits=limits)
    with pytest.raises(UserError, match=r"limits\.zero_std") as told:
        runs.run(config)
    written = [json.loads(line) for line in (tmp_path / "toy" / "errors.jsonl").read_text().splitlines()]
    ended = {"step": 10, "where": "the end of the run", "what": str(told.value), "alarm": "zero_std", "level": "stop"}
    assert written[-1] == ended
    warned = [(row["step"], row["alarm"]) for row in written[:-1] if "alarm" in row]
    assert warned == [(10, "answer_collapse")], "a warning of the same step"


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({"algorithm": "rloo", "epochs": 2}, "the loss of rloo has no probability ratio, so from the second update on"),
        ({"algorithm": "rloo", "hints": "guide"}, "so hinted completions count as if sampled without a hint"),
        ({"algorithm": "gpg", "noisy": {}}, "so completions of noisy images count as if sampled from the clean ones"),
        ({"algorithm": "clip-cov", "settings": {"low": 5.0}}, "settings.low isn't below settings.high: clip-cov leaves out no"),
        ({"kl_coef": 0.1, "kl_estimator": "k1"}, 'stages.0.kl_estimator = "k1" has no gradient on average in the loss'),
        ({"kl_bias_correction": True}, "stages.0.kl_bias_correction has no effect without a KL penalty in the loss: set kl_coef"),
        (
            {"kl_coef": 0.1, "kl_bias_correction": True, "kl_in": "reward"},
            "stages.0.kl_bias_correction has no effect without a KL penalty in the loss",
        ),
        (
            {"kl_coef": 0.1, "kl_bias_correction": True, "kl_estimator": "k2"},
            'stages.0.kl_bias_correction makes the gradient of kl_estimator = "k2" wrong: use k3, or leave it out',
        ),
        ({"algorithm": "rlsd", "settings": {"weight": 0.0, "last_weight": 0.0}}, "from the first step to the last, rlsd is grpo"),
        ({"algorithm": "bi-level-gae"}, "of these tasks is one turn, so that bi-level-gae is ppo and turn_gamma has no"),
        ({"algorithm": "gdpo", "kl_coef": 0.1, "kl_in": "reward"}, "gdpo uses only the verifiers' scores"),
    ],
)
def test_what_is_most_likely_not_meant_is_said_before_the_run(tmp_path, stage, said):
    from mmrl.train.remarks import remarks
    from mmrl.train.resolve import resolve

    (told,) = remarks(resolve(runs.toy_config(tmp_path, stages=[{**RL, **stage}])))
    assert said in told
    fine = {**RL, "kl_coef": 0.1, "epochs": 2, "hints": "guide"}
    corrected = [{**fine, "kl_bias_correction": True, "kl_estimator": k} for k in ("k1", "k3")]
    assert remarks(resolve(runs.toy_config(tmp_path, stages=[RL, fine, *corrected]))) == []


def test_a_run_does_not_replace_the_model_it_begins_with(tmp_path):
    sft = {"kind": "sft", "steps": 1, "batch_size": 2}
    folder = runs.run(runs.toy_config(tmp_path, stages=[sft], evaluate={"num_prompts": 0}))
    model = str(folder.checkpoint_dir(1) / "policy")
    distill = {"kind": "distill", "steps": 1, "teacher": model}
    for changed in ({"policy": {"model": model}, "stages": [sft]}, {"stages": [distill]}):
        with pytest.raises(UserError, match="which this run would replace: choose another name"):
            runs.run(runs.toy_config(tmp_path, evaluate={"num_prompts": 0}, **changed), overwrite=True)
    assert (folder.checkpoint_dir(1) / "policy" / "config.json").is_file()
    chosen = runs.toy_config(tmp_path, stages=[{**sft, "select": {"path": str(folder.path / "metrics.jsonl")}}])
    with pytest.raises(UserError, match=r"metrics\.jsonl is in .*toy, which this run would replace"):
        refuse_own_files(chosen, folder.path)
