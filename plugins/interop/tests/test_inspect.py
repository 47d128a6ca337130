"""Tasks in inspect-ai, evaluated by inspect itself with its mock model, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".peers" / "inspect" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"inspect-ai is not installed in {PYTHON.parents[1]}: make peers"),
]


def evaluated(plugin, logs, task, name="", path="", **args):
    program = Path(__file__).parent / "programs" / "inspect_evals.py"
    own = {"MMRL_PLUGINS": "interop", "MMRL_PLUGIN_FILES": str(plugin)} | ({"PYTHONPATH": str(path)} if path else {})
    command = [PYTHON, program, name, task, json.dumps({"split": "train", **args}), logs]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=280, env={**os.environ, **own})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_answers_are_scored_and_a_missing_score_is_left_out(plugin, tmp_path):
    found = evaluated(plugin, tmp_path, "peers/shade", n=3)
    assert (found["status"], found["errors"]) == ("success", []) and found["ids"] == ["train-0", "train-1", "train-2"]
    assert found["values"] == [
        {"reward": 1.25, "peers/exact": 1.0, "peers/long": 1.0},
        {"reward": 0.25, "peers/exact": 0.0, "peers/long": 1.0},
        None,
    ]
    assert "what is this" in found["explanations"][2] and found["images"] == [1, 1, 1]
    assert found["means"]["reward"] == 0.75 and found["means"]["peers/exact"] == 0.5 and found["unscored"] == 1


@pytest.mark.always
def test_an_environment_is_played_in_turns(plugin, tmp_path):
    found = evaluated(plugin, tmp_path, "peers/guess", max_turns=3)
    assert found["errors"] == []
    assert found["turns"] == [1, 2, 3, 3, 3, 3, 3, 3, 3, 0] and found["images"][1:3] == [1, 2], "what follows a turn is shown"
    assert [value and value["reward"] for value in found["values"]] == [2.25] * 3 + [0.0] * 6 + [None]
    assert found["explanations"][9] == "no more pages" and found["unscored"] == 1


def test_environments_get_the_thinking_that_inspect_tells_apart(plugin, tmp_path):
    """The environment of these tests takes a number behind this very thought, and no other."""
    found = evaluated(plugin, tmp_path, "peers/guess", max_turns=3, seed=1, options={"think": "Hm."})
    assert [value and value["reward"] for value in found["values"]] == [2.25] * 3 + [0.0] * 6 + [None]


def test_it_is_found_by_name(plugin, tmp_path):
    """As it is from a wheel; an editable install has no name there."""
    place = tmp_path / "site-packages"
    install = ["install", "-q", "--no-deps", "--no-build-isolation", "--target", place, ROOT / "plugins" / "interop"]
    subprocess.run([sys.executable, "-m", "pip", *map(str, install)], check=True, timeout=120)
    found = evaluated(plugin, tmp_path, "peers/shade", name="mmrl_interop/mmrl", path=place, n=2)
    assert found["ids"] == ["train-0", "train-1"] and found["means"]["reward"] == 0.75


@pytest.mark.parametrize(
    ("task", "args", "message"),
    [("peers/shad", {}, "Did you mean 'peers/shade'?"), ("peers/shade", {"split": "moon"}, "no split 'moon'")],
)
def test_what_can_not_be_is_said(plugin, tmp_path, task, args, message):
    with pytest.raises(AssertionError, match=message.replace("?", r"\?")):
        evaluated(plugin, tmp_path, task, **args)
