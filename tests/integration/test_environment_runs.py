"""Runs whose episodes have several turns: the environment of the guide, trained, evaluated and resumed."""

import json
import re
import sys

import pytest
import tomli_w
from click.testing import CliRunner

import guide
import runs
from mmrl import UserError
from mmrl.train.remarks import remarks
from mmrl.train.resolve import resolve
from mmrl.ui.cli import main

SPECS = """

from mmrl import TaskSpec, VerifierSpec, hookimpl

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="guess/number", target="guess:Guess", verifiers={"guess/found": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="guess/found", target="guess:found")]
"""
STAGES = [
    {"kind": "sft", "steps": 3, "batch_size": 8, "learning_rate": 1e-2},
    {"kind": "rl", "steps": 4, "prompts_per_step": 4, "group_size": 4, "learning_rate": 1e-3, "algorithm": "trajectory-grpo"},
]


@pytest.fixture
def guess(tmp_path, monkeypatch):
    """The guide's environment, as a plugin; makes a configuration."""
    (code,) = re.findall(r"```python\n(.*?)```", guide.section("An environment"), re.S)
    (tmp_path / "guess.py").write_text(code + SPECS)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "guess.py"))
    yield lambda name="a", **sections: runs.toy_config(
        tmp_path / "runs",
        name=name,
        **{"tasks": [{"id": "guess/number"}], "stages": STAGES, "generate": {"max_tokens": 3, "max_turns": 3}, **sections},
    )
    sys.modules.pop("guess", None)


def rollouts(folder):
    files = sorted((folder.path / "rollouts").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.everyday
def test_an_environment_is_trained_on_and_evaluated(guess):
    taught = [{**STAGES[0], "steps": 15}, STAGES[1]]  # so that some answers are right
    folder = runs.run(guess(stages=taught, record={"rollouts_every": 1, "rollouts": 99}))
    metrics = [row["metrics"] for row in runs.rows(folder) if row.get("stage") == "rl" and "metrics" in row]
    assert all(1 < m["turns/mean"] <= 3 for m in metrics) and any(m["grad_norm"] for m in metrics)
    assert all(m.get("logprob_gap", 0.0) < 1e-4 for m in metrics), "later turns are trained as they were sampled"
    for m in metrics:
        assert (
            m["reward/mean"] == pytest.approx(m["reward/guess/found"] + m["reward/environment"]) and m["reward/environment"] < 0
        )
    for row in rollouts(folder):
        answers = [m["content"][-1]["text"] for m in row["messages"] if m["role"] == "assistant"]
        said = [m["content"][-1]["text"] for m in row["messages"] if m["role"] == "user"][1:]
        assert all(text in ("No, more.", "No, less.") for text in said)
        if row["status"] == "truncated-turns":
            assert len(answers) == 2 and len(said) == 3, "three turns, the last of which is the completion"
        assert str(row["answer"]) not in [a.strip() for a in answers], "a right answer ends the episode"
        assert row["score"]["value"] == float(row["completion"].strip() == str(row["answer"]))
    assert {row["status"] for row in rollouts(folder)} >= {"truncated-turns"}


@pytest.mark.slow
def test_a_resumed_run_has_the_same_episodes(guess):
    whole = runs.run(guess("whole"))
    with pytest.raises(KeyboardInterrupt):
        runs.run(guess("cut"), progress=runs.Silent(5))
    assert runs.trajectory(runs.run(guess("cut"), resume=True)) == runs.trajectory(whole)


@pytest.mark.slow
def test_turns_that_begin_alike_are_compared(guess):
    """The environment says one of two things, so that states are met again."""
    stage = {**STAGES[1], "algorithm": "gigpo", "steps": 2}
    folder = runs.run(guess(stages=[{**STAGES[0], "steps": 15}, stage], evaluate={"num_prompts": 0}))
    metrics = [row["metrics"] for row in runs.rows(folder) if row.get("stage") == "rl" and "metrics" in row]
    assert len(metrics) == 2 and all(0.5 < m["turns/met_again_share"] <= 1 and m["grad_norm"] for m in metrics)
    for wrong, told in (
        ({"credit": "token"}, 'credit = "token" divides turns'),
        ({"algorithm": "grpo"}, "state_similarity has no"),
    ):
        with pytest.raises(UserError, match=told):
            runs.run(guess(stages=[{**stage, "state_similarity": 0.9, **wrong}]))


@pytest.mark.slow
def test_credit_from_turn_to_turn_and_from_word_to_word(guess):
    """An environment gives several turns, so that nothing is remarked but settings that leave PPO."""
    stage = {**STAGES[1], "algorithm": "bi-level-gae", "steps": 2}
    folder = runs.run(guess(stages=[{**STAGES[0], "steps": 15}, stage], evaluate={"num_prompts": 0}))
    metrics = [row["metrics"] for row in runs.rows(folder) if row.get("stage") == "rl" and "metrics" in row]
    assert len(metrics) == 2 and all(m["grad_norm"] and m["value_loss"] > 0 for m in metrics)
    assert remarks(resolve(guess(stages=[stage]))) == []
    (told,) = remarks(resolve(guess(stages=[{**stage, "settings": {"turn_gamma": 1.0}}])))
    assert "with gamma, turn_gamma and lam all 1, bi-level-gae is ppo" in told


RIBBON = """
from PIL import Image
from mmrl import Prompt, Reply, Task, TaskSpec, VerifierSpec, hookimpl, user_message

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="ribbon/talk", target="ribbon:Talk", verifiers={"ribbon/any": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="ribbon/any", target="ribbon:any_")]

def any_(case):
    return 1.0

class Talk(Task):
    def prompts(self, split, seed):
        return [Prompt(id=f"{split}-{i}", messages=[user_message(f"{i}?")]) for i in range(40)]
    def environment(self, prompt):
        return self
    def step(self, completion):
        return Reply(messages=[user_message("And this?", Image.new("RGB", (9000, 3)))])
    def close(self):
        pass
"""


def test_a_later_picture_that_cannot_be_shown_is_no_fault_of_the_engine(tmp_path, monkeypatch):
    (tmp_path / "ribbon.py").write_text(RIBBON)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "ribbon.py"))
    stage = {"kind": "rl", "steps": 1, "prompts_per_step": 1, "group_size": 2}
    config = runs.toy_config(tmp_path / "runs", tasks=[{"id": "ribbon/talk"}], stages=[stage], evaluate={"num_prompts": 0})
    (tmp_path / "run.toml").write_text(tomli_w.dumps(config.model_dump(mode="json", exclude_unset=True)))
    done = CliRunner().invoke(main, ["train", str(tmp_path / "run.toml")])
    sys.modules.pop("ribbon", None)
    assert done.exit_code == 2 and "Traceback" not in done.stderr and "bug" not in done.stderr, done.stderr
    assert done.stderr.splitlines()[-1].startswith("mmrl: image given as a Image is too narrow, 9000 x 3: ")


