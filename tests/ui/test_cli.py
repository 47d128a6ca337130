"""The command line: bad input is one line and exit code 2, JSON is a contract, plugins add commands."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mmrl import __version__
from mmrl.registry.contract import KINDS
from mmrl.ui import cli
from mmrl.ui.cli import COMMANDS, RENAMED, main
from mmrl.ui.cli.options import _meanings
from mmrl.ui.cli.terminal import status_line
from processes import heeding_ctrl_c

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
    """The single line on stderr that bad input gives."""
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stdout == "" and done.stderr.startswith("mmrl: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("mmrl: ").rstrip("\n")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["lst"], "no command 'lst'. Did you mean 'list'? `mmrl --help` lists them"),
        (["xyzzy"], "no command 'xyzzy'. `mmrl --help` lists them"),
        (["list", "simulator"], f"no kind 'simulator'. Did you mean 'simulators'? There are {', '.join(KINDS)}"),
        (["list", "grpo"], "'grpo' is one of the algorithms: mmrl list algorithms grpo"),
        (["list", "zoo/animal"], "no task 'zoo/animal': is the package for 'zoo' installed? Try: pip install multimodal-rl-zoo"),
        (["list", "tasks", "zoo/animal", "more"], None),
        (["list", "tasks", "more"], "no task 'more'; `mmrl list tasks` shows all"),
        (["plugins", "--jsn"], None),
        (["check"], None),
        (["check", "zoo/animal", "-n", "1"], None),
        (["check", "zoo/animal"], "no task 'zoo/animal': is the package for 'zoo' installed? Try: pip install multimodal-rl-zoo"),
        (["check", "run.toml"], "no task 'run.toml': a run file is checked by mmrl train run.toml --dry-run"),
        (["check", "grpo"], "no task 'grpo': that is one of the algorithms"),
        (["check", "a/b", "--set", "x"], "--set 'x' has no value: write --set key=value"),
        (
            ["new", "plugin", "A"],
            "'A' is not a plugin name: use lower-case letters, digits and single hyphens, such as traffic-signs",
        ),
        (["-p", "zoo", "list"], "-p zoo: write -p no:NAME to disable the plugin NAME"),
        (
            ["-p", "no:grunding", "list"],
            "-p no:grunding, or MMRL_BLOCK: 'grunding' is no plugin. Did you mean 'grounding'? `mmrl plugins` lists all",
        ),
        (["-p", "no:mmrl", "plugins"], "-p no:mmrl, or MMRL_BLOCK: 'mmrl' is mmrl itself. `mmrl plugins` lists all"),
        (["--plugin", "/gone.py", "list"], "--plugin /gone.py: there is no such file: check the path"),
    ],
)
def test_bad_input_is_answered_with_one_line(mmrl, site, args: list[str], line: str | None) -> None:
    said = answer(mmrl(*args))
    assert said == line if line else said.endswith(f"(see mmrl {args[0]} --help)"), said
    if line is None:  # click's own message
        assert any(word in said for word in ("more", "--jsn", "ID", "-n"))


def test_an_old_option_names_the_new_one(capsys) -> None:
    changelog = (Path(__file__).parents[2] / "CHANGELOG.md").read_text("utf-8").partition("### Options of commands")[2]
    for command, options in RENAMED.items():
        (row,) = re.findall(rf"^\| `mmrl {command}` \| (.*) \|$", changelog, re.MULTILINE)
        assert dict(re.findall(r"`(--[\w-]+)` → `(--[\w-]+)`", row)) == options
        known = {name for p in main.get_command(click.Context(main), command).params for name in p.opts}
        for old, new in options.items():
            assert new in known and old not in known
            with pytest.raises(SystemExit) as ended:
                main([command, "x", old, "3"], prog_name="mmrl")
            said = capsys.readouterr().err
            assert (ended.value.code, said) == (
                2,
                f"mmrl: option {old!r} is called {new!r} since mmrl 0.2: use that (see mmrl {command} --help)\n",
            )


def test_a_broken_plugin_that_is_asked_for_shows_its_traceback_and_then_the_line(mmrl, site) -> None:
    site("mmrl-bad", {"mmrl_bad.py": "import no_such_sim"}, {"bad": "mmrl_bad"})
    done = mmrl("check", "bad/task")
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and lines[0] == "Traceback (most recent call last):"
    assert lines[-2] == "ModuleNotFoundError: No module named 'no_such_sim'"
    assert lines[-1] == (
        "mmrl: no task 'bad/task': plugin 'bad' (mmrl-bad 0.1) failed to import: no module named 'no_such_sim': "
        "install its package"
    )
    other = mmrl("list", "tasks", MMRL_PLUGINS="bad")
    assert (other.returncode, other.stderr) == (0, "mmrl: not loaded: bad; `mmrl plugins` shows why\n")


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
            "graded": False,
            "outcome": False,
            "timeout_s": 5.0,
            "images": False,
            "rollout": False,
            "environment": [],
            "model": False,
            "batch_size": 8,
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
            "graded": False,
            "outcome": False,
            "timeout_s": 5.0,
            "images": False,
            "rollout": False,
            "environment": [],
            "model": False,
            "batch_size": 8,
        },
        {
            "kind": "simulator",
            "plugin": "zoo",
            "id": "zoo/cage",
            "target": "mmrl_zoo:Cage",
            "options": {},
            "summary": "",
            "cameras": [],
            "action": None,
            "control_hz": 0.0,
            "max_steps": 0,
            "parts": [],
            "capabilities": ["per-env-seed", "snapshot"],
            "variants": [],
            "screens": False,
            "doctor": "",
        },
    ]
    assert {r["kind"] for r in rows if r["plugin"] == "mmrl"} == {"policy", "algorithm", "tracker"}
    assert [r["id"] for r in json.loads(mmrl("list", "tasks", "--json", MMRL_PLUGINS="zoo").stdout)] == ["zoo/animal"]
    assert json.loads(mmrl("list", "tasks", "--json", MMRL_PLUGINS="").stdout) == []


def test_list_for_people(mmrl, site) -> None:
    site("mmrl-zoo", {"mmrl_zoo.py": ZOO}, {"zoo": "mmrl_zoo"})
    shown = mmrl("list", MMRL_PLUGINS="zoo").stdout
    for text in ("zoo/animal", "Which [animal]", "zoo/exact, 0.5 x zoo/polite-v2", "-1 to 1", "zoo/cage", "grpo"):
        assert text in shown
    assert shown.endswith("\n`mmrl list tasks ID` describes one in full, with its options.\n")
    assert "`mmrl list verifiers ID`" in mmrl("list", "verifiers", MMRL_PLUGINS="zoo").stdout
    assert mmrl("list", "tasks", MMRL_PLUGINS="").stdout == "There are no tasks: `mmrl plugins` lists what is installed.\n"


SHOP = """
    from __future__ import annotations
    from collections.abc import Mapping
    from dataclasses import dataclass, field
    from typing import Literal
    from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message

    @hookimpl
    def mmrl_tasks():
        return [TaskSpec(id="shop/price", target="mmrl_shop:Price", options={"currency": "EUR"}, verifiers={"shop/near": 2.0}),
                TaskSpec(id="shop/plain-v2", target="mmrl_shop:Plain", summary="Nothing to choose"),
                TaskSpec(id="shop/heavy", target="mmrl_shop_heavy:Heavy")]

    @hookimpl
    def mmrl_verifiers():
        return [VerifierSpec(id="shop/near", target="mmrl_shop:near", low=-1.0)]

    @dataclass
    class Base(Task):
        path: str
        '''Where the [pictures] are.

        - a folder
        - or
          a file'''
        limits: Mapping[str, int] = field(default_factory=dict)

    @dataclass
    class Price(Base):
        currency: Literal["EUR", "USD"] = "USD"
        '''What it is paid in.'''
        shots: int | None = None

    class Plain(Task):
        pass

    def near(case, within: float = 0.1, *, strip=True):
        \"\"\"1 when the price is near enough.

        within: the share of the price that it may be off,
        either way. strip: without blanks around: " 1" is "1".
        Known exploits: none.
        \"\"\"
