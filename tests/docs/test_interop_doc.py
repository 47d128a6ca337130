"""docs/interop.md is so: each block runs, and each way to a first reward has at most five lines."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

import mmrl
from mmrl.api.cases import KEYS, TURN_KEYS
from mmrl.ui.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "interop.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
PEERS = ("TRL", "verl", "EasyR1", "ms-swift")
HUB = re.compile(r"Qwen/Qwen[\w.-]+")
TINY = "tiny:qwen2_5_vl"


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTIONS[section], re.DOTALL)


def lines(block: str) -> list[str]:
    return [line for line in block.splitlines() if line.strip()]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(code: str, **names: object) -> None:
    exec(compile(HUB.sub(TINY, code), "docs/interop.md", "exec"), {"__name__": "docs", **names})


@pytest.mark.parametrize("peer", PEERS)
def test_the_way_to_a_first_reward_has_at_most_five_lines(peer):
    python, shell = blocks(peer, "python"), blocks(peer, "sh")
    assert python and max(len(lines(block)) for block in (*python, *shell)) <= 5
    assert bool(shell) == (peer != "TRL"), "TRL takes no file"


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer != "TRL"])
def test_a_file_is_written_and_a_first_reward_is_given(peer, here, capsys):
    pytest.importorskip("pyarrow")
    pytest.importorskip("torch")
    for block in reversed(blocks(peer, "sh")):
        command = lines(block)[0].split()
        assert command[:2] == ["mmrl", "export"]
        done = CliRunner().invoke(main, [*(HUB.sub(TINY, word) for word in command[1:]), "-n", "2", "--overwrite"])
        assert (done.exit_code, done.stderr) == (0, ""), done.stderr
        own = done.stdout.splitlines()[1].removeprefix("its run needs: ")
        assert all(word in block for word in own.split()), "the command says what the page says"
    run(blocks(peer, "python")[0])
    told = eval(capsys.readouterr().out)
    found = told[0] if isinstance(told, list) else told
    value = found if isinstance(found, float) else found.get("score", found.get("overall"))
    assert 0 < value < 1.1, "a box that overlaps the right one"
    assert isinstance(found, float) or found["missing"] == 0.0


def test_a_task_opens_by_the_api(capsys):
    pytest.importorskip("torch")
    run(blocks("The API", "python")[0])
    assert capsys.readouterr().out.startswith("Score(value=")


def test_a_simulator_is_a_vector_environment(capsys):
    pytest.importorskip("torch")
    run(blocks("Gymnasium and Stable-Baselines3", "python")[0])
    assert capsys.readouterr().out.count("'") == 8, "four instructions"


def test_a_box_in_thousandths_is_scored_from_outside():
    command = blocks("The JSON form of a case", "sh")[0]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path})
    assert (done.returncode, done.stderr) == (0, "") and json.loads(done.stdout)["value"] > 0.97


def test_the_keys_of_a_case_are_all_there():
    table = SECTIONS["The JSON form of a case"]
    named = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `")))
    assert sorted(named) == sorted(KEYS)
    assert all(f'"{key}"' in table for key in TURN_KEYS)


REWARDS = """
def accuracy(completions, solution, **columns):
    return [float(f">{s}<" in c[0]["content"]) for c, s in zip(completions, solution)]

def brief(completions, **columns):
    return [float(len(c[0]["content"]) < 200) for c in completions]
