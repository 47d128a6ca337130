"""The command line: bad input is one line and exit code 2, JSON is a contract, plugins add commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mmrl import __version__
from mmrl.cli import COMMANDS

ZOO = """
    import click
    from mmrl import SimulatorSpec, TaskSpec, VerifierSpec, hookimpl

    @hookimpl
    def mmrl_tasks():
        return [TaskSpec(id="zoo/animal", target="mmrl_zoo:Animal", options={"size": 8}, summary="Which [animal]",
                         verifiers={"zoo/exact": 1.0, "zoo/polite-v2": 0.5})]

    @hookimpl
    def mmrl_verifiers():
        return [VerifierSpec(id="zoo/exact", target="mmrl_zoo:exact"),
                VerifierSpec(id="zoo/polite-v2", target="mmrl_zoo:exact", low=-1.0)]

    @hookimpl
    def mmrl_simulators():
        return [SimulatorSpec(id="zoo/cage", target="mmrl_zoo:Cage", capabilities=frozenset({"snapshot", "per-env-seed"}))]

    @hookimpl
    def mmrl_commands(cli):
        @cli.command()
        @click.argument("who")
        def feed(who):
            "Feed an animal."
            click.echo(f"{who} is fed")

        @cli.command()
        def train():
            "Not this one."
"""
BAD_COMMANDS = """
    from mmrl import hookimpl

    @hookimpl
    def mmrl_commands(cli):
        raise RuntimeError("no")
"""


def answer(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr with which bad input is answered."""
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stdout == "" and done.stderr.startswith("mmrl: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("mmrl: ").rstrip("\n")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["lst"], "no command 'lst'. Did you mean 'list'? `mmrl --help` lists all"),
        (["xyzzy"], "no command 'xyzzy'. `mmrl --help` lists all"),
        (["list", "sims"], None),
        (["list", "tasks", "more"], None),
        (["plugins", "--jsn"], None),
        (["check"], None),
        (["check", "zoo/animal", "-n", "1"], None),
        (["check", "zoo/animal"], "no task 'zoo/animal': is the package for 'zoo' installed? Try: pip install mmrl-zoo"),
        (["check", "grpo"], "no task 'grpo': that is one of the algorithms"),
        (["check", "a/b", "--set", "x"], "--set 'x' has no value: write --set key=value"),
        (
            ["new", "plugin", "A"],
            "'A' can't name a plugin: use lower-case letters, digits and single hyphens, such as traffic-signs",
        ),
        (["-p", "zoo", "list"], "-p zoo: write -p no:NAME to switch the plugin NAME off"),
        (["--plugin", "/gone.py", "list"], "--plugin /gone.py: there is no such file"),
    ],
)
def test_bad_input_is_answered_with_one_line(mmrl, site, args: list[str], line: str | None) -> None:
    said = answer(mmrl(*args))
    assert said == line if line else said.endswith(f"(see mmrl {args[0]} --help)"), said
    if line is None:  # the words are click's
        assert any(word in said for word in ("sims", "more", "--jsn", "ID", "-n"))


def test_a_broken_plugin_that_is_asked_for_shows_its_traceback_and_then_the_line(mmrl, site) -> None:
    site("mmrl-bad", {"mmrl_bad.py": "import no_such_sim"}, {"bad": "mmrl_bad"})
    done = mmrl("check", "bad/task")
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and lines[0] == "Traceback (most recent call last):"
    assert lines[-2] == "ModuleNotFoundError: No module named 'no_such_sim'"
    assert lines[-1] == (
        "mmrl: no task 'bad/task': plugin 'bad' (mmrl-bad 0.1) failed to import: no module named 'no_such_sim': "
        "install the package that has it"
    )
    other = mmrl("list", "tasks", MMRL_PLUGINS="bad")
    assert (other.returncode, other.stderr) == (0, "mmrl: not loaded: bad; `mmrl plugins` says why\n")


def test_strict_makes_any_failure_fatal(mmrl, site) -> None:
    site("mmrl-bad", {"mmrl_bad.py": "import no_such_sim"}, {"bad": "mmrl_bad"})
    for args in (["list"], ["plugins"], ["--help"]):
        done = mmrl(*args, MMRL_STRICT="1")
        assert done.returncode == 2 and "Traceback" in done.stderr and done.stderr.endswith("(MMRL_STRICT)\n")
        assert mmrl("-p", "no:bad", *args, MMRL_STRICT="1", MMRL_PLUGINS="bad").returncode == 0