"""


def test_list_says_all_about_one_id(mmrl, site) -> None:
    site("mmrl-shop", {"mmrl_shop.py": SHOP, "mmrl_shop_heavy.py": "import no_such_sim"}, {"shop": "mmrl_shop"})
    (price,) = json.loads(mmrl("list", "tasks", "shop/price", "--json").stdout)
    accepts = price.pop("accepts")
    assert (price["kind"], price["id"], price["options"]) == ("task", "shop/price", {"currency": "EUR"})
    keys = ("name", "type", "default", "required", "meaning")
    assert [tuple(option[k] for k in keys) for option in accepts] == [
        ("path", "text", None, True, "Where the [pictures] are.\n- a folder\n- or a file"),
        ("limits", "table of whole numbers", {}, False, ""),
        ("currency", "Literal['EUR', 'USD']", "EUR", False, "What it is paid in"),
        ("shots", "whole number", None, False, ""),
    ]
    (near,) = json.loads(mmrl("list", "verifiers", "shop/near", "--json").stdout)
    assert near["summary"] == "1 when the price is near enough.", "no summary is given: the docstring has one"
    assert [tuple(option[k] for k in keys) for option in near["accepts"]] == [
        ("within", "number", 0.1, False, "the share of the price that it may be off, either way"),
        ("strip", "", True, False, 'without blanks around: " 1" is "1"'),
    ]
    (vlm,) = json.loads(mmrl("list", "policies", "vlm", "--json").stdout)
    assert vlm["accepts"] == [], "config, device, seed and source are the engine's"


def test_one_id_for_people(mmrl, site) -> None:
    site("mmrl-shop", {"mmrl_shop.py": SHOP, "mmrl_shop_heavy.py": "import no_such_sim"}, {"shop": "mmrl_shop"})
    shown = mmrl("list", "tasks", "shop/price").stdout
    assert shown.startswith("task shop/price: no summary\n")
    for line in (r"target +mmrl_shop:Price", r"verifiers +2 x shop/near", r"path +text +required +Where the \[pictures\] are\."):
        assert re.search(line, shown), shown
    assert re.search(r"currency +'EUR' \| 'USD' +EUR +What it is paid in", shown)
    plain = mmrl("list", "tasks", "shop/plain").stdout
    assert plain.startswith("task shop/plain-v2: Nothing to choose\n") and plain.endswith("It has no options.\n")
    assert "shop/heavy" in mmrl("list", "tasks").stdout, "the list imports no target"
    heavy = mmrl("list", "tasks", "shop/heavy")
    assert heavy.returncode == 2 and "task 'shop/heavy' failed to import: no module named 'no_such_sim'" in heavy.stderr
    assert answer(mmrl("list", "tasks", "shop/prise")) == "no task 'shop/prise'. Did you mean 'shop/price'?"
    assert answer(mmrl("list", "tasks", "shop/near")) == "no task 'shop/near': that is one of the verifiers"


GYM = """
    from mmrl import AlgorithmSpec, hookimpl

    @hookimpl
    def mmrl_algorithms():
        return [AlgorithmSpec(id="gym/short", target="mmrl_gym:short", loss="mmrl_gym:plain", options={"half": 50}, constant=3,
                              normalise="constant", stage_defaults={"overlong": "mask", "kl_coef": 0.5},
                              paper="A. Author, section 2"),
                AlgorithmSpec(id="gym/lost", target="mmrl_gym:short", loss="mmrl_gym:gone"),
                AlgorithmSpec(id="gym/three", target="mmrl_gym:three"),
                AlgorithmSpec(id="gym/four", target="mmrl_gym:short", loss="mmrl_gym:three")]

    three = 3

    def short(rewards_N, lengths_N, wind_N, *, half: int = 10, near: bool = True):
        \"\"\"Short answers are worth more.

        rewards_N: float. half: length at which a reward counts half. near: [all] of it.
        \"\"\"

    def plain(inputs, *, near: bool = True, cap: float = 2.0):
        \"\"\"cap: bound of the ratio.\"\"\"