"""


def test_a_run_file_names_rewards_of_trl(here):
    (here / "rewards.py").write_text(REWARDS)
    text = blocks("Rewards of TRL and verl in mmrl", "toml")[0]
    rest = 'name = "x"\npolicy = {model = "tiny:qwen2_5_vl"}\nstages = [{kind = "rl", steps = 1}]\n'
    (here / "run.toml").write_text(rest + text)
    done = CliRunner().invoke(main, ["train", "run.toml", "--dry-run"])
    assert done.exit_code == 0, done.stderr
    table = tomllib.loads(text)
    entry = table["tasks"][0]
    with mmrl.open_task(entry["id"], verifiers=entry["verifiers"], verifier_options=table["verifiers"]) as task:
        prompt = task.prompts()[0]
        score = task.score(task.case(prompt, task.gold(prompt)))
    assert score.value == pytest.approx(1.0 + 0.2 + 0.5) and score.parts["interop/trl/accuracy"] == 1.0


@pytest.mark.slow
def test_trl_trains_as_the_page_says(monkeypatch, tmp_path):
    """With TRL's own trainer; only its settings are smaller."""
    trl = pytest.importorskip("trl")
    torch = pytest.importorskip("torch")
    from mmrl_interop import trl as adapter
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from mmrl.policies.vlm import tiny

    tiny.save(str(tmp_path / "model"), "qwen2_5_vl")
    config = trl.GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=4,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        gradient_checkpointing=False,
        logging_steps=1,
    )
    trainers = []

    def trainer(model, **arguments):
        loaded = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32)
        processor = AutoProcessor.from_pretrained(model, padding_side="left")
        trainers.append(real(loaded, args=config, processing_class=processor, **arguments))
        return trainers[-1]

    real = trl.GRPOTrainer
    monkeypatch.setattr(trl, "GRPOTrainer", trainer)
    monkeypatch.setattr(adapter, "to_trl", functools.partial(adapter.to_trl, n=8))
    code = HUB.sub(str(tmp_path / "model"), blocks("TRL", "python")[0])
    exec(compile(code, "docs/interop.md", "exec"), {})
    logged = trainers[0].state.log_history[0]
    assert logged["missing"] == 0.0 and "rewards/grounding/refer/mean" in logged and "grounding/iou" in logged


CHECKS = {
    "verl": """
from hydra import compose, initialize_config_module
with initialize_config_module("verl.trainer.config", version_base=None):
    found = compose("ppo_trainer", overrides=ARGUMENTS)
assert found.reward.custom_reward_function.name == "compute_score"
""",
    "swift": """
from swift.arguments import RLHFArguments
from dataclasses import fields
known = {field.name for field in fields(RLHFArguments)}
assert {word.removeprefix("--") for word in ARGUMENTS if word.startswith("--")} <= known
""",
}