def test_list_json_is_a_contract(mmrl, site) -> None:
    site("mmrl-zoo", {"mmrl_zoo.py": ZOO}, {"zoo": "mmrl_zoo"})
    rows = json.loads(mmrl("list", "--json", MMRL_PLUGINS="zoo").stdout)
    assert [r for r in rows if r["plugin"] == "zoo"] == [
        {
            "kind": "task",
            "plugin": "zoo",
            "id": "zoo/animal",
            "target": "mmrl_zoo:Animal",
            "options": {"size": 8},
            "summary": "Which [animal]",
            "verifiers": {"zoo/exact": 1.0, "zoo/polite-v2": 0.5},
            "metric": "zoo/exact",
        },
        {
            "kind": "verifier",
            "plugin": "zoo",
            "id": "zoo/exact",
            "target": "mmrl_zoo:exact",
            "options": {},
            "summary": "",
            "low": 0.0,
            "high": 1.0,
            "deadline_s": 5.0,
            "images": False,
            "rollout": False,
        },
        {
            "kind": "verifier",
            "plugin": "zoo",
            "id": "zoo/polite-v2",
            "target": "mmrl_zoo:exact",
            "options": {},
            "summary": "",
            "low": -1.0,
            "high": 1.0,
            "deadline_s": 5.0,
            "images": False,
            "rollout": False,
        },
        {
            "kind": "simulator",
            "plugin": "zoo",
            "id": "zoo/cage",
            "target": "mmrl_zoo:Cage",
            "options": {},
            "summary": "",
            "cameras": [],
            "action_dims": 0,
            "max_steps": 0,
            "capabilities": ["per-env-seed", "snapshot"],
            "variants": [],
        },
    ]
    assert {r["kind"] for r in rows if r["plugin"] == "mmrl"} == {"policy", "algorithm"}
    assert [r["id"] for r in json.loads(mmrl("list", "tasks", "--json", MMRL_PLUGINS="zoo").stdout)] == ["zoo/animal"]
    assert json.loads(mmrl("list", "tasks", "--json", MMRL_PLUGINS="").stdout) == []


def test_list_for_people(mmrl, site) -> None:
    site("mmrl-zoo", {"mmrl_zoo.py": ZOO}, {"zoo": "mmrl_zoo"})
    shown = mmrl("list", MMRL_PLUGINS="zoo").stdout
    for text in ("zoo/animal", "Which [animal]", "zoo/exact, 0.5 x zoo/polite-v2", "-1 to 1", "zoo/cage", "grpo"):
        assert text in shown
    assert "There are no tasks" in mmrl("list", "tasks", MMRL_PLUGINS="").stdout


def test_plugins_json_is_a_contract(mmrl, site) -> None:
    site("mmrl-zoo", {"mmrl_zoo.py": ZOO}, {"zoo": "mmrl_zoo"})
    site("mmrl-bad", {"mmrl_bad.py": "1 / 0"}, {"bad": "mmrl_bad"})
    rows = json.loads(mmrl("plugins", "--json", MMRL_PLUGINS="zoo,bad").stdout)
    assert [r["name"] for r in rows] == ["mmrl", "bad", "zoo"]
    assert rows[1] == {
        "name": "bad",
        "dist": "mmrl-bad",
        "version": "0.1",
        "target": "mmrl_bad",
        "specs": {},
        "hooks": [],
        "error": "failed to import: ZeroDivisionError: division by zero",
    }
    assert rows[2] == {
        "name": "zoo",
        "dist": "mmrl-zoo",
        "version": "0.1",
        "target": "mmrl_zoo",
        "error": None,
        "specs": {"tasks": ["zoo/animal"], "verifiers": ["zoo/exact", "zoo/polite-v2"], "simulators": ["zoo/cage"]},
        "hooks": ["mmrl_commands", "mmrl_simulators", "mmrl_tasks", "mmrl_verifiers"],
    }
    assert (rows[0]["name"], rows[0]["dist"], rows[0]["version"]) == ("mmrl", "mmrl", __version__)


def test_plugins_for_people(mmrl, site) -> None:
    site("mmrl-zoo", {"mmrl_zoo.py": ZOO}, {"zoo": "mmrl_zoo"})
    site("mmrl-bad", {"mmrl_bad.py": "1 / 0"}, {"bad": "mmrl_bad"})
    shown = mmrl("plugins", MMRL_PLUGINS="zoo,bad").stdout
    assert "1 task, 2 verifiers, 1 simulator, commands" in shown and "failed to import: ZeroDivisionError" in shown
    errors = mmrl("plugins", "--errors", MMRL_PLUGINS="zoo,bad")
    assert errors.returncode == 1 and "in <module>" in errors.stdout and "plugin 'bad' (mmrl-bad 0.1) failed" in errors.stdout
    fine = mmrl("plugins", "--errors", MMRL_PLUGINS="zoo")
    assert (fine.returncode, fine.stdout) == (0, "Every plugin loads.\n")