"""


def test_list_says_all_about_an_algorithm(mmrl, site) -> None:
    """`mmrl list algorithms ID` prints signals, settings of advantage and loss, and defaults of the stage."""
    site("mmrl-gym", {"mmrl_gym.py": GYM}, {"gym": "mmrl_gym"})
    (short,) = json.loads(mmrl("list", "algorithms", "gym/short", "--json").stdout)
    accepts, needs = short.pop("accepts"), short.pop("needs")
    assert short == {
        "kind": "algorithm",
        "plugin": "gym",
        "id": "gym/short",
        "target": "mmrl_gym:short",
        "options": {"half": 50},
        "summary": "Short answers are worth more.",
        "loss": "mmrl_gym:plain",
        "normalise": "constant",
        "constant": 3,
        "stage_defaults": {"overlong": "mask", "kl_coef": 0.5},
        "bounds": {},
        "paper": "A. Author, section 2",
    }
    assert needs["lengths_N"].startswith("int64; trained tokens of each rollout")
    assert list(needs) == ["rewards_N", "lengths_N", "wind_N"] and needs["wind_N"] == "", "the last is no signal"
    keys = ("name", "type", "default", "required", "meaning")
    assert [tuple(o[k] for k in keys[:4]) for o in accepts] == [
        ("half", "whole number", 50, False),
        ("near", "true or false", True, False),
        ("cap", "number", 2.0, False),
        ("normalise", "Literal['token', 'sequence', 'constant']", "constant", False),
        ("constant", "number", 3, False),
        ("loss", "text", "gym/short", False),
        ("entropy_share", "number from 0 to 1", 1.0, False),
    ]
    assert [o["meaning"] for o in accepts[:3]] == ["length at which a reward counts half", "[all] of it", "bound of the ratio"]
    shown = mmrl("list", "algorithms", "gym/short").stdout
    for line in (
        r"algorithm gym/short: Short answers are worth more\.",
        r"paper +A\. Author, section 2",
        r"advantage +mmrl_gym:short",
        r"loss +mmrl_gym:plain",
        r"normalise +constant, 3",
        r"lengths_N +int64; trained tokens of each rollout",
        r"near +true or false +true +\[all\] of it",
        r"overlong +mask +Truncated completions",
        r"kl_coef +0\.5 +Weight of the KL penalty",
    ):
        assert re.search(line, shown), shown
    lost = mmrl("list", "algorithms", "gym/lost")
    assert lost.returncode == 2 and "loss of algorithm 'gym/lost': its target 'mmrl_gym:gone' does not exist" in lost.stderr
    for name, part in (("three", "advantage"), ("four", "loss")):
        assert answer(mmrl("list", "algorithms", f"gym/{name}")) == (
            f"algorithm 'gym/{name}': its {part} 'mmrl_gym:three' must be a Python function with named parameters: "
            "3 is not a callable object"
        )


def test_the_list_of_algorithms_names_their_papers(mmrl, site) -> None:
    shown = mmrl("list", "algorithms", MMRL_PLUGINS="").stdout
    assert re.search(r"^ dapo +GRPO averaged over tokens, .* +Yu et al\., DAPO, section 3, arXiv .* *$", shown, re.MULTILINE)
    assert shown.endswith("\n`mmrl list algorithms ID` describes one in full, with its settings.\n")
    (ppo,) = json.loads(mmrl("list", "algorithms", "ppo", "--json", MMRL_PLUGINS="").stdout)
    assert list(ppo["needs"]) == ["rewards_NT", "values_NT", "bootstrap_N", "units_NT"]
    assert {o["name"]: o["default"] for o in ppo["accepts"]} == {
        "gamma": 1.0,
        "lam": 0.95,
        "whiten": True,
        "clip_low": 0.2,
        "clip_high": 0.2,
        "dual_clip": 0.0,
        "normalise": "token",
        "constant": None,
        "loss": "ppo",
        "entropy_share": 1.0,
    }
    assert all(o["meaning"] for o in ppo["accepts"])


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
        "contract": None,
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
        "contract": None,
    }
    assert (rows[0]["name"], rows[0]["dist"], rows[0]["version"]) == ("mmrl", "multimodal-rl", __version__)


def test_plugins_for_people(mmrl, site) -> None:
    site("mmrl-zoo", {"mmrl_zoo.py": ZOO}, {"zoo": "mmrl_zoo"})
    site("mmrl-bad", {"mmrl_bad.py": "1 / 0"}, {"bad": "mmrl_bad"})
    shown = mmrl("plugins", MMRL_PLUGINS="zoo,bad").stdout
    assert "1 task, 2 verifiers, 1 simulator, commands" in shown and "failed to import: ZeroDivisionError" in shown
    errors = mmrl("plugins", "--errors", MMRL_PLUGINS="zoo,bad")
    assert errors.returncode == 1 and "in <module>" in errors.stdout and "plugin 'bad' (mmrl-bad 0.1) failed" in errors.stdout
    fine = mmrl("plugins", "--errors", MMRL_PLUGINS="zoo")
    assert (fine.returncode, fine.stdout) == (0, "All plugins load.\n")


ODD_COMMANDS = """
from mmrl import hookimpl

