"""A split that is only for evaluation is evaluated and never trained on."""

import json

import pytest
from click.testing import CliRunner

from mmrl.ui.cli import main

PLUGIN = """
from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="exams/exam", target="exams:Exam", verifiers={"exams/right": 1.0}),
            TaskSpec(id="exams/book", target="exams:Book", verifiers={"exams/right": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="exams/right", target="exams:right")]

class Exam(Task):
    splits, held_out = ("test",), ("test",)
    def prompts(self, split, seed):
        return [Prompt(id=f"{split}-{i}", messages=[user_message(f"{split} {i}?")], answer="a") for i in range(4)]

class Book(Exam):
    splits = ("train", "test")

def right(case):
    return float(case.completion == case.answer)
"""
KINDS = ("rl", "sft")


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """One file for all tests, since a process imports a module of this name once."""
    path = tmp_path_factory.mktemp("held_out") / "exams.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def run(tmp_path, monkeypatch, plugin):
    """Run a command on a run file with these tasks and this stage."""
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(plugin))
    monkeypatch.chdir(tmp_path)

    def command(name, ids, *args, **stage):
        entries = [{"id": f"exams/{id}"} for id in ids]
        text = json.dumps({"tasks": entries, "stages": [{"kind": "rl", "steps": 1, **stage}]})
        table = text.replace('": ', '" = ')[1:-1].replace('], "stages"', ']\n"stages"')
        rest = 'name = "x"\npolicy = {model = "tiny:qwen2_5_vl:hidden=32,layers=1"}\ngenerate = {max_tokens = 2}\n'
        (tmp_path / "run.toml").write_text(f"{rest}evaluate = {{num_prompts = 2}}\n{table}\n")
        return CliRunner().invoke(main, [name, "run.toml", *args])

    return command


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_that_trains_on_it_is_refused(run, kind):
    done = run("train", ["book"], "--dry-run", kind=kind, split="test")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "task 'exams/book': its split 'test' is only for evaluation: train on train" in done.stderr
    assert run("train", ["book"], "--dry-run", kind=kind).exit_code == 0


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_task_without_another_split_is_not_trained_on(run, split):
    done = run("train", ["exam", "book"], "--dry-run", split=split)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "task 'exams/exam': its split 'test' is only for evaluation: list the other tasks in stages.0.tasks" in done.stderr


def test_it_is_evaluated_beside_the_tasks_that_are_trained(run):
    done = run("train", ["exam", "book"], "--dry-run", tasks={"exams/book": 1.0})
    assert done.exit_code == 0, done.stderr
    done = run("eval", ["exam"], "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["exams/exam"]["n"] == 2