def test_plugins_add_commands(mmrl, site) -> None:
    site("mmrl-zoo", {"mmrl_zoo.py": ZOO}, {"zoo": "mmrl_zoo"})
    site("mmrl-bad", {"mmrl_bad.py": BAD_COMMANDS}, {"bad": "mmrl_bad"})
    shown = mmrl("--help")
    assert shown.returncode == 0
    assert "Commands from plugins:\n  feed  Feed an animal.\n" in shown.stdout and "Not this one" not in shown.stdout
    assert sorted(shown.stderr.splitlines()) == [
        "mmrl: plugin 'bad' adds no commands: RuntimeError: no",
        "mmrl: plugin 'zoo' may not add the command 'train': there is one already",
    ]
    fed = mmrl("feed", "Ida")
    assert (fed.returncode, fed.stdout) == (0, "Ida is fed\n")
    assert "no command 'feed'" in mmrl("-p", "no:zoo", "feed", "Ida").stderr
    assert "Feed an animal" not in mmrl("-p", "no:zoo", "--help").stdout


def test_check_tells_by_its_exit_code(mmrl, site) -> None:
    source = """
        from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user

        @hookimpl
        def mmrl_tasks():
            return [TaskSpec(id="sum/two", target="mmrl_sum:Sum", options={"told": False}, verifiers={"sum/exact": 1.0})]

        @hookimpl
        def mmrl_verifiers():
            return [VerifierSpec(id="sum/exact", target="mmrl_sum:exact")]

        class Sum(Task):
            def __init__(self, told): self.told = told
            def prompts(self, split, seed):
                base = 100 if split == "train" else 400
                return [Prompt(id=f"{split}{i}", messages=[user(f"{base + i} + 5?" + f" It is {base + i + 5}" * self.told)],
                               answer=base + i + 5) for i in range(9)]

        def exact(case): return float(case.completion == str(case.answer))
    """
    site("mmrl-sum", {"mmrl_sum.py": source}, {"sum": "mmrl_sum"})
    passed = mmrl("check", "sum/two", "-n", "9", "--json")
    (report,) = json.loads(passed.stdout)
    assert passed.returncode == 0 and set(report) == {"id", "kind", "ok", "checks"}
    assert (report["id"], report["kind"], report["ok"]) == ("sum/two", "task", True)
    assert all(set(c) == {"name", "ok", "message", "note"} and c["ok"] is True and c["message"] == "" for c in report["checks"])
    failed = mmrl("check", "sum/two", "--set", "told=true")
    assert failed.returncode == 1 and "FAIL" in failed.stdout and "1 of " in failed.stdout
    assert "the answer '105' stands in the text of row 'train0'" in failed.stdout
    unknown = mmrl("check", "sum/two", "--set", "tolt=true")
    assert answer(unknown) == "task 'sum/two' has no option 'tolt'. Did you mean 'told'? It accepts: told"
    verifier = mmrl("check", "sum/exact")
    assert verifier.returncode == 0 and "checks pass" in verifier.stdout and "verifier sum/exact" in verifier.stdout


def test_help_and_version(mmrl) -> None:
    shown = mmrl("--help").stdout
    for name, text in COMMANDS.items():
        assert f"  {name}" in shown and text in shown
    assert mmrl().stdout == shown
    assert mmrl("--version").stdout == f"mmrl {__version__}\n"
    group = mmrl("new")
    assert group.returncode == 2 and "plugin" in group.stderr


def test_completion_knows_commands_of_plugins(mmrl, site) -> None:
    site("mmrl-zoo", {"mmrl_zoo.py": ZOO}, {"zoo": "mmrl_zoo"})
    assert "_MMRL_COMPLETE=bash_complete" in mmrl(_MMRL_COMPLETE="bash_source").stdout
    shown = mmrl(_MMRL_COMPLETE="bash_complete", COMP_WORDS="mmrl fe", COMP_CWORD="1").stdout
    assert shown.split() == ["plain,feed"]


def test_an_interrupt_is_130(site, tmp_path) -> None:
    source = """
        import sys, time
        from mmrl import hookimpl

        @hookimpl
        def mmrl_commands(cli):
            @cli.command()
            def wait():
                print("ready", flush=True)
                time.sleep(60)
    """
    site("mmrl-slow", {"mmrl_slow.py": source}, {"slow": "mmrl_slow"})
    process = subprocess.Popen(
        [sys.executable, "-m", "mmrl", "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it and hands that on
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in errors and time.monotonic() - start < 20