@hookimpl
def mmrl_commands(cli):
    cli.commands["foo"] = "bar"
"""


def test_plugins_add_commands(mmrl, site) -> None:
    site("mmrl-zoo", {"mmrl_zoo.py": ZOO}, {"zoo": "mmrl_zoo"})
    site("mmrl-bad", {"mmrl_bad.py": BAD_COMMANDS}, {"bad": "mmrl_bad"})
    shown = mmrl("--help")
    assert shown.returncode == 0
    assert (
        re.search(r"Commands from plugins:\n(?s:.*)\n  feed +Feed an animal\.\n  record +Record episodes", shown.stdout)
        and "Not this one" not in shown.stdout
    )
    assert sorted(shown.stderr.splitlines()) == [
        "mmrl: plugin 'bad' adds no commands: RuntimeError: no",
        "mmrl: plugin 'zoo' may not add the command 'train': the name is taken",
    ]
    site("mmrl-odd", {"mmrl_odd.py": ODD_COMMANDS}, {"odd": "mmrl_odd"})
    odd = mmrl("--help", MMRL_PLUGINS="odd")
    assert (odd.returncode, odd.stderr) == (0, "mmrl: plugin 'odd' adds no commands: 'foo' is no click.Command\n")
    fed = mmrl("feed", "Ida")
    assert (fed.returncode, fed.stdout) == (0, "Ida is fed\n")
    assert "no command 'feed'" in mmrl("-p", "no:zoo", "feed", "Ida").stderr
    assert "Feed an animal" not in mmrl("-p", "no:zoo", "--help").stdout


def test_a_group_export_of_a_plugin_becomes_forms_of_export(mmrl, site) -> None:
    source = """
        import click
        from mmrl import hookimpl

        @hookimpl
        def mmrl_commands(cli):
            @cli.group()
            def export(): pass

            @export.command()
            @click.argument("thing")
            @click.option("--loud", is_flag=True)
            def moon(thing, loud):
                "Send it up."
                click.echo(f"{thing}{'!' * loud}")
    """
    site("mmrl-moon", {"mmrl_moon.py": source}, {"moon": "mmrl_moon"})
    assert re.search(r"--to moon +Send it up\.", mmrl("export", "--help").stdout)
    for words in (["--to", "moon", "cow", "--loud"], ["cow", "--loud", "--to=moon"]):
        done = mmrl("export", *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, "cow!\n", "")
    assert answer(mmrl("export", "cow", "--to", "moo")).endswith("swift, verl. Did you mean 'moon'?")
    assert answer(mmrl("export", "--to", "moon")) == "Missing argument 'THING'. (see mmrl export --to moon --help)"


@pytest.mark.everyday
def test_check_tells_by_its_exit_code(mmrl, site) -> None:
    source = """
        from mmrl import Prompt, Task, TaskSpec, VerifierSpec, hookimpl, user_message

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
                return [Prompt(id=f"{split}{i}", answer=base + i + 5,
                               messages=[user_message(f"{base + i} + 5?" + f" It is {base + i + 5}" * self.told)])
                        for i in range(9)]

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
    assert "the answer '105' is in the text of row 'train0'" in failed.stdout
    unknown = mmrl("check", "sum/two", "--set", "tolt=true")
    assert answer(unknown) == "task 'sum/two' has no option 'tolt'. Did you mean 'told'? It accepts: told"
    verifier = mmrl("check", "sum/exact")
    assert verifier.returncode == 0 and "checks pass" in verifier.stdout and "verifier sum/exact" in verifier.stdout


