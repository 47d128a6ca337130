"""A fault in a task's own code ends a run with its traceback and one line that names the task and the method."""

import json
import sys

import pytest

import runs
from mmrl.api.errors import PluginError

PLUGIN = """
from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message

@hookimpl
def mmrl_tasks():
    return [TaskSpec(id="wrong/task", target="wrong:T", verifiers={"wrong/exact": 1.0})]

@hookimpl
def mmrl_verifiers():
    return [VerifierSpec(id="wrong/exact", target="wrong:exact")]

def exact(case):
    return float(len(case.completion) % 2)

class Lazy(list):
    def __getitem__(self, i):
        raise KeyError("gone")

class T(Task):
    splits = ("train", "test")

    def __init__(self, how="", where=""):
        self.how, self.where = how, where
        if where == "splits":
            self.splits = self.value()

    def value(self):
        return eval(self.how)

    def prompts(self, split, seed):
        fine = [Prompt(id=f"{split}{i}", messages=[user_message("x")], answer="a") for i in range(4)]
        if self.where == "messages":
            return [Prompt(id=p.id, messages=self.value(), answer="a") for p in fine]
        return self.value() if self.where == "prompts" else fine

    def gold(self, prompt):
        return self.value() if self.where == "gold" else "a"

    def summarise(self, results):
        return self.value() if self.where == "summarise" else {}

    def summarise_parts(self, parts):
        return self.value() if self.where == "summarise_parts" else {}
"""


@pytest.fixture(autouse=True)
def wrong(tmp_path, monkeypatch):
    (tmp_path / "wrong.py").write_text(PLUGIN)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(tmp_path / "wrong.py"))
    yield
    sys.modules.pop("wrong", None)  # the next test has another file of that name


@pytest.mark.parametrize(
    ("where", "how", "message"),
    [
        ("prompts", "1 / 0", r"prompts\('train', 0\) raised ZeroDivisionError"),
        ("prompts", "exit(0)", r"prompts\('train', 0\) raised SystemExit: 0"),
        ("prompts", "None", "raised TypeError: 'NoneType' object is not iterable"),
        ("prompts", "'some text'", "prompts\\(\\) must give mmrl.Prompt, but item . is a str"),
        ("prompts", "[Prompt(messages=[user_message('a')], id=i) for i in range(4)]", "the id of a prompt must be a text"),
        ("prompts", "[{}] * 4", "must give mmrl.Prompt, but item . is a dict"),
        ("prompts", "(1 / i for i in (1, 0))", "raised ZeroDivisionError"),
        ("prompts", "Lazy([1, 2])", "item 0 of its prompts raised KeyError: 'gone'"),
        ("gold", "1 / 0", r"gold\(\) of prompt 'train0' raised ZeroDivisionError"),
        ("gold", "None", r"gold\(\) of prompt 'train0' must be text that can be written as UTF-8, not None"),
        ("gold", "chr(0xd800)", "must be text that can be written as UTF-8"),
        ("summarise", "1 / 0", r"summarise\(\) raised ZeroDivisionError"),
        ("summarise", "exit(3)", r"summarise\(\) raised SystemExit: 3"),
        ("summarise", "None", r"summarise\(\) raised TypeError"),
        ("summarise", "{'x': float('nan')}", r"summarise\(\) must give finite numbers by name, not 'x': nan"),
        ("summarise", "{'x': [1]}", r"must give finite numbers by name, not 'x': \[1\]"),
        ("summarise_parts", "1 / 0", r"summarise_parts\(\) raised ZeroDivisionError"),
        ("summarise_parts", "{'x': float('inf')}", r"summarise_parts\(\) must give finite numbers by name, not 'x': inf"),
        ("messages", "['x']", "message 0 must be a dict with a role .* not 'x'"),
        ("messages", "'hello'", "its messages must be a list, not 'hello'"),
        ("messages", "[{'content': 'x'}]", "message 0 must be a dict with a role"),
        ("messages", "[{'role': 'user'}]", "the content of message 0 must be a text or a list of parts .* not None"),
        ("messages", "[{'role': 'user', 'content': [{'type': 'image'}]}]", "the content of message 0 must be a text or a list"),
        (
            "messages",
            "[{'role': 'user', 'content': [{'type': 'text', 'text': 3}]}]",
            "the content of message 0 must be a text or",
        ),
        ("splits", "'train'", "splits must be a tuple of names such as"),
        ("splits", "None", "splits must be a tuple of names such as"),
    ],
)
def test_it_is_named(tmp_path, where, how, message):
    tasks = [{"id": "wrong/task", "options": {"where": where, "how": how}}]
    with pytest.raises(PluginError, match=message) as caught:
        runs.run(runs.toy_config(tmp_path, tasks=tasks))
    assert "wrong/task" in str(caught.value) and "\n" not in str(caught.value)


def test_what_summarise_adds_can_not_hide_the_engines_figures(tmp_path):
    tasks = [{"id": "wrong/task", "options": {"where": "summarise", "how": "{'failed': 7.0, 'more': 0.5}"}}]
    folder = runs.run(runs.toy_config(tmp_path, tasks=tasks))
    extra = json.loads((folder.path / "summary.json").read_text())["last"]["wrong/task"]["extra"]
    assert extra["failed"] == 0.0 and extra["more"] == 0.5