LOSING = '''
import itertools
from mmrl import Prompt, Reply, Task, TaskSpec, VerifierSpec, EnvironmentFailed, hookimpl, user_message

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="losing/talk", target="losing:Talk", verifiers={"losing/any": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="losing/any", target="losing:any_")]

def any_(case):
    return float(len(case.completion) % 2)

class Talk(Task):
    """Every environment whose number the option names is lost."""
    def __init__(self, lost: str = ""):
        self.lost, self.numbers = eval(f"lambda n: {lost or False}"), itertools.count()
    def prompts(self, split, seed):
        return [Prompt(id=f"{split}-{i}", messages=[user_message(f"{i}?")]) for i in range(40)]
    def environment(self, prompt):
        return Environment(self.lost(next(self.numbers)))

class Environment:
    def __init__(self, lost):
        self.lost = lost
    def step(self, completion):
        if self.lost:
            raise EnvironmentFailed("the wire is cut")
        return Reply(terminated=True)
    def close(self):
        pass
'''


@pytest.fixture
def losing(tmp_path, monkeypatch):
    """Makes a configuration whose environments are lost: by number, from 0."""
    (tmp_path / "losing.py").write_text(LOSING)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "losing.py"))
    stage = {"kind": "rl", "steps": 6, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-3}
    yield lambda lost, algorithm="grpo", held_out=0: runs.toy_config(
        tmp_path / "runs",
        tasks=[{"id": "losing/talk", "options": {"lost": lost}}],
        stages=[{**stage, "algorithm": algorithm}],
        evaluate={"num_prompts": held_out},
        generate={"max_tokens": 3, "max_turns": 2},
    )
    sys.modules.pop("losing", None)


def test_a_browser_that_dies_in_a_step_doesn_t_end_the_run(losing):
    """Whatever share of a step's episodes is lost: it says nothing of the verifiers."""
    folder = runs.run(losing("14 <= n < 34"))  # a few are opened before the first step
    metrics = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    shares = [m["judge/failed_share"] for m in metrics]
    assert [m["environment/lost"] / 8 for m in metrics] == shares and len(shares) == 6
    assert 1 <= shares.count(1.0) <= 2 and shares[0] == shares[-1] == 0


@pytest.mark.parametrize("lost, algorithm, last", [("n >= 16", "grpo", 5), ("True", "remax", 3)])
def test_environments_that_are_always_lost_end_it(losing, lost, algorithm, last):
    """ReMax reports twice a step: its greedy completions too."""
    with pytest.raises(UserError, match=rf"every episode of 3 steps in a row was lost, up to step {last}: see .*errors\.jsonl"):
        runs.run(losing(lost, algorithm))


def test_an_evaluation_whose_episodes_are_all_lost_says_so(losing):
    """And blames no verifier."""
    with pytest.raises(UserError, match=r"^evaluation of 'losing/talk': every episode was lost, 2 in all: its env") as told:
        runs.run(losing("True", held_out=2))
    assert "failure_limit" not in str(told.value)