def test_help_and_version(mmrl) -> None:
    shown = mmrl("--help").stdout
    for name, text in COMMANDS.items():
        assert f"  {name}" in shown and text in " ".join(shown.split())
    assert mmrl().stdout == shown
    assert mmrl("--version").stdout == f"mmrl {__version__}\n"
    group = mmrl("new")
    assert group.returncode == 2 and "plugin" in group.stderr


@pytest.mark.parametrize("group", [(), ("new",), ("record",), ("simulator",), ("export",)])
def test_no_sentence_of_a_command_is_cut_in_a_terminal_of_80_columns(group) -> None:
    shown = CliRunner().invoke(main, [*group, "--help"], terminal_width=80)
    assert shown.exit_code == 0 and not [line for line in shown.output.splitlines()[1:] if line.endswith("...")]


def test_completion_knows_commands_of_plugins(mmrl, site) -> None:
    site("mmrl-zoo", {"mmrl_zoo.py": ZOO}, {"zoo": "mmrl_zoo"})
    assert "_MMRL_COMPLETE=bash_complete" in mmrl(_MMRL_COMPLETE="bash_source").stdout
    shown = mmrl(_MMRL_COMPLETE="bash_complete", COMP_WORDS="mmrl fe", COMP_CWORD="1").stdout
    assert shown.split() == ["plain,feed"]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("preview zo", ["zoo/animal"]),
        ("preview classification", []),
        ("score ", ["zoo/exact", "zoo/polite-v2"]),
        ("check zoo/", ["zoo/animal", "zoo/cage", "zoo/exact", "zoo/polite-v2"]),
        ("check zoo/exact --task ", ["zoo/animal"]),
        ("list tasks ", ["zoo/animal"]),
        ("list simulators zoo/c", ["zoo/cage"]),
        (
            "list ",
            [
                "tasks",
                "verifiers",
                "simulators",
                "policies",
                "families",
                "algorithms",
                "sampling_rules",
                "stages",
                "alarms",
                "trackers",
            ],
        ),
        ("list algorithms dap", ["dapo"]),
        ("list trackers t", ["tensorboard", "trackio"]),
        ("-p no:zoo preview ", []),
        ("--plugin my_zoo.py preview m", ["my_zoo/animal"]),
        ("--plugin gone.py preview ", []),
    ],
)
def test_completion_knows_ids(mmrl, site, tmp_path, words: str, completed: list[str]) -> None:
    site("mmrl-zoo", {"mmrl_zoo.py": ZOO}, {"zoo": "mmrl_zoo"})
    (tmp_path / "my_zoo.py").write_text(textwrap.dedent(ZOO).replace("zoo/", "my_zoo/"))
    words = f"mmrl {words}"
    place = str(words.count(" "))
    done = mmrl(_MMRL_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=place, MMRL_PLUGINS="zoo,my_zoo")
    assert done.stdout.split() == [f"plain,{id}" for id in completed]
    assert done.stderr == "" or "my_zoo" in words, done.stderr


