"""A task as a taskset of verifiers, by its own programs: they check the ground truth, and play it with a stub as the model."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import mmrl_interop
import pytest

from mmrl import UserError

BIN = Path(__file__).parents[3] / ".peers" / "verifiers" / "bin"
needs_verifiers = pytest.mark.skipif(
    not (BIN / "vf-eval").exists(), reason=f"verifiers is not installed in {BIN.parent}: make peers"
)


def run(program, *args, plugin, cwd, **environment):
    own = {"MMRL_PLUGINS": "interop", "MMRL_PLUGIN_FILES": str(plugin), "PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(
        [BIN / program, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=cwd,
        env={**os.environ, **own, **environment},
    )


def test_without_verifiers_it_is_one_line():
    with pytest.raises(
        UserError, match=r'mmrl_interop.taskset needs verifiers, which is not installed: pip install "verifiers>=0.4'
    ):
        _ = mmrl_interop.MmrlTaskset
    assert mmrl_interop.__all__ == ["MmrlTaskset"] and not hasattr(mmrl_interop, "other")


@pytest.mark.slow
@needs_verifiers
def test_verifiers_checks_its_ground_truth(plugin, tmp_path):
    args = (
        "mmrl-interop",
        "--taskset.mmrl_task",
        "peers/shade",
        "--taskset.n",
        4,
        "--runtime.type",
        "subprocess",
        "--rich",
        "False",
    )
    done = run("vf-validate", *args, "-o", tmp_path / "out", plugin=plugin, cwd=tmp_path)
    [summary] = (tmp_path / "out").rglob("summary.json")
    assert json.loads(summary.read_text())["checks"]["gold"]["valid"] == 4, done.stdout + done.stderr


@pytest.mark.slow
@needs_verifiers
def test_verifiers_plays_it(plugin, tmp_path):
    """A score that is missing is an error and no reward, and the other rollouts have theirs."""
    stub_endpoint = pytest.importorskip("stub_endpoint", reason="tests/support of mmrl's repository").stub_endpoint

    def answer(body):
        shade = len(re.findall(" so", str(body["messages"])))
        return {0: "0", 1: "7", 2: "raise this"}[shade]

    with stub_endpoint(answer=answer) as stub:
        args = ["--env.taskset.mmrl_task", "peers/shade", "--env.taskset.n", 3, "--client.base-url", stub.url, "--model", "stub"]
        args += ["--client.api-key-var", "STUB_KEY", "--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess"]
        done = run("vf-eval", "someone/mmrl-interop", *args, "-o", tmp_path, plugin=plugin, cwd=tmp_path, STUB_KEY="x")
    [file] = tmp_path.rglob("traces.jsonl")
    traces = [trace for line in file.read_text().splitlines() for trace in json.loads(line)["traces"]]
    found = {trace["task"]["data"]["id"]: trace for trace in traces if trace["ok"]}
    assert sorted(found) == ["train-0", "train-1"], done.stdout + done.stderr
    assert [found[f"train-{i}"]["rewards"]["mmrl"]["score"] for i in (0, 1)] == [1.25, 0.25]
    assert [found[f"train-{i}"]["metrics"]["peers/exact"] for i in (0, 1)] == [1.0, 0.0]
    lost = [trace for trace in traces if not trace["ok"]]
    assert lost and all("no score: peers/exact" in str(trace["errors"]) for trace in lost)
    part = stub.bodies[0]["messages"][1]["content"][0]
    assert part["type"] == "image_url" and part["image_url"]["url"].startswith("data:image/png;base64,")


@pytest.mark.slow
@needs_verifiers
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--taskset.mmrl_task", "peers/guess"], "task 'peers/guess' has environments: set first_turn to score first answers"),
        (["--taskset.mmrl_task", "peers/shad"], "Did you mean 'peers/shade'?"),
    ],
)
def test_what_it_can_not_be_is_said(plugin, tmp_path, args, message):
    done = run(
        "vf-validate", "mmrl-interop", *args, "--runtime.type", "subprocess", "--rich", "False", plugin=plugin, cwd=tmp_path
    )
    assert done.returncode != 0 and message in " ".join((done.stdout + done.stderr).split())