@pytest.mark.exhaustive  # a minute
@pytest.mark.slow
@pytest.mark.parametrize("peer", CHECKS)
def test_the_trainers_know_the_settings_of_their_lines(peer, tmp_path):
    python = ROOT / ".peers" / peer / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{peer} is not installed in {python.parents[1]}: make peers")
    command = lines(blocks({"swift": "ms-swift"}.get(peer, peer), "sh")[0])[1].split()
    arguments = [word for word in command if (word.startswith("--") if peer == "swift" else "=" in word)]
    program = f"ARGUMENTS = {arguments!r}\n{CHECKS[peer]}"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_table_of_verl_trains_here(here):
    pytest.importorskip("torch")
    export = ["export", "classification/digits", "train.parquet", "--to", "verl", "--model", TINY, "-n", "24"]
    assert CliRunner().invoke(main, export).exit_code == 0
    (here / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    assert data_source == 'mmrl:classification/digits' and 'index' in extra_info\n"
        "    return float(len(solution_str) % 2)\n"
    )
    (table,) = blocks("Tables of other trainers", "toml")
    (here / "run.toml").write_text(
        f'{table}name = "table"\npolicy = {{model = "{TINY}:hidden=32,layers=1"}}\ngenerate = {{max_tokens = 4}}\n'
        'stages = [{kind = "rl", steps = 2, prompts_per_step = 2, group_size = 4}]\nevaluate = {num_prompts = 2}\n'
    )
    done = CliRunner().invoke(main, ["train", "run.toml", "--quiet"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (here / "runs/table/metrics.jsonl").read_text().splitlines()]
    rewards = [row["metrics"]["reward/mean"] for row in rows if "metrics" in row]
    assert len(rewards) == 2 and all(0 <= reward <= 1 for reward in rewards), "no score is missing"


WORLDS = ("reasoning-gym", "Environments of others")


def test_environments_of_others_take_at_most_five_lines():
    found = [block for section in WORLDS for language in ("toml", "python") for block in blocks(section, language)]
    assert len(found) == 8 and max(len(lines(block)) for block in found) <= 5


def opened(entry, **options):
    return mmrl.open_task(entry["id"], {**entry.get("options", {}), **options})


def test_reasoning_gym_is_scored():
    pytest.importorskip("reasoning_gym")
    [entry] = tomllib.loads(blocks("reasoning-gym", "toml")[0])["tasks"]
    with opened(entry, test=2) as task:
        for prompt in task.prompts("test"):
            assert task.score(task.case(prompt, task.gold(prompt))).value == 1.0


def test_games_are_played(here):
    pytest.importorskip("gymnasium")
    bundled, own = (tomllib.loads(block) for block in blocks("Environments of others", "toml")[1:3])
    for entry in bundled["tasks"]:
        with opened(entry, test=2) as task:
            episode = task.episode(task.prompts("test")[0], max_turns=20)
            while not episode.done:
                episode.step(episode.gold_turn())
            assert episode.score().value > 1.0 and episode.score().parts["interop/success"] == 1.0
    (here / "games.py").write_text(blocks("Environments of others", "python")[0])
    [entry] = own["tasks"]
    with opened(entry) as task:
        episode = task.episode(task.prompts("test")[7])
        assert task.prompts("test")[7].text == "Name a number above 7."
        episode.step("12")
        assert episode.score().value == 1.0


@pytest.mark.exhaustive  # two minutes; plugins/interop tests it in parts
@pytest.mark.slow
def test_a_benchmark_of_lmms_eval_is_evaluated_and_not_trained_on(here):
    pytest.importorskip("torch")
    python, benchmark = ROOT / ".peers/lmms/bin/python", ROOT / "plugins/interop/tests/benchmark"
    if not python.exists():
        pytest.skip(f"lmms-eval is not installed in {python.parents[1]}: make peers")
    for file in benchmark.glob("[!_]*.*"):
        (here / file.name).write_text(file.read_text())
    datasets = pytest.importorskip("datasets")
    row = {"image": Image.new("RGB", (28, 28)), "question": "How dark?", "answer": "0"}
    for name in ("rows", "practice"):
        datasets.Dataset.from_list([row] * 2).cast_column("image", datasets.Image()).to_parquet(here / f"{name}.parquet")
    [block] = [block for block in blocks("Environments of others", "toml") if "lmms-eval" in block]
    block = block.replace("lmms-env/bin/python", str(python)).replace("mmstar", "shades.yaml").replace("average", "macro")
    offline = '{HF_HUB_OFFLINE = "1", HF_HOME = "cache"}'
    block = block.replace('metric = "macro"', f'metric = "macro", environment = {offline}')
    (here / "run.toml").write_text(
        f'{block}name = "x"\npolicy = {{model = "{TINY}:hidden=32,layers=1"}}\ngenerate = {{max_tokens = 4}}\n'
        "evaluate = {num_prompts = 2}\n"
    )
    done = CliRunner().invoke(main, ["eval", "run.toml", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["interop/lmms-eval"]["extra"]["lmms-eval/macro"] in (0, 50, 100)
    done = CliRunner().invoke(main, ["train", "run.toml", "--dry-run", "--set", "stages.0.tasks={}"])
    assert done.exit_code == 0, done.stderr
    done = CliRunner().invoke(
        main, ["train", "run.toml", "--dry-run", "--set", "stages.0.tasks={}", "--set", 'stages.0.split="test"']
    )
    assert done.exit_code == 2 and "its split 'test' is only for evaluation" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("peer", "block"), [("verifiers", 0), ("browsergym", 3)])
def test_verifiers_and_browsergym_play(peer, block, here):
    python = ROOT / ".peers" / peer / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{peer} is not installed in {python.parents[1]}: make peers")
    [entry] = tomllib.loads(blocks("Environments of others", "toml")[block])["tasks"]
    there = {"environment": {"PYTHONPATH": str(ROOT / "plugins/interop/tests/tasksets")}, "taskset": "shades-vf"}
    with opened(entry, python=str(python), **(there if peer == "verifiers" else {})) as task:
        prompt = task.prompts("test")[0]
        episode = task.episode(prompt)
        button = re.search(r"\[(\d+)\] button 'ONE'", prompt.text)
        episode.step(f"<action>click('{button[1]}')</action>" if button else "no")
        assert episode.done and episode.score().value == (1.0 if button else 0.5)