def run_folder(path: Path, best: int | None = None, evaluated: int = 4) -> None:
    """A run folder with checkpoints without weights after steps 2 and 4; its last evaluation was after step `evaluated`."""
    from mmrl.run_folder.writer import RunFolder

    config = {
        "name": path.name,
        "policy": {"model": "tiny:qwen2_5_vl"},
        "tasks": [{"id": "t"}],
        "stages": [{"kind": "sft", "steps": 4}],
    }
    run = RunFolder.create(path, config, seed=0)
    for step in (2, 4):
        run.checkpoint_dir(step).mkdir()
        (run.checkpoint_dir(step) / "state.json").write_text(
            json.dumps({"best_step": best, "step": step, "evaluated_step": evaluated})
        )


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "runs/dgits",
            "neither a run file nor a run folder. Did you mean 'runs/digits'? Run folders here: runs/digits, runs/flags",
        ),
        ("flags", "neither a run file nor a run folder. Did you mean 'runs/flags'? Run folders here: runs/digits, runs/flags"),
        ("no/thing", "neither a run file nor a run folder. Run folders here: runs/digits, runs/flags"),
        ("runs", "not a run folder: its config.toml does not exist. Run folders here: runs/digits, runs/flags"),
    ],
)
def test_eval_says_which_runs_there_are(mmrl, tmp_path, target: str, message: str) -> None:
    for name in ("digits", "flags"):
        run_folder(tmp_path / "runs" / name)
    (tmp_path / "runs" / "notes").mkdir()
    assert answer(mmrl("eval", target)) == f"{target} is {message}"


def test_eval_without_any_run(mmrl) -> None:
    said = "runs/nope is neither a run file nor a run folder. Check the path; `mmrl train` writes run folders"
    assert answer(mmrl("eval", "runs/nope")) == said
    assert answer(mmrl("eval", "nope.toml")).startswith("run file nope.toml does not exist")


def test_eval_says_when_the_newest_checkpoint_was_never_evaluated(tmp_path, monkeypatch) -> None:
    from mmrl.train import start

    monkeypatch.setattr(start, "evaluate_only", lambda config, folder, which: [])
    run_folder(tmp_path / "x", best=0, evaluated=0)
    shown = CliRunner().invoke(main, ["eval", str(tmp_path / "x")]).stdout
    assert shown.strip().endswith("tiny:qwen2_5_vl; step 4 was not evaluated: --checkpoint last")


@pytest.mark.parametrize(
    ("best", "which", "weights"),
    [
        (2, "best", "runs/x, best checkpoint: step 2"),
        (2, "last", "runs/x, last checkpoint: step 4"),
        (2, "4", "runs/x, checkpoint: step 4"),
        (0, "best", "runs/x, best checkpoint: none was better than the initial weights, tiny:qwen2_5_vl"),
    ],
)
def test_eval_names_the_weights(tmp_path, monkeypatch, best: int, which: str, weights: str) -> None:
    from mmrl.evaluation.results import Evaluation
    from mmrl.train import start

    figure = Evaluation(
        task="t",
        split="test",
        metric="accuracy",
        value=0.5,
        low=0.1,
        high=0.9,
        n=9,
        extra={"truncated_share": 0.0, "failed": 1.0},
    )
    monkeypatch.setattr(start, "evaluate_only", lambda config, folder, which: [figure])
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "runs" / "x", best)
    shown = CliRunner().invoke(main, ["eval", "runs/x", "--checkpoint", which, "-n", "10"]).stdout.splitlines()
    assert shown[:2] == [weights, "t  test  accuracy 0.500 (0.100 to 0.900), n=9"] and "asked" not in "".join(shown)
    more = CliRunner().invoke(main, ["eval", "runs/x", "--checkpoint", which, "-n", "11"]).stdout.splitlines()
    assert more[2] == "  11 prompts were requested, and the split has 10"
    as_json = CliRunner().invoke(main, ["eval", "runs/x", "--checkpoint", which, "--json"])
    assert json.loads(as_json.stdout) == {"t": figure.as_json()}


def test_who_waits_at_a_terminal_is_told(monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, said in ((Terminal(), "loading ...\n"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        status_line("loading ...")
        assert stream.getvalue() == said


def test_a_group_of_several_plugins_has_the_commands_of_all(capsys) -> None:
    first, other, second = (click.Command(name) for name in ("play", "play", "watch"))
    found: dict[str, click.Command] = {}
    own = click.Group("record", commands=[first])
    cli._add(found, {"record": own}, "zoo")
    cli._add(found, {"record": click.Group("record", commands=[other, second])}, "park")
    assert found["record"].commands == {"play": first, "watch": second} and own.commands == {"play": first}
    assert capsys.readouterr().err == "mmrl: plugin 'park' may not add the command 'record play': the name is taken\n"


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
        preexec_fn=heeding_ctrl_c,
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in errors and time.monotonic() - start < 20


def test_a_warning_is_one_line_without_source(tmp_path: Path) -> None:
    (tmp_path / "wary.py").write_text(
        "import warnings\nfrom mmrl import hookimpl\n\n@hookimpl\ndef mmrl_commands(cli):\n"
        "    cli.command('look')(lambda: warnings.warn('2 of 9 images\\n are left out'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mmrl", "--plugin", "wary.py", "look"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "mmrl: warning: 2 of 9 images are left out\n")


def test_a_meaning_may_begin_on_the_line_after_its_name() -> None:
    def target(near, far):
        """Look around.

        near: where to begin. far:
            where to end.
        """

    assert _meanings(target, ["near", "far"]) == {"near": "where to begin", "far": "where to end"}


def test_the_end_of_a_run_says_parts_of_episodes_with_their_intervals() -> None:
    from mmrl.ui.cli.train import _say_figures

    one = {"metric": "success", "value": 0.5, "low": 0.4, "high": 0.6, "n": 9, "extra": {}}
    last = {**one, "extra": {"episode/chain_1": 0.75, "episode/return": 2.0, "part/a_b": 0.5, "failed": 0.0}}
    last["intervals"] = {"episode/chain_1": (0.625, 0.875), "episode/return": (None, None)}
    said: list[str] = []
    _say_figures({"before": {"t": one}, "best": {"t": last}, "last": {"t": last}}, said.append)
    assert said[1:] == ["  episode/chain 1 0.750 (0.625 to 0.875), episode/return 2.000 (interval unknown), part/a_b 0.500"]
